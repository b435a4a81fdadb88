"""Which file system a path or URI is on, of those that files can be published to."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.storage import azure_names, google_names
from onceonly.storage.interface import FileSystem
from onceonly.storage.local import LocalFiles
from onceonly.storage.paths import local_path

if TYPE_CHECKING:
    import pyarrow.fs as pafs


def of(uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str] | None:
    """Return the file system of a path or URI, and the path there; None: no other one is supported.

    Args:
        webhdfs: HTTP address of the NameNode, for a folder on HDFS.
    Raises:
        InvalidPipeline: the URI cannot be used, or what is needed to reach it is not installed.
    """
    path = local_path(uri)
    if path is not None:
        return LocalFiles(), str(path)
    scheme = urlsplit(uri).scheme.lower()
    if scheme == "hdfs":
        return _hdfs(uri, webhdfs)
    if scheme in ("s3", "s3a"):
        return _s3(uri)
    if scheme in azure_names.SCHEMES:
        return _azure(uri)
    if scheme in google_names.SCHEMES:
        return _google(uri)
    return None


def arrow(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return pyarrow's file system of an object store, by credentials of the environment, and the path there."""
    if uri.startswith("s3://"):
        from onceonly.storage import s3

        return s3.arrow(uri)
    from onceonly.storage import objects

    return objects.arrow(uri)


def _hdfs(uri: str, address: str | None) -> tuple[FileSystem, str]:
    try:
        from onceonly.storage.hdfs import HdfsFiles
        from onceonly.storage.webhdfs import Cluster, split
    except ImportError as error:
        raise _not_installed(uri, error, "hdfs") from error
    cluster = Cluster(uri, address)
    return HdfsFiles(cluster), cluster.root + split(uri)[1]


def _s3(uri: str) -> tuple[FileSystem, str]:
    """Return the bucket's file system, and the path. s3a://, as Spark calls it, is the same place."""
    try:
        from onceonly.storage.s3 import S3Files
        from onceonly.storage.s3_client import Bucket, split
    except ImportError as error:
        raise _not_installed(uri, error, "stores") from error
    name, path = split(uri)
    bucket = Bucket(name)
    return S3Files(bucket), f"{bucket.root}/{path}"


def _azure(uri: str) -> tuple[FileSystem, str]:
    """Return the container's file system, and the path: by whichever of its names, it is the same place."""
    place = azure_names.parse(uri)
    try:
        from onceonly.storage.azure_client import Container
        from onceonly.storage.copies import CopiedFiles
    except ImportError as error:
        raise _not_installed(uri, error, "azure") from error
    return CopiedFiles(Container(place)), place.uri


def _google(uri: str) -> tuple[FileSystem, str]:
    name, path = google_names.parse(uri)
    try:
        from onceonly.storage.copies import CopiedFiles
        from onceonly.storage.google_client import Bucket
    except ImportError as error:
        raise _not_installed(uri, error, "google") from error
    bucket = Bucket(name)
    return CopiedFiles(bucket), f"{bucket.root}/{path}"


def _not_installed(uri: str, error: ImportError, extra: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{urlsplit(uri).scheme}:// cannot be reached: '{error.name}' is not installed.",
        todo=f"pip install 'onceonly[{extra}]'",
    )
