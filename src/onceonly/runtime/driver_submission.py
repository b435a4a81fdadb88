"""The work of a driver on a cluster: a stage, or a gate's examination. It is found again, or submitted, and judged.

A step of an attempt has a tag, by which a cluster finds its drivers. So a task that is tried again waits for the driver
of the previous try, if that is still running, and starts no other. Nothing rests on that: of two drivers, the second to
begin finds that the checkpoint has changed, and claims nothing.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.errors import Fenced, NotCommitted, OnceonlyError
from onceonly.json_values.text import canonical
from onceonly.kafka import airflow_connections
from onceonly.kafka.airflow_connections import Lookup
from onceonly.pipeline.gate import has_large_suite
from onceonly.runtime import client_job, job_report
from onceonly.runtime.child_process import MAX_ERROR_LINES, select_last_lines
from onceonly.runtime.client_job import list_connections
from onceonly.runtime.cluster import Cluster
from onceonly.runtime.driver import Driver, open_cluster
from onceonly.runtime.job_report import Received, Report
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.runtime.spark_submit import DriverJob, SparkSubmit
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.storage import logins

TIMED_OUT, TIMED_OUT_RUNNING = "TIMED OUT", "TIMED OUT, perhaps still running"
STAGED_STATES = (State.STAGED, State.COMMITTING, State.COMMITTED)


@dataclass(frozen=True)
class Work:
    """The work of a driver for one checkpoint: a step of it, for its owner."""

    pipeline: str
    epoch: int
    owner: str

    def __str__(self) -> str:
        return f"{self.pipeline} epoch {self.epoch}"

    def read_checkpoint(self, settings: Settings) -> Checkpoint:
        """Read the checkpoint as it is now."""
        return StateTable(settings.state).view(self.pipeline).require(self.epoch)

    def prepare_stage(self, spark: SparkConnection, settings: Settings, connections: Lookup) -> Submission | None:
        """Return how a driver stages it; None when there is nothing left to stage."""
        checkpoint = self.read_checkpoint(settings)
        if checkpoint.state in STAGED_STATES:
            return None
        attempts = [checkpoint.attempt + 1]
        if checkpoint.state is State.PLANNED and checkpoint.attempt:  # a driver that has claimed may still be staging
            attempts.append(checkpoint.attempt)
        return Submission(self, "stage", spark, settings, connections, checkpoint, attempts)

    def prepare_gate(self, spark: SparkConnection, settings: Settings, connections: Lookup) -> Submission | None:
        """Return how a driver examines it; None where that needs no Spark, or there is nothing to examine.

        Two may do so: the first verdict counts.
        """
        checkpoint = self.read_checkpoint(settings)
        gate = checkpoint.definition.pipeline.gate
        if gate is None or checkpoint.verdict or checkpoint.state is not State.STAGED:
            return None
        if not has_large_suite(gate, checkpoint.handles):
            return None
        return Submission(self, "gate", spark, settings, connections, checkpoint, [checkpoint.attempt])

    def require_staged(self, driver: Driver, settings: Settings, state: str) -> None:
        """Require by the state table that a stage's driver that has ended has staged.

        Args:
            state: the last that the cluster reported of the driver.
        Raises:
            Fenced, or an error by the exit code that the job has reported: nothing is staged.
        """
        checkpoint = self.read_checkpoint(settings)
        if checkpoint.owner != self.owner:
            raise Fenced(
                f"{self} no longer belongs to this run.",
                f"'{checkpoint.owner}' has taken it over.",
                code="ownership-lost",
            )
        is_staged = checkpoint.state in STAGED_STATES
        self._require(is_staged, driver, f"is {checkpoint.state.value}, not staged", state)

    def require_judged(self, driver: Driver, settings: Settings, state: str) -> None:
        """Require the same of an examination's driver: that there is a verdict."""
        checkpoint = self.read_checkpoint(settings)
        has_verdict = bool(checkpoint.verdict)
        self._require(has_verdict, driver, f"is {checkpoint.state.value} and has no verdict", state)

    def _require(self, is_done: bool, driver: Driver, why_not: str, state: str) -> None:
        """Take in the report of a driver that has ended, and raise what it says if the work is not done."""
        received = Received()
        with suppress(OSError):  # what is staged is staged, although the storage of the report does not answer
            received = driver.open_report().read()
            driver.open_report().delete()
            if state != TIMED_OUT_RUNNING:
                driver.open_report().forget_driver()  # else recovery has it ended
        if is_done:
            return
        if received.code:
            raise client_job.classify_exit(received.code, list(received.lines[-MAX_ERROR_LINES:]))
        raise NotCommitted(
            f"the job of {self} left no report: {driver.driver} is {state}.",
            "\n".join([f"The checkpoint {why_not}.", *_tail(driver)]),
            f"The driver's log says why: {driver.describe_log()}. The next try starts again.",
            code="driver-without-report",
        )


