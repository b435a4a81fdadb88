"""Azurite, Microsoft's emulator of Azure Blob Storage, where it is installed.

npm install --global --prefix ~/.local azurite@3.35.0

Spark's connector sees each folder twice there: by the marker that it has put, and by what is in it. So a proxy before
the emulator leaves the marker out of a list that also has the folder.
"""

from __future__ import annotations

import base64
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow.fs as pafs
from integration.faults.s3_proxy import Answer, Handler, proxy
from integration.services.store_server import BUCKET, KEY, StoreServer, installed

from onceonly.dev.services import machine

BINARY = installed("azurite-blob", ".local/bin")
MISSING = "azurite is not installed: npm install --global --prefix ~/.local azurite@3.35.0"
ACCOUNT = "onceonlytests"
SECRET = base64.b64encode(KEY.encode()).decode()
FOLDER = re.compile(rb"<BlobPrefix><Name>(.*?)/</Name>")
MARKER = rb"<Blob><Name>%s</Name>.*?</Blob>"


class Translator(Handler):
    """A list names each folder once."""

    def _ask(self, body: bytes) -> Answer | None:
        found = super()._ask(body)
        if found is None or self.command != "GET" or "comp=list" not in self.path:
            return found
        status, headers, listed = found
        for folder in FOLDER.findall(listed):
            listed = re.sub(MARKER % re.escape(folder), b"", listed)
        return status, headers, listed


class Late(Translator):
    """Of a copy, the first answer says that the store makes it later."""

    def _ask(self, body: bytes) -> Answer | None:
        found = super()._ask(body)
        if found and self.command == "PUT" and "x-ms-copy-source" in self.headers:
            return found[0], {**found[1], "x-ms-copy-status": "pending"}, found[2]
        return found


class Failing(Late):
    """And then, that it has not made it."""

    def _ask(self, body: bytes) -> Answer | None:
        found = super()._ask(body)
        if found and self.command == "HEAD" and "x-ms-copy-status" in found[1]:
            return found[0], {**found[1], "x-ms-copy-status": "failed"}, found[2]
        return found


@dataclass
class Azure(StoreServer):
    """See `StoreServer`."""

    front: int = 0  # the port of the translator
    scheme = "az"
    timeout = "AZURE_TIMEOUT"
    handler = Translator
    end = signal.SIGTERM  # it writes its index every 5 s, and at the end: SIGKILL loses what it has acknowledged

    @property
    def environment(self) -> Mapping[str, str]:
        return self.environment_at(self.front)

    def environment_at(self, port: int) -> Mapping[str, str]:
        return {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": f"http://127.0.0.1:{port}",
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": SECRET,
        }

    def command(self) -> list[str]:
        port = ["--blobPort", str(self.port), "--blobKeepAliveTimeout", "1"]
        quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        return [str(BINARY), *port, *quiet, "--location", str(self.data)]

    def secrets(self) -> Mapping[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"}

    def make_container(self) -> None:
        here = f"127.0.0.1:{self.port}"
        pafs.AzureFileSystem(
            account_name=ACCOUNT,
            account_key=SECRET,
            blob_storage_authority=here,
            blob_storage_scheme="http",
            dfs_storage_authority=here,
            dfs_storage_scheme="http",
        ).create_dir(self.bucket)


@contextmanager
def server(bucket: str = BUCKET) -> Iterator[Azure]:
    with TemporaryDirectory(prefix="onceonly-azure-", ignore_cleanup_errors=True) as folder:
        made = Azure(Path(folder), machine.free_port(), bucket)
        try:
            made.start()
            made.make_container()
            with proxy(made) as translator:
                made.front = translator.port
                yield made
        finally:
            made.kill(signal.SIGKILL)
