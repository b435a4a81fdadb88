"""One driver on a cluster, by plain words, so that any process can look at it and end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from onceonly.runtime.cluster import ApplicationStatus, Cluster
from onceonly.runtime.job_report import Report
from onceonly.runtime.kubernetes import Kubernetes
from onceonly.runtime.standalone import Standalone
from onceonly.runtime.yarn import Yarn


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
