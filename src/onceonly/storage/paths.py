"""Paths and URIs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceonly.storage import azure_names

LOCAL_SCHEMES = ("", "file")


def spark_uri(uri: str) -> str:
    """Return the URI by which Spark knows what others call s3:// or az://, or write with %20.

    Spark takes a path literally.
    """
    if urlsplit(uri).scheme.lower() == "file":
        return f"file://{local_path(uri)}"
    if uri.startswith("s3://"):
        return uri.replace("s3://", "s3a://", 1)
    return azure_names.hadoop(uri)


def local_path(uri: str) -> Path | None:
    """Return the folder that a path or file:// URI names; None for an object store."""
    parts = urlsplit(uri)
    if parts.scheme.lower() not in LOCAL_SCHEMES:
        return None
    return Path(unquote(parts.path) if parts.scheme else uri).absolute()
