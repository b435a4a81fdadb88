"""How catalogs of lineage know what a checkpoint reads and writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from unit.world import World

from onceonly.airflow import lineage
from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import TopicRange
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource
from onceonly.settings import Settings


@pytest.fixture
def parts(tmp_path: Path) -> Any:
    """Brokers by the name of the connection, or the address that is given."""
    settings = Settings.from_env({"ONCEONLY_HOME": str(tmp_path), "ONCEONLY_PROJECT": str(tmp_path)})
    brokers = {None: "one:9092,two:9092", "secured": "three:9093, four:9093"}
    kafka = lambda connection, bootstrap: SimpleNamespace(bootstrap=bootstrap or brokers[connection])  # noqa: E731
    return SimpleNamespace(settings=settings, kafka=kafka)


def published(tmp_path: Path, sinks: list[Any], handles: Mapping[str, Any]) -> Checkpoint:
    """A checkpoint of these sinks, with handles as real ones make them."""
    world = World(tmp_path / "world", sinks=sinks)
    planned = world.plan()
    assert planned is not None
    return replace(planned, handles=handles, published={name: {} for name in handles})


def test_a_topic_is_named_by_the_first_broker_of_its_connection(tmp_path: Path, parts: Any) -> None:
    world = World(tmp_path / "world", source=[KafkaSource("flights"), KafkaSource("fares", connection="secured")])
    world.put(0)
    planned = world.plan()
    assert planned is not None
    ranges = (TopicRange("flights", "id-1", {0: (0, 6)}), TopicRange("fares", "id-2", {0: (3, 4)}))
    first, second = lineage.list_inputs(parts, replace(planned, ranges=ranges))
    assert (first.namespace, first.name, first.range.partitions) == ("kafka://one:9092", "flights", {0: (0, 6)})
    assert (second.namespace, second.name, second.range.topic_id) == ("kafka://three:9093", "fares", "id-2")


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("lake/orders", "file", "{home}/lake/orders"),
        ("/lake/orders", "file", "/lake/orders"),
        ("file:///lake/orders/", "file", "/lake/orders"),
        ("s3://bucket/lake/orders", "s3://bucket", "lake/orders"),
        ("s3a://bucket/lake/orders", "s3://bucket", "lake/orders"),
        ("s3://key:secret@bucket/lake/orders", "s3://bucket", "lake/orders"),
        ("hdfs://name:8020/lake/orders", "hdfs://name:8020", "/lake/orders"),
        ("abfss://box@account.dfs.core.windows.net/lake", "abfss://box@account.dfs.core.windows.net", "/lake"),
    ],
)
@pytest.mark.parametrize("kind", [DeltaSource, FileSource])
def test_a_table_is_named_by_its_place(
    tmp_path: Path, parts: Any, path: str, namespace: str, name: str, kind: Any
) -> None:
    world = World(tmp_path / "world")
    planned = world.plan()
    assert planned is not None
    definition = Definition(replace(world.pipeline, source=kind(path, name="orders")).to_json())
    range_ = TopicRange("orders", "an id", {0: (4, 6)}, kind=kind.kind)
    (found,) = lineage.list_inputs(parts, replace(planned, definition=definition, ranges=(range_,)))
    assert (found.namespace, found.name) == (namespace, name.format(home=tmp_path))


def test_outputs_have_their_counts_and_columns(tmp_path: Path, parts: Any) -> None:
    table = tmp_path / "lake" / "flights"
    write_deltalake(table, pa.table({"day": [1], "delays": [[2.5]]}))
    avro = {
        "type": "record",
        "fields": [{"name": "carrier", "type": "string"}, {"name": "late", "type": ["null", "int"]}],
    }
    (tmp_path / "late.avsc").write_text(json.dumps(avro))
    sinks = [
        DeltaSink("lake", path="lake/flights"),
        KafkaSink(name="late", topic="late-flights", format="avro", schema="late.avsc", connection="secured"),
        FileSink("files", path="out/flights"),
    ]
    handles = {
        "lake": {"kind": "delta", "uri": str(table), "folder": "staged-1", "rows": 7, "bytes": 900, "files": 2},
        "late": {"kind": "kafka", "topics": {"late-flights": "id"}, "rows": 3, "bytes": 30},
        "files": {"kind": "files", "target": "/out/flights", "rows": 5, "bytes": 50, "files": [{}, {}, {}]},
    }
    lake, late, files = lineage.list_outputs(parts, published(tmp_path, sinks, handles))
    assert (lake.namespace, lake.name, lake.rows, lake.bytes, lake.files) == ("file", str(table), 7, 900, 2)
    assert lake.fields[0] == ("day", "long")
    assert lake.fields[1][0] == "delays" and json.loads(lake.fields[1][1])["type"] == "array"
    assert (late.namespace, late.name, late.rows) == ("kafka://three:9093", "late-flights", 3)
    assert late.fields == (("carrier", "string"), ("late", '["null", "int"]'))
    assert (files.namespace, files.name, files.rows, files.files, files.fields) == ("file", "/out/flights", 5, 3, ())


def test_how_many_rows_went_to_which_of_several_topics_is_not_known(tmp_path: Path, parts: Any) -> None:
    sink = KafkaSink(name="out", topics=["a", "b"], bootstrap="five:9092")
    handles = {"out": {"kind": "kafka", "topics": {"a": "1", "b": "2"}, "rows": 3, "bytes": 30}}
    found = list(lineage.list_outputs(parts, published(tmp_path, [sink], handles)))
    assert [(dataset.namespace, dataset.name, dataset.rows) for dataset in found] == [
        ("kafka://five:9092", "a", None),
        ("kafka://five:9092", "b", None),
    ]


def test_only_what_is_published_is_an_output_and_state_is_none(tmp_path: Path, parts: Any) -> None:
    sinks = [DeltaSink("lake", path="lake/flights"), StateSink("seen", schema="id INT", key=["id"])]
    handles = {
        "lake": {"kind": "delta", "uri": "/gone", "folder": "x", "rows": 7},
        "seen": {"kind": "state", "rows": 2, "target": "appstate"},
    }
    checkpoint = published(tmp_path, sinks, handles)
    assert [output.sink for output in lineage.list_outputs(parts, checkpoint)] == [
        "lake"
    ]  # and its columns cannot be read
    assert list(lineage.list_outputs(parts, replace(checkpoint, published={}))) == []
    given_up = replace(checkpoint, published={"seen": {}}, given_up={"lake": {}})
    assert list(lineage.list_outputs(parts, given_up)) == []
