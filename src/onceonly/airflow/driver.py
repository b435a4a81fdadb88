"""A stage, or a gate's examination, whose driver runs on the cluster: submitted to Spark's standalone master, looked
at, and killed there.

Source: Spark's docs, "Spark Standalone Mode", REST API. What a driver was asked to do and whether it did is in the
state table; what the master says of it is only a sign that it is time to look.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import requests
from urllib3.exceptions import NewConnectionError

from onceonly.airflow import submit
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.errors import Fenced, NotCommitted, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime.job_report import Report
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

PATIENCE = 10.0  # seconds for an answer of the master
AT_WORK = {"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}  # UNKNOWN: the master is recovering
ENDED_LATE, NOT_SEEN_ENDED = "TIMED OUT", "TIMED OUT, perhaps still running"
DONE = (State.STAGED, State.COMMITTING, State.COMMITTED)


@dataclass(frozen=True)
class Driver:
    """One driver that a master has accepted; in plain words, so that any process may ask after it."""

    master: str  # http://host:port of its REST server
    driver: str  # its id there
    report: str  # URI

    def state(self) -> str:
        """What the master says of it; GONE: it knows no such driver.

        Raises:
            OnceonlyError: the master does not answer, which says nothing about the driver.
        """
        said = _ask(self.master, "GET", f"status/{self.driver}")
        if said.get("action") != "SubmissionStatusResponse":
            raise NotCommitted(
                f"Spark's master at {self.master} did not answer with the status of {self.driver}.", f"{said}"
            )
        if not said.get("success") and said.get("message"):  # it speaks of itself: it is recovering, or on standby
            raise NotCommitted(f"Spark's master at {self.master} cannot say how {self.driver} is.", said["message"])
        return str(said.get("driverState") or "GONE")

    def end(self) -> None:
        """Ask the master to end it; to ask again does no harm. Raises as `state`."""
        _ask(self.master, "POST", f"kill/{self.driver}")

    def open_report(self) -> Report:
        return Report(self.report)

    def forget(self) -> None:
        """It has ended, and no task will read its report."""
        self.open_report().delete()
        self.open_report().forget_driver()


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

    def stage(self, spark: submit.Target, settings: Settings) -> Driver | None:
        """Submit the stage; None when there is nothing left to stage. Raises as `_submit`.

        It may be asked for again: of two drivers, the second to begin takes nothing over.
        """
        now = self.now(settings)
        return None if now.state in DONE else self._submit(spark, settings, "stage", str(now.last_seq))

    def gate(self, spark: submit.Target, settings: Settings) -> Driver | None:
        """Submit the examination; None where it needs no Spark, or there is nothing to examine. Raises as `_submit`.

        It may be asked for again: the first verdict counts.
        """
        now = self.now(settings)
        asked = Pipeline.from_json(now.definition).gate
        if asked is None or now.verdict or now.state is not State.STAGED or not asked.large(now.handles):
            return None
        return self._submit(spark, settings, "gate")

    def require_staged(self, driver: Driver, settings: Settings, state: str) -> None:
        """Decide by the state table what a stage's driver that has ended has done; `state`: the master's last word.

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

    def _submit(self, spark: submit.Target, settings: Settings, step: str, *more: str) -> Driver:
        """Raises OutcomeUnknown: whether a driver was started is not known."""
        report = Report.of(settings.state, f"{step}-{self.pipeline}-{self.epoch}-{uuid.uuid4().hex[:12]}")
        job = [self.pipeline, str(self.epoch), self.owner, report.uri, *more]
        arguments = submit.submission(spark, settings, step, job)
        request = _request(spark, settings, f"onceonly {step} {self}", arguments)
        said = _ask(str(spark.rest), "POST", "create", request)
        if not said.get("success") or "submissionId" not in said:
            why = str(said.get("message", said))
            raise NotCommitted(
                f"Spark's master at {spark.rest} did not accept the driver of {self}.", why, "Nothing was started."
            )
        driver = Driver(str(spark.rest), said["submissionId"], report.uri)
        with suppress(OSError):  # then the triggerer alone can end it
            about = {"owner": self.owner, "state": StateTable(settings.state).id, "at": time.time()}
            report.name_driver({**vars(driver), **about})
        return driver

    def _require(self, done: bool, driver: Driver, now: str, state: str) -> None:
        said = driver.open_report().read()
        driver.open_report().delete()
        if state != NOT_SEEN_ENDED:
            driver.open_report().forget_driver()  # else recovery has it ended
        if done:
            return
        if said.code:
            raise submit.error(said.code, list(said.lines[-submit.TAIL :]))
        raise NotCommitted(
            f"the job of {self} left no report: {driver.driver} is {state}.",
            f"The checkpoint {now}.",
            "The driver's log, in the work folder of its Spark worker, says why. The next try starts again.",
        )


def _request(spark: submit.Target, settings: Settings, name: str, arguments: list[str]) -> dict[str, Any]:
    """A driver that is SparkSubmit in client mode: so Spark's own docs submit Python to a standalone master."""
    placed = {key: value for key, value in spark.conf.items() if key.startswith("spark.driver.")}
    return {
        "action": "CreateSubmissionRequest",
        "appArgs": ["--name", name, *arguments],
        "appResource": "",
        "clientSparkVersion": "",
        "environmentVariables": {**settings.environment(), "PYSPARK_PYTHON": sys.executable},
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "sparkProperties": {
            **placed,
            "spark.app.name": name,
            "spark.driver.supervise": "false",  # a second driver of the same request would do nothing
            "spark.master": spark.master,
        },
    }


def _ask(rest: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An answer of the master, good or bad; from the address that is named, without being sent on to another.

    Raises:
        NotCommitted: there was no connection, so nothing was sent.
        OutcomeUnknown: there is no answer, or none of a master: what was sent may have been done.
    """
    url = f"{rest}/v1/submissions/{path}"
    try:
        said = requests.request(
            method, url, json=body, timeout=PATIENCE, auth=_as_it_is, allow_redirects=False
        ).json()  # a connection of its own: none that has gone stale is used again
    except (requests.RequestException, ValueError) as error:
        if not _was_never_sent(error):
            raise OutcomeUnknown(f"Spark's master at {rest} did not answer {method} {path}.", f"{error!r}") from error
        raise NotCommitted(
            f"Spark's master does not answer at {rest}.",
            f"{error}",
            "Does it run with spark.master.rest.enabled=true? If its REST port is not 6066, set 'rest-port' in the "
            "connection's extra.",
        ) from error
    if not isinstance(said, dict):
        raise OutcomeUnknown(f"what answers at {rest} is not a Spark master.", str(said)[:200])
    return said


def _was_never_sent(error: Exception) -> bool:
    """Whether no connection came about; requests says `ConnectionError` of one that broke after the question, too."""
    cause = error.args[0] if isinstance(error, requests.ConnectionError) and error.args else None
    return isinstance(getattr(cause, "reason", None), NewConnectionError)


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """No login out of a .netrc is sent to a master."""
    return request
