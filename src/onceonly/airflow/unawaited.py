"""Drivers on the cluster that no task waits for, as where a task was marked while no triggerer was there to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onceonly.clusters.driver import Driver
from onceonly.coordinator.coordinator import Alive
from onceonly.errors import NotCommitted, OnceonlyError
from onceonly.runtime.job_report import NamedDriver, Report, drivers
from onceonly.statetable.table import StateTable

ClusterOf = Callable[[str], str | None]  # by the id of a connection: the address of the cluster that it names


def end(state: StateTable, alive: Alive, cluster_of: ClusterOf) -> Iterator[str]:
    """Have them ended; for people, what was done. They are fenced as it is: this gives back what they occupy.

    It goes by what the submitting task has noted, so a driver whose submission was never answered is not found.
    """
    for named in drivers(state):
        if not _is_awaited(state, named, alive):
            yield _end(named, cluster_of)


def _is_awaited(state: StateTable, named: NamedDriver, alive: Alive) -> bool:
    """Of the drivers of one step, a task waits for the last one, and as long as its run is running."""
    if Report(named.driver["report"]).is_followed():
        return False
    checkpoint = state.view(named.pipeline).checkpoint(named.epoch)
    if checkpoint is None or checkpoint.state.settled or checkpoint.owner != named.driver["owner"]:
        return False
    return alive(checkpoint)


def _end(named: NamedDriver, cluster_of: ClusterOf) -> str:
    driver = Driver(named.driver["master"], named.driver["driver"], named.driver["report"])
    whose = f"{driver.driver} of {named.pipeline} epoch {named.epoch}, which no task waits for"
    try:
        _require_known(str(named.driver.get("connection")), driver.master, cluster_of)
        driver.end()
        now = driver.look()
    except OnceonlyError as error:
        return f"{whose}, may still be running: {error}"
    if now.at_work:
        return f"{whose}, was asked to end"
    driver.forget()
    return f"{whose}, is {now.state}"


def _require_known(conn_id: str, cluster: str, cluster_of: ClusterOf) -> None:
    """Whoever may write beside the state table is not to choose where this process logs in."""
    if cluster_of(conn_id) != cluster:
        raise NotCommitted(
            f"{cluster} is not the cluster of the Airflow connection '{conn_id}'.",
            todo="If the connection has changed, end the driver on its old cluster.",
        )
