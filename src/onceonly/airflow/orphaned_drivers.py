"""Drivers on the cluster that no task waits for, as where a task was marked while no triggerer was there to notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onceonly.coordinator.coordinator import Alive
from onceonly.errors import NotCommitted, OnceonlyError
from onceonly.runtime.driver import Driver
from onceonly.runtime.job_report import NamedDriver, Report, list_drivers
from onceonly.statetable.table import StateTable

ClusterOf = Callable[[str], str | None]  # by the id of a connection: the address of the cluster that it names


def stop_all(state: StateTable, alive: Alive, cluster_of: ClusterOf) -> Iterator[str]:
    """Stop the drivers that no task waits for, and yield a line for each.

    They are fenced as it is: this gives back what they occupy.
    It goes by what the submitting task has noted, so a driver whose submission was never answered is not found.
    """
    for note in list_drivers(state):
        if not _is_awaited(state, note, alive):
            yield _stop(note, cluster_of)


def _is_awaited(state: StateTable, note: NamedDriver, alive: Alive) -> bool:
    """Whether a task waits for a driver: of those of one step for the last one, as long as its run is running."""
    if Report(note.driver["report"]).is_followed():
        return False
    checkpoint = state.view(note.pipeline).checkpoint(note.epoch)
    if checkpoint is None or checkpoint.state.is_settled or checkpoint.owner != note.driver["owner"]:
        return False
    return alive(checkpoint)


def _stop(note: NamedDriver, cluster_of: ClusterOf) -> str:
    """Stop a driver, forget it once it has ended, and return a line that says what was done."""
    driver = Driver(note.driver["master"], note.driver["driver"], note.driver["report"])
    name = f"{driver.driver} of {note.pipeline} epoch {note.epoch}, which no task waits for"
    try:
        _require_same_cluster(str(note.driver.get("connection")), driver.master, cluster_of)
        driver.end()
        driver_state = driver.look()
    except OnceonlyError as error:
        return f"{name}, may still be running: {error}"
    if driver_state.is_at_work:
        return f"{name}, was asked to end"
    driver.forget()
    return f"{name}, is {driver_state.state}"


def _require_same_cluster(conn_id: str, cluster: str, cluster_of: ClusterOf) -> None:
    """Raise NotCommitted unless the driver's cluster is the one that its connection names now.

    Whoever may write beside the state table is not to choose where this process logs in.
    """
    if cluster_of(conn_id) != cluster:
        raise NotCommitted(
            f"{cluster} is not the cluster of the Airflow connection '{conn_id}'.",
            todo="If the connection has changed, end the driver on its old cluster.",
            code="connection-changed",
        )
