"""How a folder on Azure Blob Storage is called: az://CONTAINER/…, and abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/….

delta-rs knows both; Hadoop, and so Spark, only the second one.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline

SHORT, LONG = ("az", "azure"), ("abfs", "abfss")
SCHEMES = SHORT + LONG
NAME, EMULATOR = "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_USE_EMULATOR"
KEY, TOKEN = "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"
HOST = "dfs.core.windows.net"


class Place(NamedTuple):
    """A folder: its container, the host of its account, and its path in the container."""

    container: str
    host: str
    path: str

    @property
    def root(self) -> str:
        """The container's URI; abfs is the same without TLS, as the emulator speaks."""
        return f"{'abfs' if is_emulated() else 'abfss'}://{self.container}@{self.host}"

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.path}"

    @property
    def account(self) -> str:
        return self.host.partition(".")[0]


def is_emulated(env: Mapping[str, str] = os.environ) -> bool:
    return env.get(EMULATOR, "").lower() in ("true", "1")


def parse(uri: str, env: Mapping[str, str] = os.environ) -> Place:
    """Return the place that a URI names; the path is taken literally.

    Raises:
        InvalidPipeline: no container, no account, or no folder in it.
    """
    scheme, _, rest = uri.partition("://")
    place, _, path = rest.partition("/")
    clean = posixpath.normpath("/" + path.lstrip("/")).strip("/")
    if scheme.lower() in LONG:
        container, _, host = place.rpartition("@")
    else:
        container, host = place, _host(uri, env)
    if not container or not host or not clean or "@" in container or ":" in container:
        raise InvalidPipeline(
            f"'{urlsplit(uri).scheme}://…/{path}' cannot be used.",
            "It must name a container and a folder, without a login.",
            f"Write it as in az://lake/delays, or abfss://lake@account.{HOST}/delays. Nothing was written.",
        )
    return Place(container, host, clean)


def hadoop(uri: str) -> str:
    """Return the URI by which Spark knows what is called az:// elsewhere; any other one stays."""
    return parse(uri).uri if urlsplit(uri).scheme.lower() in SHORT else uri


def _host(uri: str, env: Mapping[str, str]) -> str:
    """Return the host of the account that the environment names. Raises InvalidPipeline: it names none."""
    if account := env.get(NAME):
        return f"{account}.{HOST}"
    raise InvalidPipeline(
        f"{uri} cannot be reached.",
        "It names no Azure Storage account.",
        f"Set {NAME}, or write abfss://CONTAINER@ACCOUNT.{HOST}/PATH. Nothing was written.",
    )
