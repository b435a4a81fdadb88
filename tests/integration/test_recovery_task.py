"""What the recovery DAG's task does with what it cannot settle: it fails, says the command, and settles the rest."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.world import World

from onceonly import deadlines
from onceonly.checkpoint import Checkpoint, State
from onceonly.coordinator import Coordinator
from onceonly.errors import InDoubt
from onceonly.pipeline import DeltaSink
from onceonly.report import Report

pytestmark = pytest.mark.integration


class Events(dict[Any, Any]):
    """Stands for the context's outlet_events."""

    def __missing__(self, alias: Any) -> Any:
        self[alias] = SimpleNamespace(sent=[], add=lambda asset, extra: self[alias].sent.append((asset.uri, extra)))
        return self[alias]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, sinks=[DeltaSink("lake", "lake/flights")])


@pytest.fixture
def recover(world: World, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The task as Airflow runs it; its second result is what it announced."""
    from onceonly.airflow import RecoverOperator
    from onceonly.airflow.assets import RECOVERED

    operator = RecoverOperator(task_id="recover")
    through = Coordinator(world.state, world.parts, operator._log_transition)
    monkeypatch.setattr(operator, "coordinator", lambda: through)
    events = Events()
    context = {"ti": SimpleNamespace(get_dagrun_state=lambda dag, run: "failed"), "outlet_events": events}
    return lambda: (operator.execute(context), events[RECOVERED].sent)


def staged(world: World, owner: str = "airflow:flights:run-1") -> Checkpoint:
    checkpoint = world.plan(owner)
    assert checkpoint is not None
    return world.stage(checkpoint.epoch)


def test_what_an_ended_run_staged_is_published_and_announced(world: World, recover: Any) -> None:
    staged(world)
    settled, sent = recover()
    assert settled == {"flights": {1: "committed"}}
    assert [(uri, extra["epoch"], extra["rows"]) for uri, extra in sent] == [("onceonly://lake/flights", 1, 5)]


def test_what_jobs_have_said_to_nobody_goes(world: World, recover: Any) -> None:
    staged(world)
    said = Report.of(world.state.uri, "stage-flights-1-0123456789ab")
    said.say("60 of 100 tasks")
    os.utime(said.uri, (0, 0))
    recover()
    assert not Path(said.uri).exists()


def test_doubt_fails_the_task_with_the_command_to_give(
    world: World, recover: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    staged(world)
    world.lake.fail("commit", "doubt")
    with pytest.raises(InDoubt, match="onceonly resolve"):
        recover()
    assert "is in doubt" in capsys.readouterr().out
    assert world.now().state is State.COMMITTING


def test_80_percent_of_a_time_out_is_a_warning_beside_an_error(
    world: World, recover: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = {"opened_at": (datetime.now(UTC) - timedelta(minutes=13)).isoformat(), "timeout": 900.0}
    stage = type(world.lake).stage
    monkeypatch.setattr(type(world.lake), "stage", lambda sink, txn, rows: {**stage(sink, txn, rows), **opened})
    staged(world)
    world.lake.fail("commit", "doubt")
    with pytest.raises(InDoubt):
        recover()
    assert deadlines.WARN_AT == 0.8
    assert "have used 87% of their time-out" in capsys.readouterr().out
