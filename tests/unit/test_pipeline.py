"""A pipeline is plain data, checked as soon as it is made."""

import json

import pytest

from onceonly.errors import InvalidPipeline
from onceonly.pipeline import DeltaSink, KafkaSource, Pipeline

RAW = KafkaSource("flights")
LAKE = DeltaSink("lake", "lake/flights")


def pipeline(**changes) -> Pipeline:
    return Pipeline(**{"name": "flights", "source": RAW, "transform": "jobs.flights:clean", "sinks": [LAKE], **changes})


@pytest.mark.parametrize(
    "made",
    [
        pipeline(),
        pipeline(mode="interval"),
        pipeline(source=KafkaSource("t", max_records=10, bootstrap="a:1,b:2")),
        pipeline(source=KafkaSource("t", format="avro", schema="schemas/flight.v1.avsc")),
        pipeline(source=KafkaSource("t", format="json", schema="schemas/flight.ddl")),
        pipeline(sinks=[DeltaSink("a", "s3://lake/a", partition_by=["day", "hour"]), LAKE]),
    ],
)
def test_a_pipeline_survives_json(made):
    assert Pipeline.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_lists_and_tuples_make_the_same_pipeline():
    assert pipeline(sinks=[DeltaSink("a", "a", ["x"])]) == pipeline(sinks=(DeltaSink("a", "a", ("x",)),))


def test_a_sink_is_found_by_name():
    assert pipeline().sink("lake") is LAKE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipeline(name="Flights"), "'Flights' cannot be the name of a pipeline"),
        (lambda: pipeline(transform="jobs/flights.py"), "transform 'jobs/flights.py' is no dotted path"),
        (lambda: pipeline(transform="jobs.flights"), "transform 'jobs.flights' is no dotted path"),
        (lambda: pipeline(mode="stream"), "mode 'stream' is not known"),
        (lambda: pipeline(sinks=[]), "pipeline 'flights' has the sinks []"),
        (lambda: pipeline(sinks=[LAKE, LAKE]), "pipeline 'flights' has the sinks ['lake', 'lake']"),
        (
            lambda: pipeline(mode="interval", source=KafkaSource("t", max_records=1)),
            "max_records is for chained mode; an interval is read whole",
        ),
        (lambda: KafkaSource(""), "topic '' is no Kafka topic name"),
        (lambda: KafkaSource("a b"), "topic 'a b' is no Kafka topic name"),
        (lambda: KafkaSource("t" * 250), "is no Kafka topic name"),
        (lambda: KafkaSource("t", format="csv"), "format 'csv' is not known"),
        (lambda: KafkaSource("t", format="avro"), "needs a schema file ending in .avsc"),
        (lambda: KafkaSource("t", format="json", schema="x.avsc"), "needs a schema file ending in .ddl"),
        (lambda: KafkaSource("t", schema="x.avsc"), "takes no schema"),
        (lambda: KafkaSource("t", max_records=0), "max_records is 0"),
        (lambda: DeltaSink("by-day", "lake"), "'by-day' cannot be the name of a sink"),
        (lambda: DeltaSink("lake", ""), "sink 'lake' has no path"),
        (lambda: DeltaSink("lake", "lake", partition_by="day"), "sink 'lake' partition_by is a string"),
    ],
)
def test_nonsense_is_refused_at_once_and_the_message_says_what_to_do(make, message):
    with pytest.raises(InvalidPipeline) as refused:
        make()
    assert message in refused.value.what
    assert refused.value.todo


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sinks": [{"kind": "iceberg", "name": "x", "path": "y"}]}, "'iceberg'"),
        ({"sinks": [{"kind": "delta", "name": "x", "path": "y", "z_order": "day"}]}, "z_order"),
        ({"source": {"kind": "pulsar", "topic": "x"}}, "'pulsar'"),
        ({"window": 5}, "window"),
        ({"source": {"topic": "x"}}, "'kind'"),
    ],
)
def test_a_definition_of_a_newer_version_is_refused_with_what_is_new(change, why):
    with pytest.raises(InvalidPipeline, match="definition of 'flights' cannot be read") as refused:
        Pipeline.from_json({**pipeline().to_json(), **change})
    assert why in str(refused.value)
    assert "newer Onceonly" in refused.value.todo
