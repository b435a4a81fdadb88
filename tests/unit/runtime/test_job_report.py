"""What jobs on a cluster have said goes when nobody will read it any more."""

import os
from pathlib import Path

import pytest
from unit.world import World

from onceonly.runtime import job_report
from onceonly.runtime.job_report import Report

HOURS_AGO = -7 * 3600


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def left(world: World, name: str, age: int = HOURS_AGO) -> Path:
    """A report that nobody awaited."""
    said = Report.for_job(world.state.uri, name)
    said.say("60 of 100 tasks")
    path = Path(said.uri)
    os.utime(path, (path.stat().st_mtime + age,) * 2)
    return path


def test_reports_of_settled_checkpoints_go_when_they_are_old(world):
    world.run("run-1")
    old = left(world, "stage-flights-1-0123456789ab")
    assert job_report.sweep_reports(world.state) == [old.name]
    assert not old.exists()


def test_a_report_that_may_be_awaited_stays(world):
    world.run("run-1")
    world.put(5)
    world.plan("run-2")
    fresh = left(world, "gate-flights-1-0123456789ab", age=0)
    unsettled = left(world, "stage-flights-2-0123456789ab")
    assert job_report.sweep_reports(world.state) == []
    assert fresh.exists() and unsettled.exists()


def test_a_report_of_no_checkpoint_goes(world):
    """The state table is a fork, whose folder was copied with all that is in it, or began anew."""
    assert job_report.sweep_reports(world.state) == []
    left(world, "stage-trains-4-0123456789ab")
    assert job_report.sweep_reports(world.state) == ["stage-trains-4-0123456789ab"]


def test_what_is_no_report_stays(world):
    foreign = left(world, "notes.txt")
    assert job_report.sweep_reports(world.state) == []
    assert foreign.exists()


def test_a_job_that_is_still_at_work_leaves_its_whole_report_again(world):
    world.run("run-1")
    said = Report.for_job(world.state.uri, "stage-flights-1-0123456789ab")
    said.say("one")
    os.utime(said.uri, (0, 0))
    assert job_report.sweep_reports(world.state)
    said.end(0)
    assert (said.read().lines, said.read().code) == (("one",), 0)
