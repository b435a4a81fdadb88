"""Records that cannot be decoded: dead letters of the same decision, or dropped and counted; and a bound for both."""

from __future__ import annotations

import json
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from integration.projects.garbage import SHARE, Garbage, is_bad, is_refused, value
from integration.projects.project import Project
from integration.readers.kafka_reader import committed, new_topic

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import BadRecord, CannotPublish, InvalidPipeline
from onceonly.json_values.columns import parse_columns
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import KafkaSink
from onceonly.runtime import live_services, spark_stage
from onceonly.runtime.owners import is_never_alive
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.spark import avro, decode_results, topics
from onceonly.spark.decoding import JsonDecoder
from onceonly.views import descriptions, formatting

pytestmark = pytest.mark.integration


@pytest.fixture
def garbage(tmp_path: Path, broker: str, spark_server: str) -> Garbage:
    return Garbage.make(tmp_path, broker, spark_server, f"garbage_{uuid.uuid4().hex[:8]}")


def through(project: Project) -> Coordinator:
    return live_services.open_coordinator(project.parts)


def stage(garbage: Garbage, pipeline: Pipeline, owner: str = "run-1") -> Checkpoint:
    planned = through(garbage.project).plan(pipeline, owner, is_never_alive).checkpoint
    assert planned is not None
    return spark_stage.stage(garbage.project.parts, through(garbage.project), "orders", planned.epoch, owner)


def run(garbage: Garbage, pipeline: Pipeline, owner: str = "run-1") -> Checkpoint:
    return through(garbage.project).commit("orders", stage(garbage, pipeline, owner).epoch)


def test_each_record_is_in_one_place_whatever_fails_on_the_way(garbage: Garbage, monkeypatch: Any) -> None:
    """The bound first; then one of both sinks, while publishing."""
    numbers = range(7 * SHARE)
    garbage.produce(numbers)
    with raises(
        BadRecord, "too-many-bad-records", match=r"(?s)orders epoch 1: 6 of 700 records.*max_bad=0\.001"
    ) as many:
        stage(garbage, garbage.pipeline(max_bad=0.001))
    assert f"The first one: topic '{garbage.topic}' partition 0 offset" in str(many.value)
    assert garbage.table("orders") == garbage.table("dead") == []

    failing(monkeypatch, "commit", CannotPublish("no access", code="test-no-access"))
    with raises(CannotPublish, "test-no-access", match="no access"):
        run(garbage, garbage.pipeline(max_bad=0.01))
    assert len(garbage.table("orders")) == 693 and garbage.table("dead") == []
    monkeypatch.undo()
    through(garbage.project).recover("orders", is_never_alive)

    done = through(garbage.project).state_table.view("orders").require(1)
    assert (done.state, done.attempt) == (State.COMMITTED, 2)
    assert done.bad == {"records": 700, "undecoded": {garbage.topic: 6}, "rejected": 1}
    counts = done.read[garbage.topic].values()  # records read, decoded, not decoded, dropped
    assert [sum(column) for column in zip(*counts, strict=True)] == [700, 694, 6, 0]
    assert descriptions.describe_bad_records(done) == f"7 of 700 records (6 of '{garbage.topic}', 1 by the transform)"
    garbage.check_truth(numbers)


def failing(monkeypatch: Any, step: str, error: Exception) -> None:
    """That step of the dead letters' sink, and of no other."""
    inner = getattr(DeltaWriter, step)

    def fails(writer: DeltaWriter, *given: Any, **more: Any) -> Any:
        if writer.name == "dead":
            raise error
        return inner(writer, *given, **more)

    monkeypatch.undo()
    monkeypatch.setattr(DeltaWriter, step, fails)


def test_what_is_dropped_is_counted_and_what_a_transform_invents_is_refused(garbage: Garbage) -> None:
    numbers = [n for n in range(2 * SHARE) if not is_refused(n)]
    garbage.produce(numbers)
    with raises(InvalidPipeline, "dead-letters-invalid", match=r"partition \d offset 10000\d\d"):
        stage(garbage, garbage.pipeline("invented"))
    dropping = garbage.pipeline("all_orders", policy="drop", dead_letters=None)
    with raises(BadRecord, "too-many-bad-records", match="2 of 200 records"):
        stage(garbage, garbage.pipeline("all_orders", policy="drop", dead_letters=None, max_bad=1))
    done = run(garbage, dropping)
    assert (done.bad_records, done.sinks, done.rows) == (2, ("orders",), 198)
    assert formatting.rows(done) == "198 (2 bad)"
    assert len(garbage.table("orders")) == len([n for n in numbers if not is_bad(n)])


