"""For the tests in which Spark writes to an object store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from integration.projects.light_stores import Reader, reader
from integration.services import spark_on_stores
from integration.services.store_server import StoreServer
from integration.services.stores import MOST

numbers = count()


@pytest.fixture(scope="module", params=MOST)
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with spark_on_stores.reached(request, request.param) as made:
        yield made


@pytest.fixture
def name(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a folder that no other test has; this process reaches the store."""
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    return f"by-spark-{next(numbers)}"


@pytest.fixture
def shown(name: str, store: StoreServer) -> Reader:
    return reader(store.uri("").rstrip("/"))


@pytest.fixture(scope="module")
def spark_there(store: StoreServer, spark_server: str) -> Iterator[Any]:
    session = spark_on_stores.session(spark_server, store)
    yield session
    session.stop()
