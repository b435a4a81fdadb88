"""One driver on a cluster, by plain words, so that any process can look at it and end it.

Drivers that no task waits for are stopped, as where a task was marked while no triggerer was there to notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from onceonly.coordinator.coordinator import Alive
from onceonly.errors import NotCommitted, OnceonlyError
from onceonly.runtime.cluster import ApplicationStatus, Cluster
from onceonly.runtime.job_report import NamedDriver, Report, list_drivers
from onceonly.runtime.kubernetes import Kubernetes
from onceonly.runtime.standalone import Standalone
from onceonly.runtime.yarn import Yarn
from onceonly.statetable.table import StateTable

ClusterOf = Callable[[str], str | None]  # by the id of a connection: the address of the cluster that it names


@dataclass(frozen=True)
class Driver:
    """One driver that a cluster has accepted."""

    master: str  # the cluster's address: see `addresses`
    driver: str  # its id there
    report: str  # URI

    @property
    def cluster(self) -> Cluster:
        return open_cluster(self.master)

    def look(self) -> ApplicationStatus:
        """Return what the cluster says of it.

        Raises:
            OnceonlyError: the cluster does not answer, which says nothing about the driver.
        """
        return self.cluster.look(self.driver)

    def end(self) -> None:
        """Ask the cluster to end it. Idempotent. No later try waits for it. Raises as `look`."""
        self.open_report().note_end()
        self.cluster.end(self.driver)

    def describe_log(self) -> str:
        """Return where its log is, for people."""
        return self.cluster.describe_log(self.driver)

    def tail(self) -> Sequence[str]:
        """Return its last lines, as far as the cluster serves them."""
        return self.cluster.tail(self.driver)

    def open_report(self) -> Report:
        return Report(self.report)

    def forget(self) -> None:
        """Delete its report and the file that names it: it has ended, and no task will read them."""
        self.open_report().delete()
        self.open_report().forget_driver()


def open_cluster(address: str) -> Cluster:
    """Return the cluster at an address. Nothing is asked yet.

    Args:
        address: `http://…` of a standalone master, `yarn+http://…,…` of ResourceManagers, `k8s+https://…/namespace`.
    """
    kind, plus, uri = address.partition("+")
    if plus and kind == "yarn":
        return Yarn(tuple(uri.split(",")))
    if plus and kind == "k8s":
        server, _, namespace = uri.partition("?")[0].rpartition("/")
        context = parse_qs(urlsplit(uri).query).get("context", [""])[0]
        return Kubernetes(server, namespace, context)
    return Standalone(address)


def stop_orphaned_drivers(state_table: StateTable, alive: Alive, cluster_of: ClusterOf) -> Iterator[str]:
    """Stop the drivers that no task waits for, and yield a line for each.

    They are fenced as it is: this gives back what they occupy.
    It goes by what the submitting task has noted, so a driver whose submission was never answered is not found.
    """
    for note in list_drivers(state_table):
        if not _is_awaited(state_table, note, alive):
            yield _stop(note, cluster_of)


def _is_awaited(state_table: StateTable, note: NamedDriver, alive: Alive) -> bool:
    """Whether a task waits for a driver: of those of one step for the last one, as long as its run is running."""
    if Report(note.driver["report"]).is_followed():
        return False
    checkpoint = state_table.view(note.pipeline).checkpoint(note.epoch)
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
