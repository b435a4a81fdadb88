"""A pipeline is plain data, checked as soon as it is made."""

import json
from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import check_commits
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource

RAW = KafkaSource("flights")
LAKE = DeltaSink("lake", "lake/flights")


def pipeline(**changes) -> Pipeline:
    return Pipeline(**{"name": "flights", "source": RAW, "transform": "jobs.flights:clean", "sinks": [LAKE], **changes})


def late(**changes) -> KafkaSink:
    return KafkaSink(**{"name": "late", "topic": "late-flights", **changes})


@pytest.mark.parametrize(
    "made",
    [
        pipeline(),
        pipeline(mode="interval"),
        pipeline(mode="interval", source=KafkaSource("t", grace=600)),
        pipeline(source=KafkaSource("t", max_records=10, bootstrap="a:1,b:2")),
        pipeline(source=KafkaSource("t", format="avro", schema="schemas/flight.v1.avsc")),
        pipeline(source=KafkaSource("t", format="json", schema="schemas/flight.ddl")),
        pipeline(sinks=[LAKE, KafkaSink(name="late", topic="late-flights", format="avro", schema="schemas/late.avsc")]),
        pipeline(sinks=[KafkaSink(name="late", topics=["a", "b"], mode="late", commit_within=60, connection="kafka")]),
        pipeline(mode="interval", sinks=[KafkaSink(name="late", topic="a", mode="staged", unordered=True)]),
        pipeline(source=[KafkaSource("a"), KafkaSource("b", max_records=10)]),
        pipeline(sinks=[FileSink("files", "lake", format="csv", partition_by=["day"]), StateSink("s", "n INT", ["n"])]),
        pipeline(sinks=[KafkaSink(name="late", topic="a", ids="pool", pool_size=3)]),
        pipeline(sinks=[DeltaSink("a", "s3://lake/a", partition_by=["day", "hour"]), LAKE]),
    ],
)
def test_a_pipeline_survives_json(made):
    assert Pipeline.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_without_a_grace_a_definition_is_stored_as_it_always_was():
    assert "grace" not in pipeline().to_json()["source"]


def test_lists_and_tuples_make_the_same_pipeline():
    assert pipeline(sinks=[DeltaSink("a", "a", ["x"])]) == pipeline(sinks=(DeltaSink("a", "a", ("x",)),))


