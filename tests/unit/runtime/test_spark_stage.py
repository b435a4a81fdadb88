"""Staging without a Spark to be had, and with several sinks: what reaches the user."""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from codes import raises

from onceonly.checkpoint.model import State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import NotCommitted, exit_code
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import spark_stage
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts, FakeSource


class WithoutSpark(FakeParts):
    """Fake sink and source, and a Spark that does not start."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings = Settings.from_env({"ONCEONLY_PROJECT": str(folder)})
        self.asked = 0

    def spark(self, records=None):
        self.asked += 1
        raise RuntimeError("JAVA_GATEWAY_EXITED")


def planned(parts: FakeParts, transform: str, folder: Path) -> tuple[Pipeline, Coordinator]:
    """One record of a topic, planned as epoch 1 of run-1."""
    source, sinks = KafkaSource("flights"), [DeltaSink("lake", "lake")]
    pipeline = Pipeline(name="flights", source=source, transform=transform, sinks=sinks)
    parts.sources(pipeline)["flights"].append(0, (datetime(2013, 1, 1, tzinfo=UTC), "a"))
    through = Coordinator(StateTable.make(str(folder / "state")), parts)
    through.plan(pipeline, "run-1", lambda checkpoint: False)
    return pipeline, through


def test_what_was_planned_again_with_another_definition_is_not_made_by_the_old_one(tmp_path, monkeypatch):
    """The stage process is stopped between its look and its claim; the same run plans again, with a newer DAG file."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "transforms_old_and_new.py").write_text("def old(batch):\n    return batch\n\nnew = old\n")
    parts = WithoutSpark(tmp_path / "fakes")
    parts.settings, parts.spark = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}), lambda: None
    pipeline, through = planned(parts, "transforms_old_and_new:old", tmp_path)
    stage = through.stage

    def later(*given):
        through.plan(replace(pipeline, transform="transforms_old_and_new:new"), "run-1", lambda checkpoint: False)
        return stage(*given)

    monkeypatch.setattr(through, "stage", later)
    with raises(NotCommitted, "definition-changed") as refused:
        spark_stage.stage(parts, through, "flights", 1, "run-1")
    assert "planned again meanwhile" in refused.value.why
    assert through.state_table.view("flights").checkpoint(1).state is State.PLANNED


def test_a_spark_that_does_not_start_has_surely_published_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "transforms_without_spark.py").write_text("def same(batch):\n    return batch\n")
    parts = WithoutSpark(tmp_path / "fakes")
    parts.settings = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)})
    _, through = planned(parts, "transforms_without_spark:same", tmp_path)
    with raises(NotCommitted, "staging-failed") as failed:
        spark_stage.stage(parts, through, "flights", 1, "run-1")
    assert "JAVA_GATEWAY_EXITED" in failed.value.why
    assert (exit_code(failed.value), parts.asked) == (1, 1)
    assert through.state_table.view("flights").checkpoint(1).state is State.PLANNED


class EndedSpark:
    """A session and a batch of a JVM that has ended: each call to it fails, also the one for an error's text."""

    class Error(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError(111, "Connection refused")

    def persist(self):
        return self

    def unpersist(self):
        raise ConnectionRefusedError(111, "Connection refused")


def test_a_jvm_that_ends_while_it_stages_is_told_as_such(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "transforms_without_jvm.py").write_text(
        "def same(batch):\n    batch.persist()\n    raise type(batch).Error\n"
    )
    parts = WithoutSpark(tmp_path / "fakes")
    parts.settings = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)})
    parts.spark = lambda records=None: EndedSpark()
    monkeypatch.setattr(FakeSource, "read", lambda source, spark, ranges: spark)
    producer_class = spark_stage._OutputProducer
    read = producer_class._read_batch
    monkeypatch.setattr(
        producer_class, "_read_batch", lambda producer, *given: producer._persist(read(producer, *given))
    )
    _, through = planned(parts, "transforms_without_jvm:same", tmp_path)
    with raises(NotCommitted, "jvm-ended"):
        spark_stage.stage(parts, through, "flights", 1, "run-1")


def test_only_the_first_attempt_takes_few_records_into_its_own_memory(tmp_path, monkeypatch):
    """They may be too much for it, and a second attempt has to get further."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    read_here: list[int] = []
    monkeypatch.setattr(FakeSource, "read_small_batch", lambda source, ranges: read_here.append(ranges[0].offset_count))
    (tmp_path / "transforms_that_fail.py").write_text("def fails(batch):\n    raise RuntimeError('as planned')\n")
    parts = WithoutSpark(tmp_path / "fakes")
    parts.settings = Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)})
    parts.spark = lambda records=None: None
    _, through = planned(parts, "transforms_that_fail:fails", tmp_path)
    for _ in range(3):
        with pytest.raises(NotCommitted) as failed:
            spark_stage.stage(parts, through, "flights", 1, "run-1")
        assert "as planned" in str(failed.value)
    assert read_here == [1]
