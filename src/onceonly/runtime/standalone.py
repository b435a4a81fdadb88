"""A standalone cluster of Spark: drivers are submitted to its master's REST server.

Source: Spark's docs, "Spark Standalone Mode", REST API.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.runtime.cluster import (
    GONE,
    ApplicationStatus,
    RunningApplication,
    parse_object,
    send_request,
)
from onceonly.runtime.spark_submit import DriverJob, SparkSubmit, build_client_arguments

ENDED_DRIVER_STATES = ("FINISHED", "FAILED", "KILLED", "ERROR")
MASTER_REMEDY = (
    "Does it run with spark.master.rest.enabled=true? If its REST port is not 6066, set 'rest-port' in the "
    "connection's extra."
)


@dataclass(frozen=True)
class Standalone:
    """The master whose REST server is at `rest`, http://host:port."""

    rest: str

    def submit(self, job: DriverJob, launcher: SparkSubmit) -> str:
        """Ask the master to start a driver, and return its submission id.

        Raises:
            OutcomeUnknown: whether a driver was started is not known.
        """
        answer = _ask(self.rest, "POST", "create", _request(job))
        if not answer.get("success") or "submissionId" not in answer:
            why = str(answer.get("message", answer))
            raise NotCommitted(
                f"Spark's master at {self.rest} did not accept the driver of {job.name}.",
                why,
                "Nothing was started.",
                code="cluster-refused",
            )
        return str(answer["submissionId"])

    def list_submitted(self, job: DriverJob) -> Sequence[str]:
        """Return nothing: a master reports drivers by their ids alone."""
        return []

    def find(self, tag: str) -> Sequence[RunningApplication]:
        """Return nothing, as `list_submitted`."""
        return []

    def look(self, application: str) -> ApplicationStatus:
        """Return the driver's state.

        Raises:
            NotCommitted: the master answered about itself, which says nothing about the driver.
        """
        answer = _ask(self.rest, "GET", f"status/{application}")
        if answer.get("action") != "SubmissionStatusResponse":
            raise NotCommitted(
                f"Spark's master at {self.rest} did not answer with the status of {application}.",
                f"{answer}",
                code="cluster-refused",
            )
        if not answer.get("success") and answer.get("message"):  # about itself: it is recovering, or on standby
            raise NotCommitted(
                f"Spark's master at {self.rest} cannot report the status of {application}.",
                answer["message"],
                code="cluster-refused",
            )
        state = answer.get("driverState")
        if not state:
            return GONE
        return ApplicationStatus(str(state), state not in ENDED_DRIVER_STATES)

    def end(self, application: str) -> None:
        _ask(self.rest, "POST", f"kill/{application}")

    def describe_log(self, application: str) -> str:
        return f"in the work folder of its Spark worker ({application})"

    def tail(self, application: str) -> Sequence[str]:
        """Return nothing: a master does not serve it."""
        return []


def _request(job: DriverJob) -> dict[str, Any]:
    """Return a request for a driver that is SparkSubmit in client mode.

    Spark's own docs submit Python to a standalone master in this way.
    """
    driver_conf = {key: value for key, value in job.spark.conf.items() if key.startswith("spark.driver.")}
    return {
        "action": "CreateSubmissionRequest",
        "appArgs": [
            "--name",
            job.title,
            *build_client_arguments(job.spark, job.settings, job.step, job.arguments),
        ],
        "appResource": "",
        "clientSparkVersion": "",
        "environmentVariables": {**job.settings.environment(), "PYSPARK_PYTHON": sys.executable},
        "mainClass": "org.apache.spark.deploy.SparkSubmit",
        "sparkProperties": {
            **driver_conf,
            "spark.app.name": job.title,
            "spark.driver.supervise": "false",  # a second driver of the same request would do nothing
            "spark.master": job.spark.master,
        },
    }


def _ask(rest: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return an answer of the master, good or bad.

    Raises as `send_request`, and OutcomeUnknown where no master answers.
    """
    response = send_request("Spark's master", method, f"{rest}/v1/submissions/{path}", MASTER_REMEDY, body)
    answer = parse_object(response)
    if answer is None:
        raise OutcomeUnknown(
            f"the server at {rest} is not a Spark master.", response.text[:200], code="cluster-refused"
        )
    return answer
