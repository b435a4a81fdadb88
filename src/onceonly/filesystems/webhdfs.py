"""Folders on HDFS over HTTP: fsspec's WebHDFS, made to end in time, to say what went wrong and never to overwrite.

No JVM and no Hadoop library. What hdfs://namenode:8020/… names is asked of the NameNode's HTTP address: the given one,
else http://namenode:9870, Hadoop's own default. The user is Hadoop's, too: HADOOP_USER_NAME, else the process's.

Every error is an OSError: FileNotFoundError, FileExistsError, NotADirectoryError and PermissionError say what they say;
Unreachable: nobody answered in time. What the request has done is not known then.
"""

from __future__ import annotations

import getpass
import os
import posixpath
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

SCHEME = "hdfs://"
CONNECT, ANSWER = 10.0, 60.0  # seconds
PORTS = {"http": 9870, "https": 9871}
ERRORS: Mapping[str, type[OSError]] = {
    "AccessControlException": PermissionError,
    "FileAlreadyExistsException": FileExistsError,
    "FileNotFoundException": FileNotFoundError,
    "ParentNotDirectoryException": NotADirectoryError,
    "SecurityException": PermissionError,
}


class Unreachable(ConnectionError):
    """No answer, or none in time."""


class Cluster:
    """The HDFS that a URI names.

    Args:
        uri: of anything on it, hdfs://namenode:8020/….
        address: of its NameNode, http(s)://host:port.
    Raises:
        InvalidPipeline: the URI or the address cannot be used, or this process has no user name.
    """

    def __init__(self, uri: str, address: str | None = None) -> None:
        authority, _ = split(uri)
        self.root = SCHEME + authority
        asked = _checked(address or f"http://{urlsplit(self.root).hostname}")
        port = asked.port or PORTS[asked.scheme]
        self.address = f"{asked.scheme}://{asked.hostname}:{port}"
        self.user = _user()
        self.fs: Any = WebHDFS(
            asked.hostname, port, user=self.user, use_https=asked.scheme == "https", skip_instance_cache=True
        )
        for prefix in ("http://", "https://"):
            self.fs.session.mount(prefix, _Limited())
        self.fs.session.hooks["response"].append(_raise)

    def path(self, uri: str) -> str:
        """What `fs` calls it.

        Raises:
            FileNotFoundError: it is on another cluster.
        """
        if uri != self.root and not uri.startswith(f"{self.root}/"):
            raise FileNotFoundError(f"{uri} is not on {self.root}")
        return uri.removeprefix(self.root)

    def rename(self, old: str, new: str) -> None:
        """In one step; never over anything, nor into a folder of that name.

        Source: Hadoop's `rename2`. The rename without options, fsspec's `mv`, answers false where it refuses and moves
        a file *into* a folder that has its name.
        """
        answer = self.ask("put", "RENAME", self.path(old), destination=self.path(new), renameoptions="NONE")
        if answer.content:
            raise OSError(f"{self.address} does not know the option 'renameoptions': it renames in its own way")

    def create(self, path: str, content: bytes) -> None:
        """A new file, closed when this returns."""
        answer = self.ask("put", "CREATE", self.path(path), overwrite="false")
        self.fs.session.put(answer.headers["Location"], data=content)

    def dataset(
        self,
        source: pafs.FileSelector | list[str],
        base: str,
        format: ds.FileFormat,
        schema: pa.Schema | None = None,
        by: pa.Schema | None = None,
    ) -> ds.Dataset:
        """As `pyarrow.dataset.dataset`, which looks for the schema while it holds the GIL that `fs` needs: a deadlock.

        Args:
            base: the folder below which the names of folders are columns.
            schema, by: of all columns, and of those that are names of folders; by default as they look.
        """
        hive = ds.partitioning(by, flavor="hive")
        options = ds.FileSystemFactoryOptions(partitioning=hive, partition_base_dir=base)
        files = pafs.PyFileSystem(pafs.FSSpecHandler(self.fs))
        factory = ds.FileSystemDatasetFactory(files, source, format, options)
        return factory.finish(schema or factory.inspect(fragments=1))

    def ask(self, method: str, op: str, path: str, seconds: float = ANSWER, **options: str) -> requests.Response:
        """One request to the NameNode; a redirection to a DataNode is left to the caller."""
        answer: requests.Response = self.fs.session.request(
            method,
            self.fs.url + quote(path, safe="/="),
            params={**self.fs.pars, **options, "op": op},
            allow_redirects=False,
            timeout=(CONNECT, seconds),
        )
        return answer


def _user() -> str:
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise InvalidPipeline(
            "the user name for HDFS is not known.",
            f"User id {os.getuid()} has no name on this machine.",
            "Set HADOOP_USER_NAME. Nothing was written.",
        ) from error


def split(uri: str) -> tuple[str, str]:
    """(host:port, path) of an hdfs:// URI. Hadoop takes all of its path as it is: '%', '#' and '?' mean nothing.

    Raises:
        InvalidPipeline: no NameNode, a user in front of it, or no folder below the root.
    """
    authority, _, path = uri.removeprefix(SCHEME).partition("/")
    clean = posixpath.normpath("/" + path.lstrip("/")).rstrip("/")
    if not authority or "@" in authority or not clean:
        raise InvalidPipeline(
            f"'{SCHEME}…/{path}' cannot be used.",
            "It must name a NameNode, no user, and a folder below the root.",
            "Write it as in hdfs://namenode:8020/lake/delays. Nothing was written.",
        )
    return authority, clean


def _checked(address: str) -> SplitResult:
    """Nothing of it is repeated in the error: it may hold a password."""
    parts = urlsplit(address)
    bare = f"{parts.scheme}://{parts.netloc}" == address.rstrip("/")
    port = parts.netloc.rpartition(":")[2] if ":" in parts.netloc else "0"
    if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc or not (bare and port.isdecimal()):
        raise InvalidPipeline(
            "the address of WebHDFS cannot be used.",
            "It is no http(s)://host:port, or holds more than that: no user, password or path is taken.",
            "Set ONCEONLY_WEBHDFS=http://namenode:9870. Nothing was written.",
        )
    return parts


class _Limited(HTTPAdapter):
    """No request waits for ever, and a failed one says who was asked, without the query."""

    def send(self, request: Any, stream: Any = False, timeout: Any = None, *more: Any, **named: Any) -> Any:
        try:
            return super().send(request, stream, timeout or (CONNECT, ANSWER), *more, **named)
        except requests.RequestException as error:
            parts = urlsplit(request.url)
            why = f"{parts.scheme}://{parts.netloc} does not answer ({type(error).__name__})"
            raise Unreachable(why) from error


def _raise(answer: requests.Response, **_: Any) -> None:
    """What HDFS refuses, as the error that a local file system would raise. fsspec overlooks some of it."""
    if answer.status_code < 400:
        return
    server = "{0.scheme}://{0.netloc}".format(urlsplit(answer.url))
    try:
        told = answer.json()["RemoteException"]
    except (ValueError, KeyError, TypeError):
        kind = PermissionError if answer.status_code in (401, 403) else OSError
        raise kind(f"{server} answers {answer.status_code} {answer.reason}") from None
    first_line = str(told.get("message")).splitlines()[0]
    raise ERRORS.get(told["exception"], OSError)(f"{told['exception']} of {server}: {first_line}")
