"""Dead letters as they are declared and stored: what cannot work is refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.dead_letters import can_lack_records, is_beyond
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sink_config import SinkConfig
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, Merge, StateSink
from onceonly.pipeline.sources import DeltaSource, KafkaSource, source_json

LAKE, DEAD = DeltaSink("lake", "lake"), DeltaSink("dead", "dead", partition_by=["topic"])


def source(**more: Any) -> KafkaSource:
    return KafkaSource("orders", format="json", schema="orders.ddl", **more)


def pipeline(**more: Any) -> Pipeline:
    given: dict[str, Any] = {"name": "orders", "source": source(on_bad_record="dead_letter"), "sinks": [LAKE]}
    return Pipeline(transform="jobs.orders:clean", **{**given, **more})


@pytest.mark.parametrize(
    "sink", [DEAD, KafkaSink(name="dead", topic="dead"), FileSink("dead", "dead"), FileSink("dead", "dead", "avro")]
)
def test_dead_letters_are_one_more_sink_of_the_same_decision(sink: SinkConfig) -> None:
    made = pipeline(dead_letters=sink, max_bad=0.01)
    assert [sink.name for sink in made.sinks] == ["lake", "dead"]
    assert made.dead_letters == "dead" and can_lack_records(made.sources, made.dead_letters)
    assert Pipeline.from_json(made.to_json()) == made
    assert pipeline(sinks=[LAKE, sink], dead_letters="dead", max_bad=0.01) == made


def test_without_them_a_definition_is_stored_as_before() -> None:
    plain = pipeline(source=source())
    assert not {"dead_letters", "max_bad"} & set(plain.to_json())
    assert "on_bad_record" not in source_json(source())
    assert not can_lack_records(plain.sources, plain.dead_letters)
    assert source_json(source(on_bad_record="drop"))["on_bad_record"] == "drop"


@pytest.mark.parametrize(
    ("sink", "why"),
    [
        (DeltaSink("dead", "dead", merge=Merge(keys=["topic"], order_by=["offset"])), "it would merge them"),
        (DeltaSink("dead", "dead", ["topic"], replace="partitions"), "it would remove earlier ones"),
        (DeltaSink("dead", "dead", ["day"]), r"they have no column \['day'\]"),
        (FileSink("dead", "dead", partition_by=["day"]), r"they have no column \['day'\]"),
        (FileSink("dead", "dead", "csv"), "CSV has no bytes"),
        (StateSink("dead", "k INT", ["k"]), "it keeps state"),
        (KafkaSink(name="dead", topic="dead", format="json"), "it would write them as json"),
        (KafkaSink(name="dead", topics=["a", "b"]), "it has several topics"),
        (KafkaSink(name="dead", topic="dead", guarantee="none"), "would leave those of checkpoints that were aborted"),
        (KafkaSink(name="dead", topic="dead", guarantee="at-least-once"), "or repeat them"),
    ],
)
def test_a_sink_that_cannot_take_them_is_refused(sink: SinkConfig, why: str) -> None:
    with raises(InvalidPipeline, "dead-letter-sink-unsuitable", match=f"sink 'dead' cannot take dead letters: .*{why}"):
        pipeline(dead_letters=sink)


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        ({}, "option-missing", "has no sink to send records to"),
        ({"dead_letters": "nowhere"}, "options-conflict", "dead_letters is 'nowhere'"),
        ({"dead_letters": "lake"}, "options-conflict", "dead_letters is 'lake'"),
        ({"dead_letters": LAKE}, "names-not-distinct", "with different names"),
        ({"dead_letters": KafkaSink(name="dead", topic="orders")}, "own-output-read", "which the pipeline reads"),
        (
            {"source": DeltaSource("lake/other"), "dead_letters": DEAD},
            "options-conflict",
            "it reads none",
        ),
        ({"source": source(), "max_bad": 5}, "options-conflict", "max_bad limits nothing"),
        ({"source": source(on_bad_record="drop"), "max_bad": -1}, "option-invalid", "max_bad -1 is neither"),
        ({"source": source(on_bad_record="drop"), "max_bad": 1.5}, "option-invalid", "max_bad 1.5 is neither"),
        ({"source": source(on_bad_record="drop"), "max_bad": 0.0}, "option-invalid", "max_bad 0.0 is neither"),
        ({"source": source(on_bad_record="drop"), "max_bad": True}, "option-invalid", "max_bad True is neither"),
    ],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code, match=why):
        pipeline(**changes)


def test_raw_records_are_never_bad() -> None:
    with raises(InvalidPipeline, "options-conflict"):
        KafkaSource("orders", on_bad_record="drop")
    KafkaSource("orders", registry="registry", key_format="avro", on_bad_record="drop")
    with raises(InvalidPipeline, "option-invalid", match="on_bad_record 'skip' is not known"):
        source(on_bad_record="skip")


def test_a_gate_that_names_no_sink_is_not_meant_for_dead_letters() -> None:
    made = pipeline(dead_letters=DEAD, gate=Gate(min_rows=1))
    assert made.gate and made.gate.min_rows == {"lake": 1}
    both = pipeline(dead_letters=DEAD, gate=Gate(max_rows={"dead": 10}))
    assert both.gate and both.gate.max_rows == {"dead": 10}


@pytest.mark.parametrize(
    ("most", "bad", "records", "too_many"),
    [
        (0, 0, 5, False),
        (0, 1, 5, True),
        (3, 3, 5, False),
        (3, 4, 500, True),
        (0.01, 1, 100, False),
        (0.01, 2, 100, True),
        (1.0, 5, 5, False),
        (0.5, 0, 0, False),
    ],
)
def test_a_bound_is_a_count_or_a_share(most: float, bad: int, records: int, too_many: bool) -> None:
    assert is_beyond(most, bad, records) is too_many
