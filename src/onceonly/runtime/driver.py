"""One driver on a cluster, in plain words, so that any process can look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceonly.runtime.addresses import open_cluster
from onceonly.runtime.cluster import Cluster, Seen
from onceonly.runtime.job_report import Report


@dataclass(frozen=True)
class Driver:
    """One driver that a cluster has accepted."""

    master: str  # the cluster's address: see `addresses`
    driver: str  # its id there
    report: str  # URI

    @property
    def cluster(self) -> Cluster:
        return open_cluster(self.master)

    def look(self) -> Seen:
        """Return what the cluster says of it.

        Raises:
            OnceonlyError: the cluster does not answer, which says nothing about the driver.
        """
        return self.cluster.look(self.driver)

    def end(self) -> None:
        """Ask the cluster to end it. Idempotent. No later try waits for it. Raises as `look`."""
        self.open_report().note_end()
        self.cluster.end(self.driver)

    def where(self) -> str:
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