def test_a_sink_is_found_by_name():
    assert pipeline().sink("lake") is LAKE


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda: pipeline(name="Flights"), "name-invalid", "'Flights' cannot be the name of a pipeline"),
        (
            lambda: pipeline(transform="jobs/flights.py"),
            "option-invalid",
            "'jobs/flights.py' is not a dotted path",
        ),
        (lambda: pipeline(transform="jobs.flights"), "option-invalid", "transform 'jobs.flights' is not a dotted path"),
        (lambda: pipeline(mode="stream"), "option-invalid", "mode 'stream' is not known"),
        (lambda: pipeline(sinks=[]), "names-not-distinct", "pipeline 'flights' has the sinks []"),
        (
            lambda: pipeline(sinks=[LAKE, LAKE]),
            "names-not-distinct",
            "has the sinks ['lake', 'lake']",
        ),
        (
            lambda: pipeline(mode="interval", source=KafkaSource("t", max_records=1)),
            "options-conflict",
            "max_records is for chained mode; an interval is read completely",
        ),
        (lambda: KafkaSource(""), "option-invalid", "topic '' is not a Kafka topic name"),
        (lambda: KafkaSource("a b"), "option-invalid", "topic 'a b' is not a Kafka topic name"),
        (lambda: KafkaSource("t" * 250), "option-invalid", "is not a Kafka topic name"),
        (lambda: KafkaSource("t", format="csv"), "option-invalid", "format 'csv' is not known"),
        (lambda: KafkaSource("t", format="avro"), "option-invalid", "needs a schema file ending in .avsc"),
        (
            lambda: KafkaSource("t", format="json", schema="x.avsc"),
            "option-invalid",
            "a schema file ending in .ddl",
        ),
        (lambda: KafkaSource("t", schema="x.avsc"), "option-invalid", "takes no schema"),
        (lambda: KafkaSource("t", max_records=0), "option-invalid", "max_records is 0"),
        (lambda: KafkaSource("t", grace=-1), "option-invalid", "grace is -1"),
        (lambda: pipeline(source=KafkaSource("t", grace=60)), "options-conflict", "grace is for intervals"),
        (lambda: late(topic=None), "option-missing", "needs either a topic or topics"),
        (lambda: late(topics=["b"]), "option-missing", "needs either a topic or topics"),
        (lambda: late(topic=None, topics="late"), "option-invalid", "topics is a string"),
        (lambda: late(topic="a b"), "option-invalid", "topic 'a b' is not a Kafka topic name"),
        (lambda: late(format="csv"), "option-invalid", "format 'csv' is not known"),
        (lambda: late(format="avro"), "option-invalid", "needs a schema file ending in .avsc"),
        (lambda: late(schema="x.avsc"), "option-invalid", "takes no schema"),
        (lambda: late(guarantee="exactly once"), "option-invalid", "guarantee 'exactly once' is not known"),
        (lambda: late(mode="early"), "option-invalid", "mode 'early' is not known"),
        (lambda: late(transaction_timeout=0), "option-invalid", "transaction_timeout is 0"),
        (
            lambda: late(transaction_timeout=60, commit_within=60),
            "transaction-timeout-too-short",
            "commit_within=60",
        ),
        (lambda: late(ids="mine"), "option-invalid", "ids 'mine' is not known"),
        (lambda: late(ids="pool", pool_size=0), "option-invalid", "pool_size is 0"),
        (
            lambda: late(ids="pool", guarantee="none"),
            "options-conflict",
            "guarantee='none' has none",
        ),
        (lambda: pipeline(source=[]), "names-not-distinct", "reads the topics []"),
        (lambda: pipeline(source=[RAW, RAW]), "names-not-distinct", "reads the topics ['flights', 'flights']"),
        (lambda: FileSink("lake", ""), "option-missing", "sink 'lake' has no path"),
        (lambda: FileSink("lake", "lake", format="orc"), "option-invalid", "format 'orc' is not known"),
        (lambda: FileSink("lake", "lake", partition_by="day"), "option-invalid", "partition_by is a string"),
        (lambda: StateSink("totals", "n INT", key="n"), "option-invalid", "has the key 'n'"),
        (lambda: StateSink("totals", "", key=["n"]), "option-missing", "has no schema"),
        (
            lambda: pipeline(sinks=[StateSink(name, "n INT", key=["n"]) for name in "ab"]),
            "options-conflict",
            "several StateSinks",
        ),
        (lambda: late(id_prefix="a-b"), "option-invalid", "id_prefix 'a-b' is not usable"),
        (lambda: late(connection="kafka", bootstrap="a:1"), "options-conflict", "is set together with bootstrap"),
        (
            lambda: pipeline(mode="interval", sinks=[late(mode="staged")]),
            "options-conflict",
            "intervals",
        ),
        (lambda: DeltaSink("by-day", "lake"), "name-invalid", "'by-day' cannot be the name of a sink"),
        (lambda: DeltaSink("lake", ""), "option-missing", "sink 'lake' has no path"),
        (
            lambda: DeltaSink("lake", "lake", partition_by="day"),
            "option-invalid",
            "partition_by is a string",
        ),
    ],
)
def test_nonsense_is_refused_at_once_and_the_message_says_what_to_do(make, code, message):
    with raises(InvalidPipeline, code) as refused:
        make()
    assert message in refused.value.what
    assert refused.value.todo


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [
        ({"sinks": [{"kind": "hudi", "name": "x", "path": "y"}]}, "sink-kind-unknown", "'hudi'"),
        (
            {"sinks": [{"kind": "delta", "name": "x", "path": "y", "z_order": "day"}]},
            "definition-unreadable",
            "z_order",
        ),
        ({"source": {"kind": "pulsar", "topic": "x"}}, "definition-unreadable", "'pulsar'"),
        ({"window": 5}, "definition-unreadable", "window"),
        ({"source": {"topic": "x"}}, "definition-unreadable", "'kind'"),
    ],
)
def test_a_definition_of_a_newer_version_is_refused_with_what_is_new(change, code, why):
    with raises(InvalidPipeline, code, match="definition of 'flights' cannot be read") as refused:
        Pipeline.from_json({**pipeline().to_json(), **change})
    assert why in str(refused.value)
    assert "newer Onceonly" in refused.value.todo


