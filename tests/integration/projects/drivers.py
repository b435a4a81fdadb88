"""A project whose stages run on a cluster: what the tests of every kind of cluster have in common."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from integration.projects.project import Project, make_project, produce
from integration.services.standalone import ROOT
from patience import PATIENCE

from onceonly.airflow import connections, triggers
from onceonly.airflow.triggers import DriverTrigger
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services.service import Service
from onceonly.errors import NotCommitted
from onceonly.kafka import airflow_connections
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import job_report, live_services, owners
from onceonly.runtime.driver import Driver, stop_orphaned_drivers
from onceonly.runtime.driver_submission import Work
from onceonly.runtime.job_report import JOBS_FOLDER
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.settings import Settings

NAME, OWNER = "numbers_chained", "a run"
WORK = Work(NAME, 1, OWNER)
SLOW = """

def slow(batch):
    def wait(batches):
        import pathlib, time
        for rows in batches:
            pathlib.Path({folder!r}, "at-work").touch()
            while not pathlib.Path({folder!r}, "go-on").exists():
                time.sleep(0.1)
            yield rows
    return numbers(batch).mapInPandas(wait, "n BIGINT, part STRING")
"""


@dataclass
class World:
    """A project whose stage runs on a cluster, by the Airflow connection `spark`."""

    project: Project

    @property
    def through(self) -> Coordinator:
        return live_services.open_coordinator(self.project.parts)

    @property
    def now(self) -> Checkpoint:
        found = self.through.state_table.view(NAME).checkpoint(1)
        assert found is not None
        return found

    def plan(self, transform: str = "numbers", connection: str = "kafka_there") -> None:
        source = KafkaSource(topic=self.project.topic, connection=connection)
        planned = replace(self.project.pipeline(transform=transform), source=source)
        assert self.through.plan(planned, OWNER, owners.is_never_alive).fresh

    def submit(self, anew: bool = False) -> Driver:
        return submit(connections.read_spark_connection("spark"), anew)

    def require_staged(self, submitted: Driver, state: str) -> None:
        WORK.require_staged(submitted, Settings.from_env(), state)

    def until_at_work(self) -> None:
        wait_until((self.project.folder / "at-work").exists, "the transform is at work", PATIENCE)

    def go_on(self) -> None:
        (self.project.folder / "go-on").touch()

    def reports(self) -> list[Path]:
        """Files of jobs, without how far a stage was, which is deleted by its name with the next one."""
        files = Path(self.project.settings.state, JOBS_FOLDER).glob("*")
        return [file for file in files if file.suffix != ".progress"]

    def publish(self, submitted: Driver, state: str) -> None:
        """The transform goes on; what the driver stages, in whose end the cluster calls it so, is published."""
        self.go_on()
        assert fired(trigger(submitted))["state"] in (state, "at its end")
        self.require_staged(submitted, state)
        self.through.commit(NAME, 1)
        assert self.project.published() == Counter(range(8))

    def processes(self) -> list[psutil.Process]:
        """Of the drivers of this project."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and str(self.project.folder) in " ".join(process.cmdline()):
                    found.append(process)
        return found


def make_world(
    tmp_path: Path,
    broker: str,
    spark: str,
    kafka: Mapping[str, Mapping[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> World:
    """A project with eight records; `spark` and `kafka` are the connections of this process."""
    project = make_project(tmp_path, broker, "", re.sub(r"\W", "_", request.node.name.removeprefix("test_"))[:60])
    jars = {"ONCEONLY_JARS": os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars"))}
    known = {
        name: value
        for each, extra in kafka.items()
        for name, value in airflow_connections.write_variable(each, extra).items()
    }
    for name, value in {**project.env(), **jars, **known, "AIRFLOW_CONN_SPARK": spark}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(triggers, "POLL_SECONDS", 0.2)
    module = tmp_path / f"transforms_{project.topic}.py"
    module.write_text(module.read_text() + SLOW.format(folder=str(tmp_path)))
    produce(project, range(8))
    return World(project)


def submit(spark: SparkConnection, anew: bool = False) -> Driver:
    """As a task does. `anew`: as one that looks for no driver of another try, as if both looked at the same time."""
    found = WORK.prepare_stage(spark, Settings.from_env(), connections.read_extra)
    assert found is not None
    if anew:
        found._find_running = lambda: iter(())  # type: ignore[method-assign]
    return found.run(print)


def trigger(submitted: Driver, deadline: float | None = None) -> DriverTrigger:
    return DriverTrigger(**vars(submitted), deadline=deadline)


def fired(waits: DriverTrigger) -> Any:
    """The event, as a triggerer gets it."""

    async def first() -> Any:
        async for event in waits.run():
            return event.payload
        return None

    return asyncio.run(first())


def fired_in_an_outage(world: World, waits: DriverTrigger, capsys: pytest.CaptureFixture[str]) -> Any:
    """The event, when nobody answers the trigger. The transform goes on once the trigger has asked again."""

    async def first() -> Any:
        task = asyncio.ensure_future(anext(waits.run()))
        while "asking again" not in capsys.readouterr().out:
            await asyncio.sleep(0.05)
        world.go_on()
        return (await task).payload

    return asyncio.run(first())


def ended_by_recovery(world: World) -> bool:
    state = world.through.state_table
    list(
        stop_orphaned_drivers(
            state, owners.is_never_alive, lambda conn_id: connections.read_spark_connection(conn_id).cluster
        )
    )
    return not job_report.list_drivers(state)


def ended(world: World, submitted: Driver, how: str, otherwise: Callable[[], object]) -> str:
    """By the one who waits for it, by recovery, by its deadline, or `otherwise`; what the cluster says of it then."""
    if how == "cleared":
        asyncio.run(trigger(submitted).on_kill())
        assert world.reports() == []
    elif how == "left":
        wait_until(lambda: ended_by_recovery(world), "recovery has it ended", PATIENCE)
    elif how != "too long":
        otherwise()
    return str(fired(trigger(submitted, time.time() if how == "too long" else None))["state"])


def nothing_goes_on(world: World, submitted: Driver, state: str) -> None:
    wait_until(lambda: not world.processes(), "the driver's processes are gone", PATIENCE)
    # Its Python process may still tell why, before it follows its JVM.
    with pytest.raises(NotCommitted) as refused:
        world.require_staged(submitted, state)
    assert refused.value.code == "driver-without-report" or "could not be staged" in refused.value.why
    assert world.now.state is State.PLANNED


def found_by_a_second_try(world: World, capsys: pytest.CaptureFixture[str]) -> Driver:
    """Another driver, whose task died before it could note it."""
    second = world.submit()
    world.until_at_work()
    second.open_report().forget_driver()
    assert world.submit() == second
    assert f"{second.driver} of an earlier try is still running" in capsys.readouterr().out
    return second


def staged_in_an_outage(world: World, gone: Service, capsys: pytest.CaptureFixture[str]) -> Driver:
    """A driver that goes on, and is waited for, when the service that started it is gone."""
    world.plan("slow")
    submitted = world.submit()
    world.until_at_work()
    running = gone.daemon.running()
    assert running
    os.killpg(running.pid, signal.SIGKILL)
    assert fired_in_an_outage(world, trigger(submitted), capsys)["state"] == "at its end"
    world.require_staged(submitted, "at its end")
    return submitted
