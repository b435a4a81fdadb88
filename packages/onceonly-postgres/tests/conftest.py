"""A real server for the tests of this package, and the package as an installer would leave it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from contract.parts import is_in_part
from installed import read_project, write_metadata
from integration.services import postgres
from integration.services.postgres import Postgres
from targets import connection_variable

from onceonly import error_codes

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def pytest_itemcollected(item: pytest.Item) -> None:
    """`make test` takes the part that a class of the suite names; `make heavy` the rest."""
    if isinstance(item, pytest.Function) and not is_in_part(item):
        item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let Python find the package's entry points, unless it is installed."""
    if entry_points(group="onceonly.sinks", name="postgres"):
        yield
        return
    folder = tmp_path_factory.mktemp("site")
    write_metadata(folder, read_project(PROJECT.read_text()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(folder), *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
        error_codes.read_installed.cache_clear()
        yield
    error_codes.read_installed.cache_clear()


@pytest.fixture(scope="session")
def database_server() -> Iterator[Postgres]:
    """A server that loses nothing in a crash. Tests have tables of their own."""
    if postgres.programs() is None:
        pytest.skip("there is no PostgreSQL server here: apt install postgresql")
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        server = Postgres(folder, "max_connections=60", "deadlock_timeout=100ms")
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def database(database_server: Postgres, monkeypatch: pytest.MonkeyPatch) -> Postgres:
    """The server, to which the connection CONNECTION leads."""
    monkeypatch.setenv(*connection_variable(database_server.port))
    return database_server
