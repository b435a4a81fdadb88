"""`onceonly run`: it stages again by itself, says who has to act, and asks before a wide interval is pinned."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner
from unit.cli.test_exit_codes import PIPELINES, Here, here, invoke  # noqa: F401
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.cli import main
from onceonly.coordinator.rehearsal import MAX_UNFIT_ATTEMPTS

pytestmark = pytest.mark.slow
ROWS = list(range(5))


def run(name: str = "flights", *options: str) -> Any:
    return invoke("run", f"pipelines.py:{name}", *options)


@pytest.fixture
def world(here: Here) -> World:  # noqa: F811
    return here.world


def test_damaged_rows_are_staged_again(world: World) -> None:
    world.lake.fail("rehearse", "again")
    result = run()
    assert result.exit_code == 0, result.output
    assert "flights epoch 1 is staged again: attempt 1 could not be published" in result.stdout
    assert world.now().attempt == 2
    assert values(world.lake) == values(world.files) == ROWS


def test_json_names_each_attempt(world: World) -> None:
    world.lake.fail("rehearse", "again", "again")
    told = json.loads(run("flights", "--json").stdout)
    assert (told["result"], told["attempt"]) == ("committed", 3)
    assert [(attempt["attempt"], attempt["code"]) for attempt in told["staged_again"]] == [
        (1, "staged-rows-damaged"),
        (2, "staged-rows-damaged"),
    ]
    assert json.loads(run("flights", "--json").stdout)["staged_again"] == []


def test_staging_again_ends(world: World) -> None:
    world.lake.fail("rehearse", *["again"] * (MAX_UNFIT_ATTEMPTS + 1))
    result = run("flights", "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout)["error"] == "ActionNeeded"
    assert (world.now().state, world.now().attempt) == (State.STAGED, MAX_UNFIT_ATTEMPTS + 1)


def test_gate_judges_each_attempt(world: World) -> None:
    world.lake.fail("rehearse", "again")
    assert run("strict").exit_code == 0
    assert world.events().count("verdict") == 2


def test_gate_may_hold_the_next_attempt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.lake.fail("rehearse", "again")
    inspector = world.parts.inspector(world.pipeline)
    stage, attempts = world.parts.produce, list[int]()

    def produce(checkpoint: Any) -> Any:
        attempts.append(checkpoint.attempt)
        if len(attempts) == 2:
            inspector.find("critical")
        return stage(checkpoint)

    monkeypatch.setattr(world.parts, "produce", produce)
    result = run("held")
    assert result.exit_code == 4, result.output
    assert (world.now().is_held, world.now().attempt) == (True, 2)
    assert values(world.lake) == []


def test_attempt_that_others_ended_is_staged_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has rehearsed it, and aborted it, before this one could."""
    stage, stages = world.coordinator.__class__.stage, list[int]()

    def staging(self: Any, *arguments: Any, **more: Any) -> Any:
        staged = stage(self, *arguments, **more)
        if not stages:
            stages.append(staged.attempt)
            world.lake.fail("rehearse", "again")
            world.ended.add(staged.owner)
            world.recover()
        return staged

    monkeypatch.setattr(world.coordinator.__class__, "stage", staging)
    result = run("flights", "--json")
    assert result.exit_code == 0, result.output
    assert [each["code"] for each in json.loads(result.stdout)["staged_again"]] == ["stage-again"]
    assert values(world.lake) == values(world.files) == ROWS


def test_refusal_waits_for_a_person(world: World) -> None:
    world.lake.fail("rehearse", "action")
    result = run()
    assert result.exit_code == 4
    assert "sink 'lake' waits for a person to act" in result.stderr
    assert world.now().state is State.STAGED
    assert run().exit_code == 0
    assert values(world.lake) == ROWS


def test_silent_target_keeps_the_stage(world: World) -> None:
    world.lake.fail("rehearse", "before")
    result = run("flights", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["code"] == "no-answer"
    assert world.now().state is State.STAGED
    assert run().exit_code == 0
    assert world.now().attempt == 1


WIDE = ("--interval", "2013-01-01T12:20", "2013-01-01T13:00")


@pytest.mark.parametrize(("answer", "code", "epochs"), [("n", 1, 2), ("y", 0, 3), (None, 0, 3)])
def test_wide_interval_is_told_before_it_is_pinned(
    here: Here,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
    code: int,
    epochs: int,
) -> None:
    """A person is asked; elsewhere it is a warning."""
    here.mode = "interval"
    (here.home.parent / "pipelines.py").write_text(f'{PIPELINES}\ntens = pipeline(mode="interval")\n')
    here.world.put(*range(5, 60))
    for start in (0, 10):
        here.world.run(f"run-{start}", minutes(start, start + 10))
    monkeypatch.setattr("onceonly.cli.run.is_interactive", lambda: answer is not None)
    result = CliRunner().invoke(main, ["run", "pipelines.py:tens", *WIDE], input=f"{answer}\n")
    assert (result.exit_code, here.world.state.view("flights").head.epoch) == (code, epochs), result.output
    assert result.stderr.count("onceonly run pipelines.py:tens --interval") == 4
    if code == 0:
        again = CliRunner().invoke(main, ["run", "pipelines.py:tens", *WIDE])
        assert "onceonly run" not in again.stderr
