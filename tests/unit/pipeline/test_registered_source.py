"""A source whose values have schemas in a registry, as it is defined and stored."""

from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import list_connection_ids, list_registry_ids
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource, source_json


def test_it_is_read_by_a_file_or_by_a_subject() -> None:
    KafkaSource("orders", "avro", registry="registry")
    KafkaSource("orders", "avro", registry="registry", schema="order.avsc")
    KafkaSource("orders", "avro", registry="registry", subject="shop.Order")


@pytest.mark.parametrize(
    ("fields", "code", "why"),
    [
        ({"format": "raw", "registry": "registry"}, "options-conflict", "no schemas in a registry"),
        ({"format": "avro", "registry": "http://ann:secret@host"}, "option-invalid", "is not an Airflow connection id"),
        ({"format": "avro", "schema": "a.avsc", "subject": "orders"}, "option-missing", "needs a registry"),
        (
            {"format": "avro", "schema": "a.avsc", "subject": "o", "registry": "r"},
            "options-conflict",
            "one of subject and schema",
        ),
        (
            {"format": "avro", "schema": "a.json", "registry": "r"},
            "option-invalid",
            "ending in .avsc",
        ),
        ({"format": "avro"}, "option-invalid", "needs a schema file"),
        ({"format": "protobuf"}, "option-missing", "is read with a schema registry"),
        ({"format": "protobuf", "registry": "r", "schema": "a.proto"}, "option-invalid", "takes no schema"),
        ({"format": "avro", "registry": "r", "message": "A"}, "options-conflict", "is of Protobuf"),
        ({"format": "raw", "key_format": "avro"}, "option-missing", "key_format 'avro' needs a registry"),
        ({"format": "raw", "key_format": "xml", "registry": "r"}, "option-invalid", "key_format 'xml' is not known"),
        (
            {"format": "raw", "key_format": "avro", "registry": "r", "subject": "o"},
            "options-conflict",
            "has no schemas in a registry",
        ),
        (
            {"format": "json", "registry": "r", "schema": "a.avsc"},
            "option-invalid",
            "ending in .ddl",
        ),
    ],
)
def test_what_does_not_fit_is_refused(fields: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code, match=why) as caught:
        KafkaSource("orders", **fields)
    assert "secret" not in str(caught.value)


def test_without_a_registry_it_is_stored_as_before() -> None:
    assert not {"grace", "registry", "subject", "key_format"} & set(source_json(KafkaSource("orders")))


def test_its_registry_is_one_of_the_connections() -> None:
    source = KafkaSource("orders", "avro", connection="kafka", registry="registry")
    made = Pipeline(name="orders", source=source, transform="a:b", sinks=[DeltaSink("lake", "lake")])
    assert (list_connection_ids(made), list_registry_ids(made)) == ({"kafka", "registry"}, {"registry"})
    assert Pipeline.from_json(made.to_json()) == made
