"""Errors of commands and of the demo whose code no other test names: raised, and their messages read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_rendered_errors import fail, refusal

from onceonly.checkpoint.offsets import Interval
from onceonly.cli import environment, project_files
from onceonly.dev.demo import load, standalone
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.settings import Settings
from onceonly.sources import json_inference
from onceonly.spark import jars

SOURCE = KafkaSource("flights", format="json", schema="schemas/flights.ddl")
JANUARY = Interval(datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 2, 1, tzinfo=UTC))


# ---- files of a project


def infer(values: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    services = SimpleNamespace(kafka=lambda connection, bootstrap: None)
    monkeypatch.setattr(environment, "open_services", lambda settings: services)
    monkeypatch.setattr(json_inference, "read_last_values", lambda topic, kafka, most: iter(values))
    project_files._infer_columns(SOURCE, Settings.from_env(), 10)


def test_a_sample_has_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusal(InvalidPipeline, "no-columns-found"):
        infer([b"7", b"{}"], monkeypatch)


def test_two_fields_of_a_sample_are_one_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    with refusal(InvalidPipeline, "fields-ambiguous"):
        infer([b'{"day": 1, "Day": 2}'], monkeypatch)


def test_no_topic_is_read_as_json() -> None:
    pipeline = Pipeline(name="p", source=KafkaSource("t"), transform="a.b:c", sinks=[DeltaSink("lake", path="lake")])
    with refusal(InvalidPipeline, "topic-not-json"):
        project_files._source(pipeline, None)


def test_a_schema_is_not_replaced(tmp_path: Path) -> None:
    file = tmp_path / "flights.ddl"
    file.write_text("day INT")
    with refusal(InvalidPipeline, "file-exists"):
        project_files._write_schema(file, "day BIGINT")
    assert file.read_text() == "day INT"


def test_the_folder_of_a_schema_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "schemas").touch()
    with refusal(NotCommitted, "file-not-writable"):
        project_files._write_schema(tmp_path / "schemas" / "flights.ddl", "day INT")


# ---- the demo, and jars


def test_a_flight_is_not_delivered() -> None:
    sender: Any = SimpleNamespace(_failures=["timed out"], _topic="flights")
    with refusal(OutcomeUnknown, "demo-load-interrupted"):
        load._Sender._require_no_failure(sender)


def test_a_topic_has_other_records_than_flights() -> None:
    positions = [{0: SimpleNamespace(offset=0, at=JANUARY.start)}, {0: SimpleNamespace(offset=9, at=None)}]
    reader: Any = SimpleNamespace(offsets_at=lambda instant: positions[instant == JANUARY.end])
    with refusal(InvalidPipeline, "demo-topic-unsuitable"):
        load._count_present(reader, "flights", JANUARY, {0: 5})


def test_brokers_refuse_to_create_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError, KafkaException, admin

    refused = fail(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
    client = SimpleNamespace(create_topics=lambda topics, **_: {"flights": SimpleNamespace(result=refused)})
    monkeypatch.setattr(admin, "AdminClient", lambda configuration: client)
    with refusal(NotCommitted, "topic-not-created"):
        load._create_topic("127.0.0.1:9", "flights")


def test_a_part_of_the_demo_is_never_ready() -> None:
    with refusal(NotCommitted, "demo-failed"):
        standalone.wait_until(lambda: False, "Airflow is up", 0)


def test_a_mirror_has_no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho unresolved dependency\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(jars, "_require_java", lambda: str(java))
    with refusal(NotCommitted, "jars-not-fetched"):
        jars._retrieve(tmp_path, ["spark"], tmp_path / "jars", tmp_path / "ivysettings.xml")
