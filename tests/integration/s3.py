"""A real S3 server that arbitrates conditional puts, and survives SIGKILL: versitygw, where it was built.

go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from patience import PATIENCE

from onceonly.dev.demo.standalone import free_port
from onceonly.dev.demo.wait import until

BINARY = shutil.which("versitygw") or next(map(str, Path.home().glob("go/bin/versitygw")), None)
MISSING = "versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"
BUCKET = "lake"
KEY = "onceonly-tests"  # of a server that only this test run knows


@dataclass
class S3:
    """One server with one empty bucket; it can be killed and started again."""

    folder: Path
    port: int
    secret: str = KEY
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """What delta-rs and the AWS clients read."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def start(self) -> None:
        (self.folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
        command = [str(BINARY), "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder / "data")]
        with (self.folder / "log").open("ab") as log:
            keys = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": self.secret}  # arguments are seen by all
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=keys, start_new_session=True)
        until(self._answers, "the S3 server answers", PATIENCE)

    def kill(self) -> None:
        if self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


@contextmanager
def server(secret: str = KEY) -> Iterator[S3]:
    with TemporaryDirectory(prefix="onceonly-s3-") as folder:
        made = S3(Path(folder), free_port(0), secret)
        try:
            made.start()
            yield made
        finally:
            made.kill()
