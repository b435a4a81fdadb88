"""A Spark Connect client: with which token it comes, and how long it waits for a server that does not answer.

By itself it tries for ten minutes, call by call, and once more as its process exits, to clean a cache that Onceonly
does not use. A server that has died takes its sessions along: all that is worth waiting for is a break of the network.
"""

from __future__ import annotations

import atexit
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.client.retries import DefaultPolicy, RetryPolicyState

from onceonly.errors import InvalidPipeline
from onceonly.spark.conf import TOKEN_FILE

DEFAULT_PORT = 15002  # Spark's own
TRIES, LONGEST_WAIT = 8, 3000  # milliseconds between two; 18 s in all


class _Patience(DefaultPolicy):
    """Once a call has waited in vain, those that follow do not wait again."""

    def __init__(self) -> None:
        super().__init__(max_retries=TRIES, max_backoff=LONGEST_WAIT)

    def to_state(self) -> RetryPolicyState:
        return _Waiting(self)


class _Waiting(RetryPolicyState):
    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        wait = super().next_attempt(exception)
        if wait is None:
            self.policy.max_retries = 0
        return wait


@cache
def bound(client: Any) -> None:
    """Let that client give up soon, and its process end without a last call."""
    client.set_retry_policies([_Patience()])
    atexit.register(client.close)  # runs before the client's own farewell, which a closed client omits


def address(remote: str, home: Path) -> str:
    """`remote`, with the token of the embedded server of this home where it is that one's address.

    PySpark sends a token over an unencrypted connection to "localhost" only, under no other name.
    """
    with suppress(OSError, ValueError):
        known = json.loads((home / "services.json").read_text())["spark"]
        if known and _same(known, remote):
            return f"{known}/;token={(home / TOKEN_FILE).read_text()}"
    return remote


def _same(known: str, remote: str) -> bool:
    there = urlsplit(remote)
    plain = there.hostname in ("localhost", "127.0.0.1") and there.path in ("", "/")
    return plain and (there.port or DEFAULT_PORT) == urlsplit(known).port


@contextmanager
def refusal(remote: str, client: Any) -> Iterator[None]:
    """Around a client's first call: a server that does not take its token is named; the next session is a new one.

    Raises:
        InvalidPipeline: the server has refused the token, or that there was none.
    """
    try:
        yield
    except SparkConnectGrpcException as error:
        if "token" not in str(error):
            raise
        with suppress(Exception):
            client.close()
        place = remote.partition("/;")[0]
        raise InvalidPipeline(
            f"the Spark Connect server at {place} refuses this process.",
            str(error).strip(),
            "Give its token: as password of the Airflow connection, or by SPARK_CONNECT_AUTHENTICATE_TOKEN. That of "
            "`onceonly services up --spark` is found where ONCEONLY_HOME is that server's. Nothing was written.",
        ) from error
