"""The Delta sink that merges changes passes the suite that every sink has to pass."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from contract.delta_breaks import DELTA_BREAKS
from contract.parts import WRITTEN_BY_SPARK
from contract.spark_rows import Folder, OnSpark, no_spark
from deltalake import DeltaTable

from onceonly.checkpoint.sink import Sink
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Rows


@dataclass(frozen=True)
class Merging(Folder):
    def sink(self) -> Sink:
        merge = Merge(keys=["n"], order_by=["at"], deletes="gone")
        return DeltaWriter(DeltaSink(SINK, self.folder, merge=merge), self.folder, no_spark)

    def published(self) -> list[int]:
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist())


@pytest.mark.integration
class TestMerging(OnSpark):
    """Each number is a key; all changes are of one order, so only the first one of a key counts."""

    breaks = DELTA_BREAKS
    part = WRITTEN_BY_SPARK

    @pytest.fixture
    def target(self, tmp_path: Path) -> contract.Target:
        return Merging(str(tmp_path / "out"))

    @pytest.fixture
    def make_rows(self, session: Any) -> Rows:
        def make(*numbers: int) -> Any:
            rows = session.createDataFrame([(number,) for number in numbers], "n INT")
            return rows.selectExpr("n", "1 AS at", "false AS gone")

        return make
