"""Folders on HDFS over HTTP: fsspec's WebHDFS with timeouts, clear errors and no overwriting.

It needs neither a JVM nor a Hadoop library. Requests for hdfs://namenode:8020/… go to the NameNode's HTTP address: the
configured one, or http://namenode:9870, Hadoop's default. The user is HADOOP_USER_NAME, or that of the process.

Every error is an OSError: FileNotFoundError, FileExistsError, NotADirectoryError and PermissionError as usual;
Unreachable: no response in time, so the effect of the request is not known.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import requests
from fsspec.implementations.webhdfs import WebHDFS
from requests.adapters import HTTPAdapter

from onceonly.errors import InvalidPipeline
from onceonly.storage.paths import HDFS_PREFIX, split_hdfs_uri
from onceonly.waits import wait_for

CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS = 10.0, 60.0
PORTS = {"http": 9870, "https": 9871}
ERRORS: Mapping[str, type[OSError]] = {
    "AccessControlException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "ParentNotDirectoryException": NotADirectoryError,
    "SecurityException": PermissionError,
}


class Unreachable(ConnectionError):
    """No response in time."""


class WebHdfsCluster:
    """The HDFS that a URI names.

    Args:
        uri: of anything on it, hdfs://namenode:8020/….
        address: of its NameNode, http(s)://host:port.
    Raises:
        InvalidPipeline: the URI or the address cannot be used, or this process has no user name.
    """

    def __init__(self, uri: str, address: str | None = None) -> None:
        authority, _ = split_hdfs_uri(uri)
        self.root = HDFS_PREFIX + authority
        namenode = _parse_address(address or f"http://{urlsplit(self.root).hostname}")
        port = namenode.port or PORTS[namenode.scheme]
        self.address = f"{namenode.scheme}://{namenode.hostname}:{port}"
        self.user = _user()
        self.fs: Any = WebHDFS(
            namenode.hostname, port, user=self.user, use_https=namenode.scheme == "https", skip_instance_cache=True
        )
        for prefix in ("http://", "https://"):
            self.fs.session.mount(prefix, _WithTimeout())
        self.fs.session.hooks["response"].append(_raise_error)

    def path(self, uri: str) -> str:
        """Return the path for `fs`.

        Raises:
            FileNotFoundError: it is on another cluster.
        """
        if uri != self.root and not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not on {self.root}")
        return uri.removeprefix(self.root)

    def rename(self, old: str, new: str) -> None:
        """Rename atomically. Never overwrites, and never moves into an existing folder.

        Source: Hadoop's `rename2`. The rename without options (fsspec's `mv`) returns false where it refuses, and moves
        a file *into* an existing folder of that name.
        """
        response = self.request("put", "RENAME", self.path(old), destination=self.path(new), renameoptions="NONE")
        if response.content:
            raise OSError(f"{self.address} does not support 'renameoptions', so it may overwrite files")

    def create(self, path: str, content: bytes) -> None:
        """Create a file; it is closed when this returns."""
        response = self.request("put", "CREATE", self.path(path), overwrite="false")
        self.fs.session.put(response.headers["Location"], data=content)

    def dataset(
        self,
        source: pafs.FileSelector | list[str],
        base: str,
        format: ds.FileFormat,
        schema: pa.Schema | None = None,
        by: pa.Schema | None = None,
    ) -> ds.Dataset:
        """Return what `pyarrow.dataset.dataset` would.

        That one would deadlock: it holds the GIL, which `fs` needs, to read the schema.

        Args:
            base: the folder below which partition folders become columns.
            schema, by: of all columns, and of the partition columns; by default inferred.
        """
        hive = ds.partitioning(by, flavor="hive")
        options = ds.FileSystemFactoryOptions(partitioning=hive, partition_base_dir=base)
        files = pafs.PyFileSystem(pafs.FSSpecHandler(self.fs))
        factory = ds.FileSystemDatasetFactory(files, source, format, options)
        return factory.finish(schema or factory.inspect(fragments=1))

    def request(
        self, method: str, op: str, path: str, seconds: float = RESPONSE_TIMEOUT_SECONDS, **options: str
    ) -> requests.Response:
        """Send one request to the NameNode. The caller handles a redirection to a DataNode."""
        with wait_for(f"the NameNode at {self.fs.url.partition('/webhdfs')[0]}"):
            response: requests.Response = self.fs.session.request(
                method,
                self.fs.url + quote(path, safe="/="),
                params={**self.fs.pars, **options, "op": op},
                allow_redirects=False,
                timeout=(CONNECT_TIMEOUT_SECONDS, seconds),
            )
        return response


def _user() -> str:
    """Return the user name for HDFS. Raises InvalidPipeline: this process has none."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise InvalidPipeline(
            "the user name for HDFS is not known.",
            f"User id {os.getuid()} has no name on this machine.",
            "Set HADOOP_USER_NAME. Nothing was written.",
            code="hdfs-user-unknown",
        ) from error


def _parse_address(address: str) -> SplitResult:
    """Return the parsed address.

    Raises:
        InvalidPipeline: it cannot be used. The error does not repeat it: it may contain a password.
    """
    parts = urlsplit(address)
    has_path = f"{parts.scheme}://{parts.netloc}" != address.rstrip("/")
    port = parts.netloc.rpartition(":")[2] if ":" in parts.netloc else "0"
    has_server = parts.scheme in PORTS and parts.hostname and port.isdecimal()
    if not has_server or has_path or "@" in parts.netloc:
        raise InvalidPipeline(
            "the address of WebHDFS cannot be used.",
            "It must have the form http(s)://host:port, without a user, password or path.",
            "Set ONCEONLY_WEBHDFS=http://namenode:9870. Nothing was written.",
            code="uri-invalid",
        )
    return parts


class _WithTimeout(HTTPAdapter):
    """Gives every request a timeout, and names the server in errors without the query."""

    def send(self, request: Any, stream: Any = False, timeout: Any = None, *more: Any, **options: Any) -> Any:
        try:
            return super().send(
                request, stream, timeout or (CONNECT_TIMEOUT_SECONDS, RESPONSE_TIMEOUT_SECONDS), *more, **options
            )
        except requests.RequestException as error:
            parts = urlsplit(request.url)
            why = f"{parts.scheme}://{parts.netloc} does not answer ({type(error).__name__})"
            raise Unreachable(why) from error


def _raise_error(response: requests.Response, **_: Any) -> None:
    """Raise the error that a local file system would raise. fsspec ignores some error responses."""
    if response.status_code < 400:
        return
    server = "{0.scheme}://{0.netloc}".format(urlsplit(response.url))
    try:
        remote = response.json()["RemoteException"]
    except (ValueError, KeyError, TypeError):
        kind = PermissionError if response.status_code in (401, 403) else OSError
        raise kind(f"{server} returned {response.status_code} {response.reason}") from None
    first_line = str(remote.get("message")).splitlines()[0]
    raise ERRORS.get(remote["exception"], OSError)(f"{remote['exception']} of {server}: {first_line}")
