"""A server of one test alone, which may do with it what it likes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from integration.services import postgres
from integration.services.postgres import Postgres
from targets import connection_variable


@contextmanager
def own_server(folder: str, patch: pytest.MonkeyPatch, *settings: str) -> Iterator[Postgres]:
    """Start a server with its data in the folder, and let the connection lead to it."""
    if postgres.programs() is None:
        pytest.skip("there is no PostgreSQL server here: apt install postgresql")
    server = Postgres(folder, *settings)
    server.start()
    patch.setenv(*connection_variable(server.port))
    try:
        yield server
    finally:
        if server.is_running:
            server.stop()