@pytest.mark.parametrize(
    ("part", "change", "why"),
    [
        ("sinks", {"path": 5}, "path is 5"),
        ("sinks", {"partition_by": [1]}, "partition_by[0] is 1"),
        ("sinks", {"add_columns": "yes"}, "add_columns is 'yes'"),
        ("sinks", {"name": ["lake"]}, "name is ['lake']"),
        ("source", {"topic": None}, "topic is None"),
        ("source", {"max_records": "5"}, "max_records is '5'"),
        ("source", {"schema": {}}, "schema is {}"),
    ],
)
def test_a_damaged_definition_is_refused_with_what_is_wrong(part: str, change: dict[str, Any], why: str) -> None:
    damaged = pipeline().to_json()
    changed = damaged[part][0] if part == "sinks" else damaged[part]
    changed.update(change)
    with raises(InvalidPipeline, "definition-unreadable") as refused:
        Pipeline.from_json(damaged)
    assert why in refused.value.what


@pytest.mark.parametrize("data", [None, [], "flights", {}, {"name": "flights", "source": None, "sinks": 5}])
def test_what_is_no_definition_at_all_is_refused_too(data: Any) -> None:
    with raises(InvalidPipeline, "definition-unreadable"):
        Pipeline.from_json(data)


def test_a_transaction_has_to_outlast_the_wait_for_its_commit():
    with raises(
        InvalidPipeline,
        "transaction-timeout-too-short",
        match="after 60 s, and .* up to 300 s",
    ):
        check_commits(pipeline(sinks=[late(transaction_timeout=60)]), 300)
    for fine in ({"transaction_timeout": 300}, {"mode": "late"}, {"commit_within": 50}, {"guarantee": "none"}):
        check_commits(pipeline(sinks=[late(**{"transaction_timeout": 60, **fine})]), 300)
    check_commits(pipeline(mode="interval", sinks=[late(transaction_timeout=60)]), 300)


@pytest.mark.parametrize("replace", ["partitions", [("day", ">=", "2013-01-01"), ("day", "in", ["2013-01-02"])]])
def test_what_a_delta_sink_replaces_comes_back_from_json(replace: Any) -> None:
    sink = DeltaSink("lake", "lake", partition_by=["day"], replace=replace)
    pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="m:f", sinks=[sink])
    stored = json.loads(json.dumps(pipeline.to_json()))
    assert stored == pipeline.to_json()
    assert Pipeline.from_json(stored) == pipeline


@pytest.mark.parametrize(
    ("partition_by", "replace", "code"),
    [
        ([], "partitions", "option-missing"),
        (["day"], [], "option-missing"),
        (["day"], [("n", "=", 1)], "options-conflict"),
        (["day"], "day = 1", "option-invalid"),
        (["day"], [("day", "like", "x")], "option-invalid"),
        (["day"], [("day", "=", None)], "option-invalid"),
    ],
)
def test_a_replacement_that_cannot_be_is_refused(partition_by: list[str], replace: Any, code: str) -> None:
    with raises(InvalidPipeline, code):
        DeltaSink("lake", "lake", partition_by=partition_by, replace=replace)


def test_name_of_a_sink_comes_first_in_each_kind():
    assert KafkaSink("late", topic="late-flights") == KafkaSink(name="late", topic="late-flights")
