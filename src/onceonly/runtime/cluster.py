"""The interface of a cluster that runs drivers: submit one, find those of a step, look at one, end it, read its log.

What a driver was asked to do and whether it did is in the state table. What a cluster says of a driver is only a sign
that it is time to look there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.settings import Settings


@dataclass(frozen=True)
class DriverJob:
    """One step of a checkpoint, for a driver.

    `tag` is the same whoever submits this step of this attempt, and `name` is of this submission alone.
    """

    step: str  # "stage" or "gate"
    name: str
    tag: str
    arguments: Sequence[str]
    spark: SparkConnection
    settings: Settings
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)  # AIRFLOW_CONN_<ID>, AWS_…: secret

    @property
    def title(self) -> str:
        """Return the application's name, for people; the name of the job can be read from it."""
        return f"onceonly {self.name}"

    @property
    def nonce(self) -> str:
        return self.name.rpartition("-")[2]


@dataclass(frozen=True)
class RunningApplication:
    """A running application, and the name of its job."""

    application: str
    name: str


@dataclass(frozen=True)
class ApplicationStatus:
    """The state of an application, in the cluster's own words."""

    state: str
    is_at_work: bool


GONE = ApplicationStatus("GONE", is_at_work=False)  # the cluster does not know it


class Launcher(Protocol):
    """Runs spark-submit for a cluster, as a child of this process."""

    def run(
        self,
        job: DriverJob,
        conf: Mapping[str, str],
        program: str,
        more: Sequence[str] = (),
        inherited: Sequence[int] = (),
    ) -> tuple[int, list[str]]:
        """Run spark-submit until it ends, and return its exit code and last lines.

        Args:
            conf: settings, secret ones too, beside those of every session.
            program: what the driver runs.
            more: arguments of the program after those of the job.
            inherited: file descriptors.
        """


class Cluster(Protocol):
    """A cluster, as `open_cluster` returns it for an address.

    Any process may use it: nothing here is known to one alone.

    Every call raises NotCommitted where the question was not sent, and OutcomeUnknown where no answer came.
    """

    def submit(self, job: DriverJob, launcher: Launcher) -> str:
        """Start a driver, and return its application's id."""

    def list_submitted(self, job: DriverJob) -> Sequence[str]:
        """Return the ids of what a submission of exactly this job has started, as far as the cluster can tell."""

    def find(self, tag: str) -> Sequence[RunningApplication]:
        """Return the applications with this tag that are running, the one to wait for first."""

    def look(self, application: str) -> ApplicationStatus:
        """Return what it says of that application."""

    def end(self, application: str) -> None:
        """Stop the application. Idempotent."""

    def describe_log(self, application: str) -> str:
        """Return where its log is, for people. Nothing is asked for it."""

    def tail(self, application: str) -> Sequence[str]:
        """Return the last lines of the driver, as far as the cluster serves them."""


def require_submitted(cluster: Cluster, job: DriverJob, code: int, lines: Sequence[str]) -> str:
    """Return the application that spark-submit has started. What it does not vouch for is ended.

    Args:
        code: the exit code of spark-submit.
        lines: its last lines.
    Raises:
        NotCommitted: nothing is running.
        OutcomeUnknown: something may be running.
    """
    output = "\n".join(lines)
    try:
        applications = cluster.list_submitted(job)
        if applications and not code:
            return applications[0]
        for application in applications:
            cluster.end(application)
    except OnceonlyError as error:
        raise OutcomeUnknown(
            f"it is not known whether the driver of {job.name} was started.",
            f"{output}\n{error}",
            "The next try looks for it first.",
            code="submission-unknown",
        ) from error
    if not code:
        raise OutcomeUnknown(
            f"the driver of {job.name} was submitted, but the cluster does not know it.",
            output,
            "Try again.",
            code="submission-unknown",
        )
    raise NotCommitted(
        f"the driver of {job.name} was not submitted: spark-submit ended with {code}.",
        output,
        "Nothing of it is running.",
        code="submission-failed",
    )
