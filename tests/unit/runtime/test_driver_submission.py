"""A task that is tried again waits for the driver of the try before, if that is at work, and for no other one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from unit.world import Durable as World

from onceonly.errors import NotCommitted
from onceonly.kafka.airflow_connections import read_variable
from onceonly.runtime import driver as drivers
from onceonly.runtime import driver_submission, job_report
from onceonly.runtime.cluster import GONE, ApplicationStatus, RunningApplication
from onceonly.runtime.driver import Driver
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.runtime.spark_submit import DriverJob
from onceonly.settings import Settings

RUN = "airflow:flights:a run"
SPARK = SparkConnection("yarn", cluster="yarn+http://rm:8088", connection="yarn_prod")


class Applications:
    """A cluster that keeps what it was given, by id: its job and state."""

    def __init__(self, lists: bool = True) -> None:
        self.known: dict[str, tuple[DriverJob, str]] = {}
        self.lists, self.answers, self.ended = lists, True, []

    def submit(self, job: DriverJob, launcher: Any) -> str:
        name = f"application_{len(self.known) + 1}"
        self.known[name] = (job, "RUNNING")
        return name

    def list_submitted(self, job: DriverJob) -> Sequence[str]:
        return [name for name, (known, _) in self.known.items() if known.nonce == job.nonce]

    def find(self, tag: str) -> Sequence[RunningApplication]:
        self._check()
        at_work = {name: job for name, (job, state) in self.known.items() if state == "RUNNING" and job.tag == tag}
        return [RunningApplication(name, job.name) for name, job in at_work.items()] if self.lists else []

    def look(self, application: str) -> ApplicationStatus:
        self._check()
        if application not in self.known:
            return GONE
        state = self.known[application][1]
        return ApplicationStatus(state, state == "RUNNING")

    def end(self, application: str) -> None:
        self.ended.append(application)

    def becomes(self, application: str, state: str) -> None:
        self.known[application] = (self.known[application][0], state)

    def _check(self) -> None:
        if not self.answers:
            raise NotCommitted("the cluster does not answer")


@pytest.fixture(params=[True, False], ids=["lists by tag", "knows ids only"])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Applications:
    made = Applications(request.param)
    for module in (driver_submission, drivers):
        monkeypatch.setattr(module, "open_cluster", lambda address: made)
    return made


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.plan(RUN)
    return made


def submission(world: World, owner: str = RUN) -> driver_submission.Submission:
    settings = Settings.from_env({"ONCEONLY_STATE": world.state.uri, "ONCEONLY_PROJECT": "/project"})
    found = driver_submission.Work("flights", 1, owner).prepare_stage(SPARK, settings, read_variable)
    assert found is not None
    return found


def submit(world: World) -> Driver:
    return submission(world).run(lambda line: None)


def forget(world: World) -> None:
    """As if the task had died between the submission and its note."""
    for named in job_report.list_drivers(world.state):
        Driver(**{name: named.driver[name] for name in ("master", "driver", "report")}).open_report().forget_driver()


def test_the_driver_of_the_try_before_is_waited_for(world: World, cluster: Applications) -> None:
    first = submit(world)
    assert job_report.list_drivers(world.state)[0].driver["connection"] == "yarn_prod", "by which recovery would end it"
    assert submit(world) == first
    world.coordinator._stager.claim("flights", 1, RUN)  # it has begun
    assert submit(world) == first
    assert len(cluster.known) == 1


def test_one_that_was_never_noted_is_found_by_its_tag(world: World, cluster: Applications) -> None:
    first = submit(world)
    forget(world)
    if cluster.lists:
        assert submit(world) == first, "with the report that it writes"
        assert job_report.list_drivers(world.state)[0].driver["driver"] == first.driver
    else:
        assert submit(world).driver == "application_2", "it is fenced: the second to begin takes nothing over"


@pytest.mark.parametrize("state", ["FAILED", "KILLED", "FINISHED"])
def test_one_that_has_ended_is_followed_by_another(world: World, cluster: Applications, state: str) -> None:
    first = submit(world)
    cluster.becomes(first.driver, state)
    second = submit(world)
    assert second.driver == "application_2"
    assert submit(world) == second


def test_one_that_somebody_has_asked_to_end_is_not_waited_for(world: World, cluster: Applications) -> None:
    """A task that was cleared is to begin again, although its driver may take a while to end."""
    first = submit(world)
    first.end()
    assert cluster.ended == [first.driver]
    assert submit(world).driver == "application_2"


def test_nor_is_one_of_another_attempt_plan_or_table(world: World, cluster: Applications, tmp_path: Path) -> None:
    submit(world)
    world.coordinator._stager.claim("flights", 1, RUN)
    world.abort()
    assert submit(world).driver == "application_2", "it was aborted: whoever claims now is another attempt"
    world.plan(RUN)
    assert submit(world).driver == "application_3", "it was planned again"
    other = World(tmp_path / "other")
    other.plan(RUN)
    assert submit(other).driver == "application_4"


def test_nor_is_one_that_only_has_the_tag(world: World, cluster: Applications) -> None:
    """Anybody may start an application with a tag. Its name is that of a file, which is read and deleted."""
    first = submit(world)
    forget(world)
    job = cluster.known[first.driver][0]
    cluster.known[first.driver] = (replace(job, name="../../lake"), "RUNNING")
    assert submit(world).driver == "application_2"


def test_no_driver_is_started_as_long_as_the_cluster_does_not_say(world: World, cluster: Applications) -> None:
    submit(world)
    cluster.answers = False
    with pytest.raises(NotCommitted):
        submit(world)
    assert len(cluster.known) == 1


def test_the_last_driver_is_the_one_that_was_found_last(world: World, cluster: Applications) -> None:
    """Recovery ends what a later one follows."""
    first = submit(world)
    twice = submission(world)
    twice._find_running = lambda: iter(())  # type: ignore[method-assign]
    second = twice.run(lambda line: None)
    assert first.open_report().is_followed()
    cluster.becomes(second.driver, "FAILED")
    assert submit(world) == first
    assert not first.open_report().is_followed()
    assert second.open_report().is_followed()


def test_a_submission_is_taken_back_while_it_is_made(world: World, cluster: Applications) -> None:
    made = submission(world)
    made.end()
    assert cluster.ended == []
    driver = made.run(lambda line: None)
    made.end()
    assert cluster.ended == [driver.driver]
