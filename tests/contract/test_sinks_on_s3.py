"""The suite on the Delta sink of a real S3 server; its rows are staged without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from contract.delta_breaks import DELTA_BREAKS
from contract.rewritten import COLUMN, ByColumn
from deltalake import DeltaTable
from integration.services.s3 import BUCKET, S3
from unit.lightdelta import LightDelta, LightMerge

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.testing.contract import Rows, SinkContract, Target
from onceonly.testing.targets import digest_files

pytestmark = pytest.mark.integration
numbers = count()


@dataclass(frozen=True)
class Delta(Target):
    uri: str
    on_disk: str  # where the server keeps it

    def sink(self) -> Sink:
        return LightDelta(self.uri)  # type: ignore[arg-type]

    def published(self) -> list[int]:
        there = DeltaTable.is_deltatable(self.uri)
        return sorted(DeltaTable(self.uri).to_pyarrow_table()["n"].to_pylist()) if there else []

    def digests(self) -> Mapping[str, str]:
        """Files of the last version, and entries of the log, as they lie on the server's disk."""
        if not DeltaTable.is_deltatable(self.uri):
            return {}
        names = [uri.removeprefix(f"{self.uri}/") for uri in DeltaTable(self.uri).file_uris()]
        folder = Path(self.on_disk) / "out"
        return digest_files([*(folder / name for name in names), *folder.glob("_delta_log/*.json")])

    def traces(self, txn: Transaction) -> list[Any]:
        return [path for path in Path(self.on_disk).rglob("*") if txn.name in str(path) and path.is_file()]


@dataclass(frozen=True)
class Merging(Delta):
    def sink(self) -> Sink:
        return LightMerge(self.uri)  # type: ignore[arg-type]

    def digests(self) -> Mapping[str, str]:
        return {}  # a merge may rewrite files


@dataclass(frozen=True)
class Named(Delta):
    def sink(self) -> Sink:
        return LightDelta(self.uri, checkpoint_column=COLUMN)  # type: ignore[arg-type]


class TestDelta(SinkContract):
    breaks = DELTA_BREAKS

    kind = Delta

    @pytest.fixture
    def target(self, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Target:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        name = f"contract-{next(numbers)}"
        return self.kind(f"s3://{BUCKET}/{name}/out", str(s3.folder / "data" / BUCKET / name))

    @pytest.fixture
    def make_rows(self) -> Rows:
        return lambda *numbers: numbers


@pytest.mark.heavy
class TestMerging(TestDelta):
    """Each number is the key of a change that is newer than those of earlier epochs."""

    kind = Merging


@pytest.mark.heavy
class TestNamed(ByColumn, TestDelta):
    """Each row names the transaction that has published it."""

    kind = Named
