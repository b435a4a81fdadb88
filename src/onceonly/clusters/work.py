"""What a driver on a cluster is to do: a stage, or a gate's examination. It is found again, or submitted, and judged.

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

from onceonly.checkpoint.model import Checkpoint, State, canonical
from onceonly.clusters import child
from onceonly.clusters.addresses import at
from onceonly.clusters.child import connections_of
from onceonly.clusters.driver import Driver
from onceonly.clusters.interface import Cluster, Job
from onceonly.clusters.launch import SparkSubmit
from onceonly.clusters.process import TAIL, telling
from onceonly.clusters.target import Target
from onceonly.errors import Fenced, NotCommitted, OnceonlyError
from onceonly.filesystems import logins
from onceonly.kafka import lookup
from onceonly.kafka.lookup import Lookup
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import job_report
from onceonly.runtime.job_report import Received, Report
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

ENDED_LATE, NOT_SEEN_ENDED = "TIMED OUT", "TIMED OUT, perhaps still running"
DONE = (State.STAGED, State.COMMITTING, State.COMMITTED)


@dataclass(frozen=True)
class Work:
    """What of one checkpoint a driver is to do, for whom."""

    pipeline: str
    epoch: int
    owner: str

    def __str__(self) -> str:
        return f"{self.pipeline} epoch {self.epoch}"

    def now(self, settings: Settings) -> Checkpoint:
        return StateTable(settings.state).view(self.pipeline).require(self.epoch)

    def stage(self, spark: Target, settings: Settings, connections: Lookup) -> Submission | None:
        """How a driver stages it; None when there is nothing left to stage."""
        now = self.now(settings)
        if now.state in DONE:
            return None
        begun = [now.attempt] if now.state is State.PLANNED and now.attempt else []
        return Submission(self, "stage", spark, settings, connections, now, [now.attempt + 1, *begun])

    def gate(self, spark: Target, settings: Settings, connections: Lookup) -> Submission | None:
        """How a driver examines it; None where that needs no Spark, or there is nothing to examine.

        Two may do so: the first verdict counts.
        """
        now = self.now(settings)
        asked = Pipeline.from_json(now.definition).gate
        if asked is None or now.verdict or now.state is not State.STAGED or not asked.large(now.handles):
            return None
        return Submission(self, "gate", spark, settings, connections, now, [now.attempt])

    def require_staged(self, driver: Driver, settings: Settings, state: str) -> None:
        """Decide by the state table what a stage's driver that has ended has done; `state`: the cluster's last word.

        Raises:
            Fenced, or an error by the exit code that the job has reported: nothing is staged.
        """
        now = self.now(settings)
        if now.owner != self.owner:
            raise Fenced(f"{self} no longer belongs to this run.", f"'{now.owner}' has taken it over.")
        self._require(now.state in DONE, driver, f"is {now.state.value}, not staged", state)

    def require_judged(self, driver: Driver, settings: Settings, state: str) -> None:
        """The same of an examination's driver: whether there is a verdict."""
        now = self.now(settings)
        self._require(bool(now.verdict), driver, f"is {now.state.value} and has no verdict", state)

    def _require(self, done: bool, driver: Driver, now: str, state: str) -> None:
        said = Received()
        with suppress(OSError):  # what is staged is staged, although the storage of the report does not answer
            said = driver.open_report().read()
            driver.open_report().delete()
            if state != NOT_SEEN_ENDED:
                driver.open_report().forget_driver()  # else recovery has it ended
        if done:
            return
        if said.code:
            raise child.error(said.code, list(said.lines[-TAIL:]))
        raise NotCommitted(
            f"the job of {self} left no report: {driver.driver} is {state}.",
            "\n".join([f"The checkpoint {now}.", *_tail(driver)]),
            f"The driver's log says why: {driver.where()}. The next try starts again.",
        )


