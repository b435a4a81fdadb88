"""Paths and URIs."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from onceonly.filesystems import azure_names

LOCAL_SCHEMES = ("", "file")


def spark_uri(uri: str) -> str:
    """The URI by which Spark knows what others call s3:// or az://, or writes with %20: it takes a path literally."""
    if urlsplit(uri).scheme.lower() == "file":
        return f"file://{local_path(uri)}"
    return uri.replace("s3://", "s3a://", 1) if uri.startswith("s3://") else azure_names.hadoop(uri)


def local_path(uri: str) -> Path | None:
    """The folder that a path or file:// URI names; None for an object store."""
    parts = urlsplit(uri)
    if parts.scheme.lower() not in LOCAL_SCHEMES:
        return None
    return Path(unquote(parts.path) if parts.scheme else uri).absolute()