def test_a_gate_looks_at_dead_letters_and_a_topic_that_is_missing_refuses_all(garbage: Garbage) -> None:
    """By the page's own suite: those of the transform pass, and what cannot be decoded holds the checkpoint."""
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "bad-records.md").read_text()
    text, folder = page.partition("```json\n")[2].partition("```")[0], garbage.project.folder
    (folder / "dead.expectations.json").write_text(text)
    both = text.replace("^cents is negative", "cents is negative|cannot be decoded")
    (folder / "any.expectations.json").write_text(both)
    garbage.produce([1, 2, 3, next(filter(is_refused, range(10 * SHARE)))])
    missing = garbage.pipeline(dead_letters=KafkaSink(name="dead", topic="there-is-none"))
    with raises(InvalidPipeline, "topic-missing", match="there-is-none"):
        stage(garbage, missing)
    gate = Gate(max_rows={"dead": 1}, suites={"dead": "dead.expectations.json"}, on_fail="hold")
    staged = stage(garbage, garbage.pipeline(gate=gate))
    held = through(garbage.project).gate("orders", staged.epoch, "run-1")
    assert held.is_held and held.verdict
    found = [(check["ok"], check["observed"]) for check in held.verdict["sinks"]["dead"]["checks"]]
    assert found[:2] == [(False, "2"), (False, "1 of 2 rows")]
    assert garbage.table("orders") == garbage.table("dead") == []
    for path, rows in (("in process", 100), ("spark", 0)):
        lets = garbage.pipeline(gate=Gate(suites={"dead": "any.expectations.json"}, in_process_rows=rows))
        seen = garbage.project.parts.inspector(lets).examine(staged).sinks["dead"]
        assert (seen["path"], [check["ok"] for check in seen["checks"]]) == (path, [True, True])


def test_dead_letters_in_a_topic_are_the_records_and_say_the_rest_in_headers(
    garbage: Garbage, broker: str, tmp_path: Path
) -> None:
    into = Garbage(garbage.project, new_topic(broker, 2))
    into.produce(range(2 * SHARE))
    run(into, into.pipeline())
    into.check_truth(range(2 * SHARE))
    assert {record.value for record in committed(broker, into.out or "")} == {value(3), value(103)}


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": name, "type": ["null", "string"], "default": None} for name in ("shop", "note")],
    }
)
VALUES = {
    "avro": [b"\x02\x06abc\x00", b"\x00\x00", b"\x02\x06ab", b"", b"\x08", b"\x00\x00\x00", b"\x02\x7f", b"text", None],
    "json": [b'{"n": 1}', b"{}", b'{"n": "x"}', b'{"n": 1} {}', b"", b"null", b"[]", b"\xff", b'{"n": 1', None],
}


@pytest.mark.parametrize(("format", "schema"), [("avro", AVRO), ("json", "n INT")])
def test_bad_is_exactly_what_fails_otherwise(spark: Any, format: str, schema: str) -> None:
    """Each value alone fails a query that decodes it, or is good; and good ones become the same."""
    numbered = [(None, value, "t", 0, n, None, None) for n, value in enumerate(VALUES[format])]
    rows = spark.createDataFrame(numbered, topics.SCHEMA)
    json_ = JsonDecoder(parse_columns(schema), "value") if format == "json" else None
    way = json_.decode if json_ else partial(avro.decode_plain_avro, schema=schema)
    both = decode_results.decode_with_errors(rows, [("value", way)])
    good = {row["offset"]: row["value"] for row in decode_results.select_decoded(both).collect()}
    bad = {row["offset"]: row["value"] for row in decode_results.select_failed(both).collect()}
    assert decode_results.count_failures(both) == {("t", 0): (len(numbered), len(bad))}
    assert good.keys() | bad.keys() == set(range(len(numbered))) and not good.keys() & bad.keys()
    assert good and bad == {n: VALUES[format][n] for n in bad}
    for n in range(len(numbered)):
        one = rows.where(f"offset = {n}")
        failing = decode_results.fail_bad_rows(json_.decode(one, "why"), "value", "why") if json_ else None
        alone = (failing or decode_results.decode_or_fail(one, format, schema)).select("value")
        if n in good:
            assert alone.first()["value"] == good[n]
        else:
            with pytest.raises(Exception, match=r"(?i)malformed"):
                alone.collect()
