"""Files on real object stores, written and read by a real Spark: each format, with partitions whose names are odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from integration.projects.light_stores import Reader
from integration.services.store_server import StoreServer
from unit.lightdelta import transaction

from onceonly.checkpoint.offsets import FILES, TopicRange
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import FileSource
from onceonly.sinks.files.sink import FileWriter
from onceonly.sources.files import FileReader
from onceonly.storage import manifests
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.paths import spark_uri
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
ROWS = 600
OTHERS = ("json", "csv", "avro")
PLACES = "element_at(array('a/b', '50 %', 'x+y', 'plain'), CAST(id % 4 AS INT) + 1)"
COLUMNS = (
    "id AS n",
    "concat('ä,\"', id) AS text",
    "CAST(id / 7 AS DECIMAL(12, 4)) AS amount",
    "timestamp_micros(1357000000000001 + id) AS at",
    f"{PLACES} AS place",
)


@pytest.mark.parametrize("format", ["parquet", *(pytest.param(format, marks=pytest.mark.heavy) for format in OTHERS)])
def test_rows_of_each_format_arrive_as_they_were(
    store: StoreServer, shown: Reader, name: str, spark_there: Any, format: Any
) -> None:
    uri = store.uri(f"{name}/lake")
    sink = FileWriter(FileSink("lake", uri, format, partition_by=["place"]), uri)
    rows = spark_there.range(ROWS).repartition(3).selectExpr(*COLUMNS)
    truth = sorted(rows.collect(), key=lambda row: row["n"])

    handle = json.loads(json.dumps(sink.stage(transaction(), rows)))
    assert handle["rows"] == ROWS and len(handle["files"]) >= 4
    assert [key for key in shown.keys(f"{name}/") if "/.lake.staged/" not in key] == []
    staged = sink.read_staged(handle)
    assert format == "avro" if staged is None else sorted(staged.read_all()["n"].to_pylist()) == list(range(ROWS))
    assert sorted(sink.staged_frame(handle, spark_there).collect(), key=lambda row: row["n"]) == truth

    assert not sink.commit(handle, 1, FakeReceipts(Path("unused"))).already
    assert sink.commit(handle, 1, FakeReceipts(Path("unused"))).already
    sink.release(transaction())
    assert [key for key in shown.keys(f"{name}/.lake") if not key.endswith("/.tried")] == []
    assert shown.uploads(f"{name}/") == []
    if format == "parquet":  # by readers that are not ours
        files, path = arrow_file_system(uri)
        plain = ds.dataset(path, filesystem=files, partitioning="hive").to_table()
        assert sorted(plain["n"].to_pylist()) == list(range(ROWS))
        assert spark_there.read.parquet(spark_uri(uri)).count() == ROWS
        assert manifests.dataset(uri).to_table().num_rows == ROWS

    reader = FileReader(FileSource(uri, name="lake"), uri)
    range_ = reader.add_mark(TopicRange("lake", reader.log().topic_id, {0: (0, 2)}, FILES), None)
    reader.verify((range_,))
    assert sorted(reader.read(spark_there, (range_,)).collect(), key=lambda row: row["n"]) == truth
