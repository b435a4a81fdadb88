"""A stage whose driver runs on the cluster: submitted to Spark's standalone master, looked at, and killed there.

Source: Spark's docs, "Spark Standalone Mode", REST API. What the driver was asked to do and whether it did is in the
state table; what the master says is only a sign that it is time to look.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from onceonly.airflow import submit
from onceonly.checkpoint import State
from onceonly.errors import Fenced, NotCommitted, OutcomeUnknown
from onceonly.ledger import get
from onceonly.report import Report
from onceonly.settings import Settings
from onceonly.sparkconf import conf
from onceonly.state import StateTable

PATIENCE = 10.0  # seconds for an answer of the master
AT_WORK = {"SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"}  # UNKNOWN: the master is recovering
LAST_LINES = 12  # of the job's report that go into an error


@dataclass(frozen=True)
class Driver:
    """One driver that a master has accepted; in plain words, so that any process may ask after it."""

    master: str  # http://host:port of its REST server
    driver: str  # its id there
    report: str  # URI

    def state(self) -> str:
        """What the master says of it; GONE: it knows no such driver.

        Raises:
            NotCommitted: it does not answer, which says nothing about the driver.
        """
        said = _ask(self.master, "GET", f"status/{self.driver}")
        if said.get("action") != "SubmissionStatusResponse":
            raise NotCommitted(f"Spark's master at {self.master} does not say how driver {self.driver} is.", f"{said}")
        return str(said.get("driverState") or "GONE")

    def end(self) -> None:
        """Ask the master to end it; to ask again does no harm. Raises as `state`."""
        _ask(self.master, "POST", f"kill/{self.driver}")

    def heard(self) -> Report:
        return Report(self.report)


def submitted(spark: submit.Target, settings: Settings, name: str, epoch: int, owner: str) -> Driver | None:
    """Submit the stage of this checkpoint; None when there is nothing left to stage.

    Raises:
        OutcomeUnknown: whether a driver was started is not known. It may be asked for again: of two, the second to
            begin takes nothing over.
    """
    checkpoint = get(StateTable(settings.state).view(name), epoch)
    if checkpoint.state not in (State.PLANNED, State.ABORTED):
        return None
    report = Report.of(settings.state, f"{name}-{epoch}-{uuid.uuid4().hex[:12]}").uri
    job = [name, str(epoch), owner, str(checkpoint.last_seq), report]
    rest = str(spark.rest)
    said = _ask(rest, "POST", "create", _request(spark, settings, job))
    if not said.get("success") or "submissionId" not in said:
        why = str(said.get("message", said))
        raise NotCommitted(f"Spark's master at {rest} did not take the stage job.", why, "Nothing was started.")
    return Driver(rest, said["submissionId"], report)


def require_staged(driver: Driver, settings: Settings, name: str, epoch: int, owner: str, state: str) -> None:
    """Decide by the state table what a driver that has ended has done.

    Args:
        state: what the master last said of it, for people.
    Raises:
        Fenced, or an error by the exit code that the job has reported: nothing is staged.
    """
    checkpoint = get(StateTable(settings.state).view(name), epoch)
    said = driver.heard().read()
    driver.heard().delete()
    if checkpoint.owner != owner:
        raise Fenced(f"{name} epoch {epoch} is not this run's any more.", f"'{checkpoint.owner}' has taken it over.")
    if checkpoint.state in (State.STAGED, State.COMMITTING, State.COMMITTED):
        return
    if said.code:
        raise submit.error(said.code, list(said.lines[-LAST_LINES:]))
    raise NotCommitted(
        f"the stage job ended without a word: driver {driver.driver} is {state}.",
        f"{name} epoch {epoch} is {checkpoint.state.value}, not staged. {' '.join(said.lines[-1:])}".rstrip(),
        "Why is in the driver's log, in the work folder of its Spark worker. The next attempt removes what it left.",
    )


def _request(spark: submit.Target, settings: Settings, job: list[str]) -> dict[str, Any]:
    """A driver that is SparkSubmit in client mode: so Spark's own docs submit Python to a standalone master."""
    settings_ = conf(settings) | spark.conf
    pairs = [part for key, value in settings_.items() for part in ("--conf", f"{key}={value}")]
    script = str(settings.project / "jobs" / "stage.py")
    placed = {key: value for key, value in settings_.items() if key.startswith("spark.driver.")}
    return {
        "action": "CreateSubmissionRequest",
        "appArgs": ["--master", spark.master, "--name", f"onceonly {job[0]} {job[1]}", *pairs, script, *job],
        "appResource": "",
        "clientSparkVersion": "",
        "environmentVariables": {**settings.environment(), "PYSPARK_PYTHON": sys.executable},
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "sparkProperties": {
            **placed,
            "spark.app.name": "onceonly",
            "spark.driver.supervise": "false",  # a second driver of the same request would do nothing
            "spark.master": spark.master,
        },
    }


def _ask(rest: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An answer of the master, good or bad."""
    try:
        answer = httpx.request(method, f"{rest}/v1/submissions/{path}", json=body, timeout=PATIENCE)
        said = answer.json()
    except httpx.ConnectError as error:
        raise NotCommitted(
            f"Spark's master does not answer at {rest}.",
            f"{error}",
            "Does it run with spark.master.rest.enabled=true? Another port than 6066: 'rest-port' in the connection's "
            "extra.",
        ) from error
    except (httpx.HTTPError, ValueError) as error:
        raise OutcomeUnknown(f"Spark's master at {rest} gave no answer to {method} {path}.", f"{error!r}") from error
    if not isinstance(said, dict):
        raise OutcomeUnknown(f"what answers at {rest} is no master of Spark.", str(said)[:200])
    return said
