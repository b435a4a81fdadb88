"""A project whose stages run on a cluster: what the tests of every kind of cluster have in common."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from integration.project import Project, make_project, produce
from integration.standalone import ROOT
from patience import PATIENCE

from onceonly.airflow import connections, triggers, unawaited
from onceonly.airflow.triggers import DriverTrigger
from onceonly.checkpoint.model import Checkpoint
from onceonly.clusters.driver import Driver
from onceonly.clusters.target import Target
from onceonly.clusters.work import Work
from onceonly.coordinator.coordinator import Coordinator
from onceonly.dev.demo.wait import until
from onceonly.kafka import lookup
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import factory, job_report, owners
from onceonly.runtime.job_report import FOLDER
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
        return factory.coordinator(self.project.parts)

    @property
    def now(self) -> Checkpoint:
        found = self.through.state.view(NAME).checkpoint(1)
        assert found is not None
        return found

    def plan(self, transform: str = "numbers", connection: str = "kafka_there") -> None:
        source = KafkaSource(topic=self.project.topic, connection=connection)
        planned = replace(self.project.pipeline(transform=transform), source=source)
        assert self.through.plan(planned, OWNER, owners.nobody).fresh

    def submit(self, anew: bool = False) -> Driver:
        return submit(connections.spark("spark"), anew)

    def require_staged(self, submitted: Driver, state: str) -> None:
        WORK.require_staged(submitted, Settings.from_env(), state)

    def until_at_work(self) -> None:
        until((self.project.folder / "at-work").exists, "the transform is at work", PATIENCE)

    def go_on(self) -> None:
        (self.project.folder / "go-on").touch()

    def reports(self) -> list[Path]:
        return list(Path(self.project.settings.state, FOLDER).glob("*"))

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
    known = {name: value for each, extra in kafka.items() for name, value in lookup.to_environment(each, extra).items()}
    for name, value in {**project.env(), **jars, **known, "AIRFLOW_CONN_SPARK": spark}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(triggers, "EVERY", 0.2)
    module = tmp_path / f"transforms_{project.topic}.py"
    module.write_text(module.read_text() + SLOW.format(folder=str(tmp_path)))
    produce(project, range(8))
    return World(project)


def submit(spark: Target, anew: bool = False) -> Driver:
    """As a task does. `anew`: as one that looks for no driver of another try, as if both looked at the same time."""
    found = WORK.stage(spark, Settings.from_env(), connections.from_airflow)
    assert found is not None
    if anew:
        found._at_work = lambda: iter(())  # type: ignore[method-assign]
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
    state = world.through.state
    list(unawaited.end(state, owners.nobody, lambda conn_id: connections.spark(conn_id).cluster))
    return not job_report.drivers(state)
