"""Drivers on the cluster that no task waits for, as where a task was marked while no triggerer was there to notice."""

from __future__ import annotations

from collections.abc import Iterator

from onceonly.clusters.driver import Driver
from onceonly.coordinator.coordinator import Alive
from onceonly.errors import OnceonlyError
from onceonly.runtime.job_report import NamedDriver, Report, drivers
from onceonly.statetable.table import StateTable


def end(state: StateTable, alive: Alive) -> Iterator[str]:
    """Have them ended; for people, what was done. They are fenced as it is: this gives back what they occupy.

    It goes by what the submitting task has noted, so a driver whose submission was never answered is not found.
    """
    for named in drivers(state):
        if not _is_awaited(state, named, alive):
            yield _end(named)


def _is_awaited(state: StateTable, named: NamedDriver, alive: Alive) -> bool:
    """Of the drivers of one step, a task waits for the last one, and as long as its run is running."""
    if Report(named.driver["report"]).is_followed():
        return False
    checkpoint = state.view(named.pipeline).checkpoint(named.epoch)
    if checkpoint is None or checkpoint.state.settled or checkpoint.owner != named.driver["owner"]:
        return False
    return alive(checkpoint)


def _end(named: NamedDriver) -> str:
    driver = Driver(named.driver["master"], named.driver["driver"], named.driver["report"])
    whose = f"{driver.driver} of {named.pipeline} epoch {named.epoch}, which no task waits for"
    try:
        driver.end()
        now = driver.look()
    except OnceonlyError as error:
        return f"{whose}, may still be running: {error}"
    if now.at_work:
        return f"{whose}, was asked to end"
    driver.forget()
    return f"{whose}, is {now.state}"
