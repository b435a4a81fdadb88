"""The Delta sink passes the suite that every sink has to pass."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract.delta_breaks import DELTA_BREAKS
from contract.parts import BROKEN_ON_SPARK, WRITTEN_BY_SPARK
from contract.rewritten import COLUMN, ByColumn
from contract.spark_rows import Folder, OnSpark, no_spark
from contract.stored import stored_table
from deltalake import DeltaTable

from onceonly.checkpoint.sink import Sink
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.testing import contract
from onceonly.testing.contract import SINK


@dataclass(frozen=True)
class Delta(Folder):
    def sink(self) -> Sink:
        return DeltaWriter(DeltaSink(SINK, self.folder), self.folder, no_spark)

    def published(self) -> list[int]:
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist())

    def digests(self) -> Mapping[str, str]:
        return stored_table(self.folder)


@dataclass(frozen=True)
class Named(Delta):
    def sink(self) -> Sink:
        return DeltaWriter(DeltaSink(SINK, self.folder, checkpoint_column=COLUMN), self.folder, no_spark)


@pytest.mark.integration
class TestDelta(OnSpark):
    breaks = DELTA_BREAKS
    part = BROKEN_ON_SPARK

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Delta(str(tmp_path / "out"))


@pytest.mark.integration
class TestNamed(ByColumn, OnSpark):
    """Each row names the transaction that has published it."""

    breaks = DELTA_BREAKS
    part = WRITTEN_BY_SPARK | {
        "test_what_is_replaced_gives_way_after_an_optimize",
        "test_what_is_retracted_is_taken_out_after_an_optimize",
    }

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Named(str(tmp_path / "out"))
