"""A home whose path a URI would write otherwise: every sink stages by Spark, publishes, and its rows are read back."""

from __future__ import annotations

import csv
import json
import uuid
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from codes import raises
from deltalake import DeltaTable
from integration.projects.project import make_project, produce
from integration.readers.kafka_reader import committed, create_topic

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource
from onceonly.runtime import live_services, owners, spark_stage
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.integration
TRANSFORM = """

def all_of_it(batch, state):
    rows = numbers(batch)
    kafka = rows.selectExpr("CAST(n AS STRING) AS value")
    sinks = ["table", "by_part", "merged", "parquet", "json", "csv", "avro"]
    changes = rows.selectExpr("n AS key", "n AS seen", "false AS deleted")
    return {**dict.fromkeys(sinks, rows), "late": kafka, "staged": kafka}, changes


def read_back(batches):
    return {"again": batches["table"].unionByName(batches["parquet"])}
"""


def test_every_sink_in_a_folder_of_a_strange_name(tmp_path: Path, broker: str, spark_server: str) -> None:
    topic = f"strange_{uuid.uuid4().hex[:8]}"
    folder = tmp_path / "my données a+b=c#1 50%off"
    folder.mkdir()
    project = make_project(folder, broker, spark_server, topic)
    module = folder / f"transforms_{topic}.py"
    module.write_text(module.read_text() + TRANSFORM)
    produce(project, range(8))
    create_topic(broker, f"{topic}_out")
    files = [FileSink(name, path=f"lake/{name}", format=name) for name in ("parquet", "json", "csv", "avro")]
    pipeline = Pipeline(
        name="strange",
        source=KafkaSource(topic=topic),
        transform=f"transforms_{topic}:all_of_it",
        sinks=[
            DeltaSink("table", path="lake/table"),
            DeltaSink("by_part", path="lake/by part", partition_by=["part"]),
            DeltaSink("merged", path="lake/merged"),
            *files,
            KafkaSink(name="late", topic=f"{topic}_out", mode="late"),
            KafkaSink(name="staged", topic=f"{topic}_out"),
            StateSink("state", schema="key BIGINT, seen BIGINT", key=["key"]),
        ],
    )
    parts = project.parts
    for numbers in (range(8), range(8, 12)):
        if numbers.start:
            produce(project, numbers)
        through, owner = live_services.open_planner(parts), uuid.uuid4().hex
        planned = through.plan(pipeline, owner, owners.is_never_alive).checkpoint
        assert planned is not None
        staged = spark_stage.stage(parts, through, planned.pipeline, planned.epoch, owner)
        assert {handle["rows"] for handle in staged.handles.values()} == {len(numbers)}
        through.commit(planned.pipeline, planned.epoch)

    lake, want = folder / "home" / "lake", Counter(range(12))
    for table in ("table", "by part", "merged"):
        assert Counter(DeltaTable(str(lake / table)).to_pyarrow_table()["n"].to_pylist()) == want
    parquet = [pq.ParquetFile(file).read() for file in (lake / "parquet").glob("*.parquet")]
    assert Counter(n for rows in parquet for n in rows["n"].to_pylist()) == want
    lines = [json.loads(line) for file in (lake / "json").glob("*.json*") for line in file.read_text().splitlines()]
    assert Counter(row["n"] for row in lines) == want
    found = [row for file in (lake / "csv").glob("*.csv") for row in csv.DictReader(file.read_text().splitlines())]
    assert Counter(int(row["n"]) for row in found) == want
    assert len(list((lake / "avro").glob("*.avro"))) >= 1
    sent = Counter(int(record.value or b"") for record in committed(broker, f"{topic}_out"))
    assert sent == Counter({number: 2 for number in range(12)})

    back = Pipeline(
        name="back",
        source=[DeltaSource("lake/table"), FileSource("lake/parquet")],
        transform=f"transforms_{topic}:read_back",
        sinks=[DeltaSink("again", path="lake/again")],
    )
    through, owner = live_services.open_planner(parts), uuid.uuid4().hex
    planned = through.plan(back, owner, owners.is_never_alive).checkpoint
    assert planned is not None
    spark_stage.stage(parts, through, "back", planned.epoch, owner)
    through.commit("back", planned.epoch)
    assert Counter(DeltaTable(str(lake / "again")).to_pyarrow_table()["n"].to_pylist()) == want + want


def test_a_folder_that_delta_rs_does_not_find_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink("table", path=str(tmp_path / "50%20off" / "table"))
    writer = DeltaWriter(sink, sink.path, lambda: None)
    with raises(InvalidPipeline, "uri-invalid", match=r"there can be no table at .*50%20off"):
        writer.check()
    assert list(tmp_path.iterdir()) == []
