"""A real S3 server that arbitrates conditional puts, and survives SIGKILL: versitygw, where it was built.

go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.services.store_server import BUCKET, KEY, StoreServer, installed

from onceonly.dev.services import machine

BINARY = installed("versitygw", "go/bin")
MISSING = "versitygw is not installed: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"


@dataclass
class S3(StoreServer):
    """See `StoreServer`."""

    secret: str = KEY
    scheme = "s3"
    timeout = "AWS_TIMEOUT"

    def environment_at(self, port: int) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def command(self) -> list[str]:
        (self.data / self.bucket).mkdir(exist_ok=True)
        return [str(BINARY), "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", str(self.data)]

    def secrets(self) -> Mapping[str, str]:
        return {"ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": self.secret}


@contextmanager
def server(secret: str = KEY, bucket: str = BUCKET) -> Iterator[S3]:
    with TemporaryDirectory(prefix="onceonly-s3-") as folder:
        made = S3(Path(folder), machine.free_port(), bucket, secret=secret)
        try:
            made.start()
            yield made
        finally:
            made.kill()
