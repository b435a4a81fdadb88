"""A Spark Connect client: its token, and how long it waits for a server that does not answer.

By default it retries each call for ten minutes, and once more when its process exits, to clear a cache that Onceonly
does not use. A server that dies loses its sessions, so retries help only against a short network failure.
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
from onceonly.spark import jvm_jar
from onceonly.spark.conf import TOKEN_FILE
from onceonly.waits import wait_for

DEFAULT_PORT = 15002  # Spark's own
MAX_RETRIES, MAX_WAIT_MILLIS = 8, 3000  # between two; 18 s in all


class _ShortRetries(DefaultPolicy):
    """A policy of few retries. After one call has used them up, later calls do not retry."""

    def __init__(self) -> None:
        super().__init__(max_retries=MAX_RETRIES, max_backoff=MAX_WAIT_MILLIS)

    def to_state(self) -> RetryPolicyState:
        return _ShortRetriesState(self)


class _ShortRetriesState(RetryPolicyState):
    def next_attempt(self, exception: BaseException | None = None) -> int | None:
        wait = super().next_attempt(exception)
        if wait is None:
            self.policy.max_retries = 0
        return wait


@cache
def limit_retries(client: Any) -> None:
    """Let the client give up soon, and its process exit without a last call."""
    client.set_retry_policies([_ShortRetries()])
    atexit.register(client.close)  # runs before the client's own exit handler, which a closed client skips


def address(remote: str, home: Path) -> str:
    """Return `remote`, with the token added if it is the address of this home's embedded server.

    PySpark sends a token over an unencrypted connection only if the host is named "localhost".
    """
    with suppress(OSError, ValueError):
        embedded = json.loads((home / "services.json").read_text())["spark"]
        if embedded and _is_same_server(embedded, remote):
            return f"{embedded}/;token={(home / TOKEN_FILE).read_text()}"
    return remote


def open_session(remote: str, home: Path) -> Any:
    """Return the process's session; a new one if there is none, or if it has ended.

    A session ends when the server starts again or refuses its token, and after a check of the server. PySpark keeps the
    ended one as the process's, and then gives each caller a session that no other finds, not even to interrupt it.
    """
    from pyspark.sql.connect.session import SparkSession

    with SparkSession._lock:  # not around the builder, which takes two other locks before this one
        if SparkSession._get_default_session() is None:
            SparkSession._default_session = None
    connected = _builder(remote, home).getOrCreate()
    limit_retries(connected.client)
    return connected


def _builder(remote: str, home: Path) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    return builder.remote(address(remote, home))


def name_server(remote: str) -> str:
    """Name the server as what is waited for, without its options: a token may be among them."""
    return f"the Spark Connect server at {remote.partition('/;')[0]}"


def _is_same_server(embedded: str, remote: str) -> bool:
    """Return whether `remote` is the address of the embedded server, and has no options."""
    url = urlsplit(remote)
    is_plain = url.hostname in ("localhost", "127.0.0.1") and url.path in ("", "/")
    return is_plain and (url.port or DEFAULT_PORT) == urlsplit(embedded).port


def require_session(remote: str, home: Path) -> bool:
    """Open a session of its own and close it again; returns whether its Spark has the jar of this package.

    Raises:
        InvalidPipeline: the server refused the token, no session can be had from it, or it has another version of
            that jar.
    """
    connected = _builder(remote, home).create()
    limit_retries(connected.client)
    place = remote.partition("/;")[0]
    try:
        with wait_for(name_server(remote)), explain_refused_token(remote, connected.client):
            connected.range(1).count()
            return jvm_jar.is_in_session(connected)
    except SparkConnectGrpcException as error:
        raise InvalidPipeline(
            f"the Spark Connect server at {place} gives no session.",
            str(error).strip().partition("\n")[0],
            "Is it a Spark Connect server, with TLS (use_ssl) or without, and of a supported Spark? Correct "
            "the address. Nothing was written.",
            code="spark-unreachable",
        ) from error
    finally:
        with suppress(Exception):
            connected.client.close()


@contextmanager
def explain_refused_token(remote: str, client: Any) -> Iterator[None]:
    """Name, around a client's first call, a server that refuses its token, and close the client.

    Raises:
        InvalidPipeline: the server refused the token, or there was none.
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
            "Set its token as password of the Airflow connection, or in SPARK_CONNECT_AUTHENTICATE_TOKEN. The token of "
            "`onceonly services up --spark` is found if ONCEONLY_HOME is the same folder. Nothing was written.",
            code="spark-token-refused",
        ) from error
