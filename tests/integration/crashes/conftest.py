"""For the tests that kill processes at their requests to an object store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from integration.faults.s3_proxy import Proxy, proxy
from integration.services.store_server import StoreServer
from integration.services.stores import running


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """S3, unless a test names others."""
    with running(request, getattr(request, "param", "s3")) as made:
        yield made


@pytest.fixture
def server(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> StoreServer:
    """This process asks it directly."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store


@pytest.fixture
def between(server: StoreServer) -> Iterator[Proxy]:
    """Through which a process asks that is to be killed."""
    with proxy(server) as running:
        yield running
