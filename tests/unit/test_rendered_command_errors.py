"""Errors of commands, of the demo and of registries whose code no other test names: raised, and their messages read."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from test_rendered_errors import CHECKPOINT, fail, refusal

from onceonly.checkpoint.offsets import Interval
from onceonly.cli import environment, project_files, state
from onceonly.coordinator import stage
from onceonly.dev.demo import load, standalone
from onceonly.dev.services import daemon
from onceonly.errors import BadRecord, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.settings import Settings
from onceonly.sources import json_inference
from onceonly.sources.registered_values import PartSchemas, RegisteredPart
from onceonly.spark import decoding, jars
from onceonly.statetable import location, table
from onceonly.statetable.table import StateTable
from onceonly.views import queries

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


# ---- the state table


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ONCEONLY_STATE", str(tmp_path / "state"))
    StateTable.make(str(tmp_path / "state"))
    return str(tmp_path / "state")


def test_the_state_table_itself_is_not_forked(at_home: str) -> None:
    identity = location.read_properties(at_home)
    with refusal(InvalidPipeline, "state-table-not-copied"):
        assert state.fork.callback
        state.fork.callback()
    assert location.read_properties(at_home) == identity


def test_open_checkpoints_are_not_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "list_unsettled_epochs", lambda uri: {"flights": [3, 4]})
    with refusal(InvalidPipeline, "checkpoints-unsettled"):
        state._refuse_open("/copy")


def test_no_pipeline_has_that_name(at_home: str) -> None:
    with refusal(InvalidPipeline, "no-such-pipeline"):
        queries.check_pipeline_exists(StateTable(at_home), "flights")


def test_every_slot_of_a_pool_is_leased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_leased_slots", lambda checkpoints: set(range(len(list(checkpoints)))))
    definition = SimpleNamespace(pipeline=SimpleNamespace(name="flights", pool_size=2))
    checkpoint: Any = SimpleNamespace(**vars(CHECKPOINT), definition=definition)
    others: Any = SimpleNamespace(open=[SimpleNamespace(epoch=5), SimpleNamespace(epoch=6), checkpoint])
    with refusal(NotCommitted, "pool-exhausted"):
        stage._find_free_slot(others, checkpoint)


# ---- the demo and what it starts


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


def test_a_process_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = daemon.Daemon(tmp_path / "broker")
    service.folder.mkdir()
    service._write_record(daemon.Started("token", 9, None))
    stuck = psutil.Process()  # it is asked for nothing but its number
    monkeypatch.setattr(daemon, "_find_processes", lambda token: {stuck})
    monkeypatch.setattr(daemon, "_find_carriers", lambda token: [stuck])
    monkeypatch.setattr(daemon, "_end", lambda processes, signal: None)
    monkeypatch.setattr(daemon, "_reap", lambda pid: None)
    instants = iter([0.0, daemon.EXIT_SECONDS + 1])
    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: next(instants), sleep=time.sleep))
    with refusal(daemon.ServiceFailed, "service-not-stopped"):
        service.stop()
    assert service.last() is not None  # so that it can be stopped again


def test_a_mirror_has_no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho unresolved dependency\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(jars, "_require_java", lambda: str(java))
    with refusal(NotCommitted, "jars-not-fetched"):
        jars._retrieve(tmp_path, ["spark"], tmp_path / "jars", tmp_path / "ivysettings.xml")


# ---- registries


def registered(part: type[PartSchemas]) -> Any:
    """Return a part whose registry has no schema at all."""
    connection = SimpleNamespace(describe=lambda: "at 127.0.0.1")
    registry = SimpleNamespace(connection=connection, find_schema=lambda id, is_compiled: None)
    found: Any = object.__new__(part)
    for name, value in {"topic": "flights", "part": "value", "format": "avro", "registry": registry}.items():
        object.__setattr__(found, name, value)
    return found


def test_a_pinned_schema_is_gone() -> None:
    with refusal(InvalidPipeline, "registry-changed"):
        registered(PartSchemas)._read_pinned(7, "0f")


def test_a_record_names_a_schema_that_nobody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Any = SimpleNamespace()
    rows.select = rows.sort = lambda *columns: rows
    rows.first = lambda: ("flights", 0, 42)
    monkeypatch.setattr(decoding, "select_id", lambda frame, part, id: rows)
    with refusal(BadRecord, "schema-unknown"):
        raise registered(RegisteredPart)._unknown_id_error(7, rows)
