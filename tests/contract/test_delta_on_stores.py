"""The suite on the Delta sink of emulators of Azure and Google; its rows are staged without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from contract.delta_breaks import DELTA_BREAKS
from contract.stored import digest
from deltalake import DeltaTable, QueryBuilder
from integration.projects.light_stores import reader
from integration.services.store_server import StoreServer
from integration.services.stores import running
from unit.lightdelta import LightDelta

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing.contract import Rows, SinkContract, Target

pytestmark = [pytest.mark.integration, pytest.mark.heavy]
numbers = count()


@dataclass(frozen=True)
class Delta(Target):
    root: str
    name: str

    @property
    def uri(self) -> str:
        return f"{self.root}/{self.name}/out"

    def sink(self) -> Sink:
        return LightDelta(self.uri)  # type: ignore[arg-type]

    def published(self) -> list[int]:
        if not DeltaTable.is_deltatable(self.uri):
            return []
        query = QueryBuilder().register("numbers", DeltaTable(self.uri))
        found: list[int] = query.execute("SELECT n FROM numbers ORDER BY n").read_all()["n"].to_pylist()
        return found

    def digests(self) -> Mapping[str, str]:
        """Objects of the last version, and entries of the log, as a plain client reads them."""
        if not DeltaTable.is_deltatable(self.uri):
            return {}
        store, folder = reader(self.root), f"{self.name}/out/"
        log = [key for key in store.keys(f"{folder}_delta_log/") if key.endswith(".json")]
        files = [f"{folder}{uri.rpartition(f'/{folder}')[2]}" for uri in DeltaTable(self.uri).file_uris()]
        return {key: digest(store.content(key)) for key in [*files, *log]}

    def traces(self, txn: Transaction) -> list[Any]:
        return [key for key in reader(self.root).keys(f"{self.name}/") if txn.name in key]


@pytest.fixture(scope="module", params=["azure", "gcs"])
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with running(request, request.param) as made:
        yield made


class TestDelta(SinkContract):
    breaks = DELTA_BREAKS

    @pytest.fixture
    def target(self, store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Target:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return Delta(store.uri("").rstrip("/"), f"delta-contract-{next(numbers)}")

    @pytest.fixture
    def make_rows(self) -> Rows:
        return lambda *numbers: numbers
