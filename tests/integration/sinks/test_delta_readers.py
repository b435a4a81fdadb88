"""Every reader finds the same rows by predicates, whoever has staged them, and however they came into the table."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from predicates import LOCAL, TYPES, compare, random_rows

from onceonly.checkpoint.model import Transaction
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink, FileSink, Merge
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter

pytestmark = pytest.mark.integration
NEVER: Any = None
EPOCHS = 6
WAYS: Mapping[str, Mapping[str, Any]] = {
    "append": {},
    "merge": {"merge": Merge(["id"], ["at"])},
    "replace": {"partition_by": ["part"], "replace": PARTITIONS},
}
SEEDS = (1, 2, 3)


class Lake:
    """A target, staged in this process or by Spark."""

    def __init__(self, spark: Any, folder: Path, **options: Any) -> None:
        self.spark, self.uri, self.options = spark, str(folder), options

    def publish(self, epoch: int, table: pa.Table, in_process: bool) -> None:
        writer = DeltaWriter(DeltaSink("lake", self.uri, **self.options), self.uri, lambda: self.spark)
        data = self.spark.createDataFrame(table).coalesce(1)
        if "local" in table.column_names:  # otherwise Spark takes it for a time with a zone
            data = data.withColumn("local", data["local"].cast("timestamp_ntz"))
        handle = writer.stage(Transaction("11112222", "p", "lake", epoch, 1, f"{epoch:012x}"), data, in_process)
        handle = writer.rehearse(json.loads(json.dumps(handle)), epoch)
        assert not writer.commit(handle, epoch, NEVER).already


def ways_and_seeds() -> Iterator[Any]:
    """Each way to write with each seed; `make test` takes one."""
    for way, seed in product(WAYS, SEEDS):
        yield pytest.param(way, seed, marks=[] if (way, seed) == ("merge", 1) else [pytest.mark.heavy])


@pytest.mark.parametrize(("way", "seed"), list(ways_and_seeds()))
def test_every_reader_finds_the_same_rows(
    spark: Any, tmp_path: Path, way: str, seed: int, record_property: Any
) -> None:
    """Also after an OPTIMIZE by Spark, whose file a merge then copies."""
    chance, types = random.Random(seed), {**TYPES, **(LOCAL if seed == 3 else {})}
    lake = Lake(spark, tmp_path / "lake", **WAYS[way])
    answers = 0
    for epoch in range(1, EPOCHS + 1):
        ids = chance.sample(range(40), 12) if way == "merge" else list(range(12 * epoch, 12 * epoch + 12))
        table = random_rows(chance, ids, types, at=[epoch] * len(ids), part=[chance.randint(0, 2)] * len(ids))
        lake.publish(epoch, table, in_process=epoch % 2 == 0)
        if epoch == EPOCHS - 2:
            answers += asked(lake, chance, types, few_columns=seed == 1)
            spark.sql(f"OPTIMIZE delta.`{lake.uri}`").collect()
    answers += asked(lake, chance, types, few_columns=seed == 1)
    record_property("answers", answers)
    print(f"{way} {seed}: {answers:,} answers")


def asked(lake: Lake, chance: random.Random, types: Mapping[str, pa.DataType], few_columns: bool) -> int:
    names = chance.sample(sorted(types), 4 if few_columns else len(types))
    return compare(lake.uri, chance, {name: types[name] for name in names}, lake.spark)


def test_names_with_backticks_and_dots_are_merged(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path / "lake", merge=Merge(["i`d"], ["a.t"]))
    for epoch, in_process in ((1, True), (2, False)):
        lake.publish(epoch, pa.table({"i`d": [1], "a.t": [epoch], "x`.y": [f"{epoch}"]}), in_process)
    found = spark.read.format("delta").load(lake.uri).collect()
    assert [tuple(row) for row in found] == [(1, 2, "2")]


DAYS = "SELECT 1 AS id, TIMESTAMP'9999-12-31 00:00:00' AS time UNION ALL SELECT 2, TIMESTAMP'0001-01-01 00:00:00'"


@pytest.mark.parametrize("sink", ["delta", "delta through spark", "files"])
def test_times_are_written_as_microseconds(spark: Any, tmp_path: Path, sink: str) -> None:
    """A session that is set to INT96 by its owner is set to that again afterwards."""
    setting, uri = "spark.sql.parquet.outputTimestampType", str(tmp_path / "lake")
    txn, times = Transaction("11112222", "p", "lake", 1, 1, "1" * 12), spark.sql(DAYS).coalesce(1)
    spark.conf.set(setting, "INT96")
    try:
        if sink == "files":
            FileWriter(FileSink("lake", uri), uri).stage(txn, times)
        else:
            if sink == "delta through spark":
                properties = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
                spark.sql(f"CREATE TABLE delta.`{uri}` (id INT, time TIMESTAMP) USING delta {properties}").collect()
            writer = DeltaWriter(DeltaSink("lake", uri), uri, lambda: spark)
            writer.commit(json.loads(json.dumps(writer.stage(txn, times))), 1, NEVER)
        assert spark.conf.get(setting) == "INT96"
    finally:
        spark.conf.unset(setting)
    files = list(tmp_path.rglob("*.parquet"))
    assert files
    for file in files:
        columns = [pq.ParquetFile(file).schema.column(number) for number in range(2)]
        assert [column.physical_type for column in columns] == ["INT32", "INT64"]


def test_days_after_9999_are_merged_beside_others(spark: Any, tmp_path: Path) -> None:
    """As a key, and as a column of which the log can say nothing."""
    lake = Lake(spark, tmp_path / "lake", merge=Merge(["day"], ["at"]))
    days = pa.array([2932897, 18262], pa.int32()).cast(pa.date32())
    for epoch in (1, 2):
        lake.publish(epoch, pa.table({"day": days.slice(0, 3 - epoch), "at": [epoch] * (3 - epoch)}), epoch == 2)
    found = spark.sql(f"SELECT CAST(day AS STRING), at FROM delta.`{lake.uri}` ORDER BY at").collect()
    assert [tuple(row) for row in found] == [("2020-01-01", 1), ("+10000-01-01", 2)]
