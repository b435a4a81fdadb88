"""Which file system a path or URI is on, of those that files can be published to."""

from __future__ import annotations

from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.filesystems.interface import FileSystem
from onceonly.filesystems.local import LocalFiles
from onceonly.filesystems.paths import local_path


def of(uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str] | None:
    """The file system, and the path there; None: no other one is supported.

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
    return _s3(uri) if scheme in ("s3", "s3a") else None


def _hdfs(uri: str, address: str | None) -> tuple[FileSystem, str]:
    try:
        from onceonly.filesystems.hdfs import HdfsFiles
        from onceonly.filesystems.webhdfs import Cluster, split
    except ImportError as error:
        raise InvalidPipeline(
            f"{uri} cannot be reached: '{error.name}' is not installed.", todo="pip install 'onceonly[hdfs]'"
        ) from error
    cluster = Cluster(uri, address)
    return HdfsFiles(cluster), cluster.root + split(uri)[1]


def _s3(uri: str) -> tuple[FileSystem, str]:
    """s3a://, as Spark calls it, is the same place."""
    try:
        from onceonly.filesystems.s3 import S3Files
        from onceonly.filesystems.s3_client import Bucket, split
    except ImportError as error:
        raise InvalidPipeline(
            f"{uri} cannot be reached: '{error.name}' is not installed.", todo="pip install 'onceonly[stores]'"
        ) from error
    name, path = split(uri)
    bucket = Bucket(name)
    return S3Files(bucket), f"{bucket.root}/{path}"