@dataclass
class Submission:
    """A step of a checkpoint on its way to a cluster. `end`, also from a signal handler, takes it back."""

    work: Work
    step: str
    spark: Target
    settings: Settings
    connections: Lookup
    now: Checkpoint
    attempts: list[int]  # which a driver of this step may be about; the first is that of a driver submitted now
    launcher: SparkSubmit = field(default_factory=SparkSubmit)
    _job: Job | None = None

    def run(self, say: Callable[[str], None]) -> Driver:
        """The driver of an earlier try that is still running, else a new one.

        Raises:
            OutcomeUnknown: whether a driver was started is not known.
        """
        found = next(self._at_work(), None)
        if found:
            say(f"{found[0].driver} of an earlier try is still running: this try waits for it and starts no other")
        driver, tag = found or self._submit()
        with suppress(OSError):  # then the triggerer alone can end it
            about = {"owner": self.work.owner, "state": self._state.id, "tag": tag, "at": time.time()}
            driver.open_report().name_driver({**vars(driver), **about, "connection": self.spark.connection})
        return driver

    def end(self) -> None:
        """What was submitted, and what is just being submitted, as far as the cluster knows of it."""
        self.launcher.end()
        for application in self._cluster.submitted(self._job) if self._job else ():
            self._cluster.end(application)

    @property
    def _cluster(self) -> Cluster:
        return at(str(self.spark.cluster))

    @property
    def _state(self) -> StateTable:
        return StateTable(self.settings.state)

    def _at_work(self) -> Iterator[tuple[Driver, str]]:
        """The drivers of this step that are running, and that nobody has asked to end; and the tag of each."""
        noted = {named.driver["driver"]: named.driver for named in self._noted()}
        for tag in map(self._tag, self.attempts):
            for found in self._cluster.find(tag):
                if found.application not in noted and job_report.JOB.fullmatch(found.name):  # it becomes a path
                    yield self._driver(found.application, Report.for_job(self.settings.state, found.name).uri), tag
        for about in noted.values():
            driver = self._driver(about["driver"], about["report"])
            if not about.get("ending") and driver.look().at_work:
                yield driver, about["tag"]

    def _noted(self) -> list[job_report.NamedDriver]:
        """What earlier tries have noted, of this cluster."""
        mine = (self.work.pipeline, self.work.epoch)
        return [
            named
            for named in job_report.drivers(self._state)
            if (named.pipeline, named.epoch) == mine
            and named.driver["master"] == self.spark.cluster
            and named.driver.get("tag") in list(map(self._tag, self.attempts))
        ]

    def _submit(self) -> tuple[Driver, str]:
        name = f"{self.step}-{self.work.pipeline}-{self.work.epoch}-{uuid.uuid4().hex[: job_report.NONCE]}"
        report = Report.for_job(self.settings.state, name)
        since = [str(self.now.last_seq)] if self.step == "stage" else []
        self._job = Job(
            self.step,
            name,
            self._tag(self.attempts[0]),
            [self.work.pipeline, str(self.work.epoch), self.work.owner, report.uri, *since],
            self.spark,
            self.settings,
            {
                **lookup.handed_over(connections_of(self.now), self.connections),
                **logins.taken_up(self.settings),
            },
        )
        return self._driver(self._cluster.submit(self._job, self.launcher), report.uri), self._job.tag

    def _driver(self, application: str, report: str) -> Driver:
        return Driver(str(self.spark.cluster), application, report)

    def _tag(self, attempt: int) -> str:
        """Of this step of this attempt. A checkpoint that is planned again keeps both numbers."""
        named = [self._state.id, self.step, self.work.pipeline, self.work.epoch, len(self.now.owners), attempt]
        return f"onceonly-{hashlib.sha256(canonical(named).encode()).hexdigest()[:32]}"


def _tail(driver: Driver) -> list[str]:
    """What helps to see why it left no report; nothing depends on it."""
    with suppress(OnceonlyError):
        return telling(driver.tail())
    return []
