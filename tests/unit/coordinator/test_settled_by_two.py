"""Two that settle the same checkpoint at once: what the later one meets of Spark or a store is told as what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from codes import raises
from unit.world import World, values

from onceonly.checkpoint.model import State
from onceonly.errors import Fenced, OutcomeUnknown
from onceonly.testing.fakes import FakeSink

RAW = "s3a://bucket/lake/staged-…/part-00000.parquet: no such key"


@pytest.fixture
def world(tmp_path: Any) -> World:
    world = World(tmp_path)
    world.plan("run-1")
    return world


def another(world: World) -> World:
    """It takes every owner for ended."""
    world.ended.add("run-1")
    world.recover()
    return world


def broken_by(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object] = lambda: None) -> None:
    """The first call of that step fails with an error of the store, after another process has acted."""
    real: Any = getattr(FakeSink, step)

    def fails(sink: FakeSink, *arguments: Any) -> Any:
        monkeypatch.setattr(FakeSink, step, real)
        act()
        raise FileNotFoundError(RAW)

    monkeypatch.setattr(FakeSink, step, fails)


def test_a_stage_whose_files_another_one_removes_is_fenced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_by(monkeypatch, "stage", lambda: another(world))
    with raises(Fenced, "ownership-lost") as caught:
        world.stage()
    assert isinstance(caught.value.__cause__, FileNotFoundError), "and what it met is kept, for who looks for it"
    assert world.now().state is State.ABORTED


def test_also_where_what_it_wrote_cannot_be_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_by(monkeypatch, "stage", lambda: (another(world), broken_by(monkeypatch, "discard")))
    with raises(Fenced, "ownership-lost"):
        world.stage()


def test_a_stage_that_fails_alone_says_why(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_by(monkeypatch, "stage")
    with pytest.raises(FileNotFoundError, match="no such key"):  # `spark_stage.stage` puts it into words
        world.stage()
    assert world.now().state is State.PLANNED


def test_an_abort_that_another_one_ends_is_no_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stage()
    broken_by(monkeypatch, "discard", lambda: another(world))
    assert world.abort().state is State.ABORTED
    assert world.events().count("aborted") == 1


def test_an_abort_that_fails_alone_says_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.stage()
    broken_by(monkeypatch, "discard")
    with raises(
        OutcomeUnknown, "outcome-unknown", match=rf"(?s)epoch 1: not everything.*{RAW}.*onceonly recover flights"
    ):
        world.abort()
    assert world.now().state is State.ABORTING
    world.recover()
    assert world.now().state is State.ABORTED


@pytest.mark.parametrize("step", ["commit", "discard", "leftovers"])
def test_whatever_recovery_meets_it_says_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world.stage()
    if step == "discard":
        broken_by(monkeypatch, step)
        with pytest.raises(OutcomeUnknown):
            world.abort()
    broken_by(monkeypatch, step)
    with raises(OutcomeUnknown, "outcome-unknown", match=rf"(?s){RAW}.*onceonly recover flights"):
        another(world)
    world.recover()
    assert world.state.view("flights").open == []
    assert values(world.lake) == ([] if step == "discard" else [0, 1, 2, 3, 4])
