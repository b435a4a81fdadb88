"""How many records were bad stands in the row of STAGED, and is shown wherever a checkpoint is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit.world import Durable, World

from onceonly.checkpoint.model import Checkpoint, Event
from onceonly.cli import main
from onceonly.coordinator.stage import Produced
from onceonly.errors import BadRecord
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.views import descriptions, queries

BAD = {"records": 1204, "undecoded": {"flights": 10}, "rejected": 2}
SINKS = [DeltaSink("lake", "lake")]


def make(folder: Path) -> Durable:
    source = KafkaSource("flights", "json", "flights.ddl", on_bad_record="dead_letter")
    return Durable(folder, source=source, sinks=SINKS, dead_letters=DeltaSink("files", "files"))


def stage(world: World, bad: dict[str, Any]) -> Checkpoint:
    return world.coordinator.stage("flights", 1, lambda cp: Produced(world.parts.produce(cp), bad), None)


def test_the_numbers_are_those_of_the_attempt_that_is_staged(tmp_path: Path) -> None:
    world = make(tmp_path)
    world.plan()
    assert stage(world, BAD).bad == BAD
    world.abort()
    world.plan("run-2")
    assert world.now().bad == {} and world.now().bad_records is None
    assert stage(world, {**BAD, "rejected": 0}).bad_records == 10
    assert world.commit().bad_records == 10


def test_a_pipeline_without_such_records_is_recorded_as_before(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("run-1")
    staged = next(row for row in world.state.history("flights") if row.event is Event.STAGED)
    assert set(staged.body) == {"handles"}
    assert not {"dead_letters", "max_bad"} & set(world.now().definition.json)
    assert descriptions.describe_bad_records(world.now()) == "" and queries.to_json(world.now())["bad"] is None


def test_too_many_leave_nothing_staged(tmp_path: Path) -> None:
    world = make(tmp_path)
    world.plan()

    def too_many(_: Checkpoint) -> Produced:
        raise BadRecord("12 of 100 records are bad.")

    with pytest.raises(BadRecord):
        world.coordinator.stage("flights", 1, too_many, None)
    assert world.now().state.value == "planned" and not world.lake.rows()


def test_they_are_shown_where_the_rows_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    world = make(tmp_path)
    world.plan()
    staged = stage(world, BAD)
    assert descriptions.describe_bad_records(staged) == "12 of 1,204 records (10 of 'flights', 2 by the transform)"
    row = world.state.history("flights")[-1]
    assert (
        list(descriptions.describe_transition(staged, row))[-1] == f"  bad: {descriptions.describe_bad_records(staged)}"
    )
    assert "(12 bad)" in said("status", "flights")
    assert "12 of 1,204 records (10 of 'flights'" in said("describe", "flights", "1")
    assert json.loads(said("status", "flights", "--json"))["checkpoints"][0]["bad"] == 12
    assert json.loads(said("describe", "flights", "1", "--json"))["bad_records"] == BAD
    assert "bad)" not in said("status"), "it shows what is published"
    world.commit()
    assert "(12 bad)" in said("status")


def said(*args: str) -> str:
    return CliRunner(env={"COLUMNS": "300"}).invoke(main, args).stdout


@pytest.mark.usefixtures("airflow_home")
def test_an_asset_event_says_it(tmp_path: Path) -> None:
    from onceonly.airflow.assets import list_published

    world = make(tmp_path)
    world.plan()
    stage(world, BAD)
    assert [extra["bad"] for _, extra in list_published(world.commit())] == [12, 12]
    plain = World(tmp_path / "plain")
    assert all("bad" not in extra for _, extra in list_published(plain.run("run-1")))


def test_a_definition_of_them_is_read_back(tmp_path: Path) -> None:
    world = make(tmp_path)
    assert world.plan().definition.pipeline == world.pipeline  # type: ignore[union-attr]
