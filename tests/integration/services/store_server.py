"""A server of an object store, with one empty bucket; a test may kill it, and starts it again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from integration.faults.s3_proxy import Handler
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until

BUCKET = "lake"
KEY = "onceonly-tests"  # of a server that only this test run knows


@dataclass
class StoreServer:
    """`s3.S3`, `azure.Azure`, `gcs.Gcs`."""

    folder: Path
    port: int
    bucket: str = BUCKET
    process: subprocess.Popen[bytes] | None = None

    scheme: ClassVar[str]
    timeout: ClassVar[str]  # the variable that tells delta-rs how long to wait for an answer
    handler: ClassVar[type[Handler]] = Handler  # of proxies before it
    end: ClassVar[signal.Signals] = signal.SIGKILL

    @property
    def environment(self) -> Mapping[str, str]:
        """What delta-rs and the store's clients read."""
        return self.environment_at(self.port)

    def environment_at(self, port: int) -> Mapping[str, str]:
        """The same, through a proxy at that port."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def secrets(self) -> Mapping[str, str]:
        """For the server's environment: arguments are seen by all."""
        return {}

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def uri(self, name: str) -> str:
        return f"{self.scheme}://{self.bucket}/{name}"

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=log, env={**os.environ, **self.secrets()}, start_new_session=True
            )
        wait_until(self._answers, "the store answers", PATIENCE, every=0.05)

    def kill(self, how: signal.Signals | None = None) -> None:
        if self.process:
            os.killpg(self.process.pid, how or self.end)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def installed(name: str, *elsewhere: str) -> str | None:
    """The path of that command: on the PATH, or in one of these folders of the user's home."""
    found = (shutil.which(name, path=str(Path.home() / folder)) for folder in elsewhere)
    return shutil.which(name) or next(filter(None, found), None)
