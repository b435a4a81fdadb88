"""How folders are called: local paths, and the URIs of each store, which its clients do not all write alike."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from onceonly.errors import InvalidPipeline

LOCAL_SCHEMES = ("", "file")
S3_SCHEMES = ("s3", "s3a")  # s3a, as Spark calls it, is the same place
# az://CONTAINER/… and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…: delta-rs knows both; Hadoop only the second.
AZURE_SHORT_SCHEMES, AZURE_LONG_SCHEMES = ("az", "azure"), ("abfs", "abfss")
AZURE_SCHEMES = AZURE_SHORT_SCHEMES + AZURE_LONG_SCHEMES
GOOGLE_SCHEMES = ("gs",)
ARBITRATING_SCHEMES = {*S3_SCHEMES, *AZURE_SCHEMES, *GOOGLE_SCHEMES, "adl"}  # those that can; each store is tried
HDFS_PREFIX = "hdfs://"
AZURE_ACCOUNT, AZURE_EMULATOR = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"
AZURE_HOST = "dfs.core.windows.net"


def local_path(uri: str) -> Path | None:
    """Return the folder that a path or file:// URI names; None for an object store."""
    parts = urlsplit(uri)
    if parts.scheme.lower() not in LOCAL_SCHEMES:
        return None
    return Path(unquote(parts.path) if parts.scheme else uri).absolute()


def spark_uri(uri: str) -> str:
    """Return the URI by which Spark knows what others call s3:// or az://, or write with %20.

    Spark takes a path literally.
    """
    scheme = urlsplit(uri).scheme.lower()
    if scheme == "file":
        return f"file://{local_path(uri)}"
    if uri.startswith("s3://"):
        return uri.replace("s3://", "s3a://", 1)
    if scheme in AZURE_SHORT_SCHEMES:
        return AzureFolder.parse(uri).uri
    return uri


def split_hdfs_uri(uri: str) -> tuple[str, str]:
    """Return (host:port, path) of an hdfs:// URI.

    Hadoop takes the path literally: '%', '#' and '?' have no special meaning.

    Raises:
        InvalidPipeline: no NameNode, a user name before it, or no folder below the root.
    """
    authority, _, path = uri.removeprefix(HDFS_PREFIX).partition("/")
    clean_path = f"/{_normalise(path)}"
    if not authority or "@" in authority or clean_path == "/":
        raise InvalidPipeline(
            f"'{HDFS_PREFIX}…/{path}' cannot be used.",
            "It must name a NameNode and a folder below the root, without a user.",
            "Write it as in hdfs://namenode:8020/lake/delays. Nothing was written.",
            code="uri-invalid",
        )
    return authority, clean_path


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Return (bucket, path) of an s3:// URI. The path is taken literally: '%', '#' and '?' have no special meaning.

    Raises:
        InvalidPipeline: no bucket, a login before it, or no folder in it.
    """
    return _split_bucket(uri, urlsplit(uri).scheme, "s3://lake/delays")


def split_google_uri(uri: str) -> tuple[str, str]:
    """Return (bucket, path) of a gs:// URI; see `split_s3_uri`."""
    return _split_bucket(uri, "gs", "gs://lake/delays")


def _split_bucket(uri: str, scheme: str, example: str) -> tuple[str, str]:
    bucket, _, path = uri.partition("://")[2].partition("/")
    clean_path = _normalise(path)
    if not bucket or "@" in bucket or not clean_path:
        raise InvalidPipeline(
            f"'{scheme}://…/{path}' cannot be used.",
            "It must name a bucket and a folder, without a login.",
            f"Write it as in {example}. Nothing was written.",
            code="uri-invalid",
        )
    return bucket, clean_path


def _normalise(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/")).strip("/")


class AzureFolder(NamedTuple):
    """A folder on Azure Blob Storage: its container, the host of its account, and its path in the container."""

    container: str
    host: str
    path: str

    @classmethod
    def parse(cls, uri: str, env: Mapping[str, str] = os.environ) -> AzureFolder:
        """Return the folder that a URI names; the path is taken literally.

        Raises:
            InvalidPipeline: no container, no account, or no folder in it.
        """
        scheme, _, rest = uri.partition("://")
        authority, _, path = rest.partition("/")
        clean_path = _normalise(path)
        if scheme.lower() in AZURE_LONG_SCHEMES:
            container, _, host = authority.rpartition("@")
        else:
            container, host = authority, _azure_host(uri, env)
        if not container or not host or not clean_path or "@" in container or ":" in container:
            raise InvalidPipeline(
                f"'{urlsplit(uri).scheme}://…/{path}' cannot be used.",
                "It must name a container and a folder, without a login.",
                f"Write it as in az://lake/delays, or abfss://lake@account.{AZURE_HOST}/delays. Nothing was written.",
                code="uri-invalid",
            )
        return cls(container, host, clean_path)

    @property
    def root(self) -> str:
        """The container's URI; abfs is the same without TLS, as the emulator speaks."""
        return f"{'abfs' if is_azure_emulated() else 'abfss'}://{self.container}@{self.host}"

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.path}"

    @property
    def account(self) -> str:
        return self.host.partition(".")[0]


def is_azure_emulated(env: Mapping[str, str] = os.environ) -> bool:
    return env.get(AZURE_EMULATOR, "").lower() in ("true", "1")


def _azure_host(uri: str, env: Mapping[str, str]) -> str:
    """Return the host of the account that the environment names. Raises InvalidPipeline: it names none."""
    account = env.get(AZURE_ACCOUNT)
    if account:
        return f"{account}.{AZURE_HOST}"
    raise InvalidPipeline(
        f"{uri} cannot be reached.",
        "It names no Azure Storage account.",
        f"Set {AZURE_ACCOUNT}, or write abfss://CONTAINER@ACCOUNT.{AZURE_HOST}/PATH. Nothing was written.",
        code="uri-invalid",
    )


def find_unsafe_setting(uri: str) -> str | None:
    """Return the setting in the environment by which writers there do not exclude each other; None: there is none."""
    if urlsplit(uri).scheme.lower() not in S3_SCHEMES:
        return None
    if os.environ.get("AWS_S3_ALLOW_UNSAFE_RENAME", "").lower() in ("1", "true"):
        return "AWS_S3_ALLOW_UNSAFE_RENAME is set: the last writer would win silently."
    if os.environ.get("AWS_CONDITIONAL_PUT", "etag").lower() == "disabled":
        return "AWS_CONDITIONAL_PUT is disabled: without put-if-absent the last writer would win silently."
    return None
