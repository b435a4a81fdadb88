"""How a folder on Google Cloud Storage is called, and who asks for it: by the variables that delta-rs reads."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path

from onceonly.errors import InvalidPipeline

SCHEMES = ("gs",)
FILES = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_APPLICATION_CREDENTIALS")


def parse(uri: str) -> tuple[str, str]:
    """Return (bucket, path) of a gs:// URI; the path is taken literally.

    Raises:
        InvalidPipeline: no bucket, a login before it, or no folder in it.
    """
    bucket, _, path = uri.partition("://")[2].partition("/")
    clean = posixpath.normpath("/" + path.lstrip("/")).strip("/")
    if not bucket or "@" in bucket or not clean:
        raise InvalidPipeline(
            f"'gs://…/{path}' cannot be used.",
            "It must name a bucket and a folder, without a login.",
            "Write it as in gs://lake/delays. Nothing was written.",
        )
    return bucket, clean


def key_file(env: Mapping[str, str] = os.environ) -> Path | None:
    """Return the key file of a service account that the environment names; None: it names none."""
    for name in FILES:
        if path := env.get(name):
            return Path(path)
    return None
