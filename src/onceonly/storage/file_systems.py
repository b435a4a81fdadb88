"""The file systems that files can be published to, by path or URI."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, FileSystem
from onceonly.storage.local import LocalFiles
from onceonly.storage.paths import (
    AZURE_SCHEMES,
    GOOGLE_SCHEMES,
    S3_SCHEMES,
    AzureFolder,
    local_path,
    split_google_uri,
    split_hdfs_uri,
    split_s3_uri,
)

T = TypeVar("T")


def open_file_system(uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str] | None:
    """Return the file system of a path or URI, and the path there; None: files cannot be published to any other one.

    Args:
        webhdfs: HTTP address of the NameNode, for a folder on HDFS; by default its host and Hadoop's default port.
    Raises:
        InvalidPipeline: the URI cannot be used, or what is needed to reach it is not installed.
    """
    path = local_path(uri)
    if path is not None:
        return LocalFiles(), str(path)
    scheme = urlsplit(uri).scheme.lower()
    if scheme == "hdfs":
        return _open_hdfs(uri, webhdfs)
    if scheme in S3_SCHEMES:
        return _open_s3(uri)
    if scheme in AZURE_SCHEMES:
        return _open_azure(uri)
    if scheme in GOOGLE_SCHEMES:
        return _open_google(uri)
    return None


def _open_hdfs(uri: str, address: str | None) -> tuple[FileSystem, str]:
    try:
        from onceonly.storage.hdfs import HdfsFiles
        from onceonly.storage.webhdfs import WebHdfsCluster
    except ImportError as error:
        raise _not_installed(uri, error, "hdfs") from error
    cluster = WebHdfsCluster(uri, address)
    return HdfsFiles(cluster), cluster.root + split_hdfs_uri(uri)[1]


def _open_s3(uri: str) -> tuple[FileSystem, str]:
    try:
        from onceonly.storage.s3 import S3Files
        from onceonly.storage.s3_client import Bucket
    except ImportError as error:
        raise _not_installed(uri, error, "stores") from error
    name, path = split_s3_uri(uri)
    bucket = Bucket(name)
    return S3Files(bucket), f"{bucket.root}/{path}"


def _open_azure(uri: str) -> tuple[FileSystem, str]:
    """Return the container's file system, and the path: by whichever of its names, it is the same place."""
    folder = AzureFolder.parse(uri)
    try:
        from onceonly.storage.azure_client import Container
        from onceonly.storage.copies import CopiedFiles
    except ImportError as error:
        raise _not_installed(uri, error, "azure") from error
    return CopiedFiles(Container(folder)), folder.uri


def _open_google(uri: str) -> tuple[FileSystem, str]:
    name, path = split_google_uri(uri)
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
        code="package-missing",
    )


def read_listed(list_names: Callable[[], Iterable[str]], read: Callable[[str], T]) -> dict[str, T]:
    """Return by name the content of every file that other processes publish in an order, and may replace.

    Files that are replaced meanwhile are left out. Listed until a listing shows nothing new: a replacement is written
    before the original is removed, and one listing may show neither. Nor need a listing show what was published while
    it continued, before something that it does show.
    """

    def read_existing(name: str) -> T | None:
        try:
            return read(name)
        except FileNotFoundError:
            return None

    contents: dict[str, T | None] = {}  # None: the file was replaced between its listing and its reading
    listings = 0
    while (new_names := sorted(set(list_names()) - contents.keys())) or not listings:
        listings += 1
        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            contents |= zip(new_names, pool.map(read_existing, new_names), strict=True)
    return {name: content for name, content in contents.items() if content is not None}
