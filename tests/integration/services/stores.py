"""The object stores whose servers this machine may have: S3, and emulators of Azure and Google."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from integration.services import azurite, gcs
from integration.services import s3 as s3_server
from integration.services.store_server import StoreServer

SERVERS: dict[str, Any] = {"s3": s3_server, "azure": azurite, "gcs": gcs}
MOST = ["s3", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("azure", "gcs"))]
everywhere = pytest.mark.parametrize("store", list(SERVERS), indirect=True)
on_most = pytest.mark.parametrize("store", MOST, indirect=True)


@contextmanager
def running(request: pytest.FixtureRequest, name: str, by_spark: bool = False) -> Iterator[StoreServer]:
    """The server of that store, of this test process alone: a test may kill it, and starts it again.

    Args:
        by_spark: Spark writes there, and the server is not killed. Its bucket has a name of its own: of a bucket, Spark
            knows one server as long as it lives, and other tests have others.
    """
    server = SERVERS[name]
    if server.BINARY is None:
        pytest.skip(server.MISSING)
    if name == "s3" and not by_spark:
        yield request.getfixturevalue("s3")
    else:
        own = {"bucket": f"spark-{uuid.uuid4().hex[:12]}"} if by_spark else {}
        kept = {"backend": "memory"} if by_spark and name == "gcs" else {}
        with server.server(**own, **kept) as made:
            yield made
