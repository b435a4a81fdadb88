"""The suite on the file sink of real object stores; its rows are staged without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from contract.file_breaks import FILE_BREAKS
from contract.stored import digest
from integration.projects.light_stores import LightStoreFiles, reader
from integration.services.store_server import StoreServer
from integration.services.stores import MOST, running

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing.contract import Rows, SinkContract, Stage, Target

pytestmark = pytest.mark.integration
numbers = count()


@dataclass(frozen=True)
class Files(Target):
    name: str
    root: str
    shows_each = True

    def sink(self) -> Sink:
        return LightStoreFiles(f"{self.root}/{self.name}/out", files=2)

    def published(self) -> list[int]:
        return reader(self.root).numbers(f"{self.name}/out/")

    def digests(self) -> Mapping[str, str]:
        store = reader(self.root)
        shown = [key for key in store.keys(f"{self.name}/out/") if not {"."} & {part[0] for part in key.split("/")}]
        return {key: digest(store.content(key)) for key in shown if key.endswith(".jsonl")}

    def traces(self, txn: Transaction) -> list[Any]:
        """Objects, and uploads that are open."""
        store, prefix = reader(self.root), f"{self.name}/"
        return [key for key in store.keys(prefix) if txn.name in key] + store.uploads(prefix)


@pytest.fixture(scope="module", params=MOST)
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with running(request, request.param) as made:
        yield made


class TestFiles(SinkContract):
    breaks = FILE_BREAKS

    @pytest.fixture
    def target(self, store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Target:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        return Files(f"files-contract-{next(numbers)}", store.uri("").rstrip("/"))

    @pytest.fixture
    def make_rows(self) -> Rows:
        return lambda *numbers: numbers

    @pytest.mark.parametrize("some", [(1, 2, 3)])
    def test_what_is_staged_can_be_looked_at_here_and_on_spark(
        self, target: Target, stage: Stage, session: Any, some: tuple[int, ...]
    ) -> None:
        """Not of no rows: this stage writes no file then."""
        super().test_what_is_staged_can_be_looked_at_here_and_on_spark(target, stage, session, some)