@dataclass
class Submission:
    """A step of a checkpoint that is being submitted to a cluster. `end`, also from a signal handler, cancels it."""

    work: Work
    step: str
    spark: SparkConnection
    settings: Settings
    connections: Lookup
    checkpoint: Checkpoint
    attempts: list[int]  # which a driver of this step may be about; the first is that of a driver submitted now
    launcher: SparkSubmit = field(default_factory=SparkSubmit)
    _job: DriverJob | None = None

    def run(self, say: Callable[[str], None]) -> Driver:
        """Return the driver of an earlier try that is still running, else a new one.

        Raises:
            OutcomeUnknown: whether a driver was started is not known.
        """
        running = next(self._find_running(), None)
        if running:
            say(f"{running[0].driver} of an earlier try is still running: this try waits for it and starts no other")
        driver, tag = running or self._submit()
        with suppress(OSError):  # then the triggerer alone can end it
            about = {"owner": self.work.owner, "state": self._state.id, "tag": tag, "at": time.time()}
            driver.open_report().name_driver({**vars(driver), **about, "connection": self.spark.connection})
        return driver

    def end(self) -> None:
        """End what was submitted, and what is just being submitted, as far as the cluster knows of it."""
        self.launcher.end()
        if self._job is None:
            return
        for application in self._cluster.list_submitted(self._job):
            self._cluster.end(application)

    @property
    def _cluster(self) -> Cluster:
        return open_cluster(str(self.spark.cluster))

    @property
    def _state(self) -> StateTable:
        return StateTable(self.settings.state)

    def _find_running(self) -> Iterator[tuple[Driver, str]]:
        """Yield the drivers of this step that are running, and that nobody has asked to end; and the tag of each."""
        recorded = {named_driver.driver["driver"]: named_driver.driver for named_driver in self._recorded_drivers()}
        for attempt in self.attempts:
            tag = self._tag(attempt)
            for application in self._cluster.find(tag):
                if application.application in recorded or not job_report.JOB_NAME.fullmatch(application.name):
                    continue  # as recorded, see below; or a name that must not become a path
                report = Report.for_job(self.settings.state, application.name)
                yield self._driver(application.application, report.uri), tag
        for record in recorded.values():
            driver = self._driver(record["driver"], record["report"])
            if not record.get("ending") and driver.look().is_at_work:
                yield driver, record["tag"]

    def _recorded_drivers(self) -> list[job_report.NamedDriver]:
        """Return the drivers of this step on this cluster that earlier tries have recorded."""
        recorded = []
        for named_driver in job_report.list_drivers(self._state):
            if (named_driver.pipeline, named_driver.epoch) != (self.work.pipeline, self.work.epoch):
                continue
            if named_driver.driver["master"] != self.spark.cluster:
                continue
            if named_driver.driver.get("tag") in [self._tag(attempt) for attempt in self.attempts]:
                recorded.append(named_driver)
        return recorded

    def _submit(self) -> tuple[Driver, str]:
        """Submit a new driver; returns it, and its tag."""
        name = f"{self.step}-{self.work.pipeline}-{self.work.epoch}-{uuid.uuid4().hex[: job_report.NONCE_DIGITS]}"
        report = Report.for_job(self.settings.state, name)
        since = [str(self.checkpoint.last_seq)] if self.step == "stage" else []
        self._job = DriverJob(
            self.step,
            name,
            self._tag(self.attempts[0]),
            [self.work.pipeline, str(self.work.epoch), self.work.owner, report.uri, *since],
            self.spark,
            self.settings,
            {
                **airflow_connections.write_variables(list_connections(self.checkpoint), self.connections),
                **logins.export_variables(self.settings.store_connections),
            },
        )
        return self._driver(self._cluster.submit(self._job, self.launcher), report.uri), self._job.tag

    def _driver(self, application: str, report: str) -> Driver:
        return Driver(str(self.spark.cluster), application, report)

    def _tag(self, attempt: int) -> str:
        """Return the tag of this step of this attempt.

        A checkpoint that is planned again keeps the numbers of its epoch and attempt: the count of owners differs.
        """
        owner_count = len(self.checkpoint.owners)
        key = [self._state.id, self.step, self.work.pipeline, self.work.epoch, owner_count, attempt]
        return f"onceonly-{hashlib.sha256(canonical(key).encode()).hexdigest()[:32]}"


def _tail(driver: Driver) -> list[str]:
    """Return what helps to see why it left no report; nothing depends on it."""
    with suppress(OnceonlyError):
        return select_last_lines(driver.tail())
    return []
