"""The interface of a cluster that runs drivers: submit one, find those of a step, look at one, end it, read its log.

Beside it, what every cluster needs: whether spark-submit has started a driver, and one request to an HTTP API.
What a driver was asked to do and whether it did is in the state table. What a cluster says of a driver is only a sign
that it is time to look there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import requests
from urllib3.exceptions import NewConnectionError

from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.runtime.spark_submit import DriverJob, SparkSubmit

ANSWER_TIMEOUT_SECONDS = 10.0  # of an HTTP API


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


class Cluster(Protocol):
    """A cluster, as `open_cluster` returns it for an address.

    Any process may use it: nothing here is known to one alone.

    Every call raises NotCommitted where the question was not sent, and OutcomeUnknown where no answer came.
    """

    def submit(self, job: DriverJob, launcher: SparkSubmit) -> str:
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


def send_request(
    who: str, method: str, url: str, todo: str, body: Mapping[str, Any] | None = None, **options: Any
) -> requests.Response:
    """Return an answer, good or bad; from the address that is named: no redirect is followed.

    Args:
        who: is asked, for messages.
        todo: what to do when nobody answers there.
    Raises:
        NotCommitted: there was no connection, so nothing was sent.
        OutcomeUnknown: there is no answer: what was sent may have been done.
    """
    options = {"auth": leave_login_out, **options}
    try:  # a connection of its own: none that has gone stale is used again
        return requests.request(
            method, url, json=body, timeout=ANSWER_TIMEOUT_SECONDS, allow_redirects=False, **options
        )
    except OSError as error:  # requests' own are among them; and a file of keys or authorities that is missing
        if not _was_never_sent(error):
            raise OutcomeUnknown(f"{who} did not answer {method} {url}.", f"{error!r}", code="no-answer") from error
        raise NotCommitted(f"{who} does not answer at {url}.", f"{error}", todo, code="cluster-unreachable") from error


def _was_never_sent(error: Exception) -> bool:
    """Return whether no connection came about.

    requests says `ConnectionError` of a connection that broke after the request was sent, too.
    """
    if not isinstance(error, requests.ConnectionError) or not error.args:
        return False
    return isinstance(getattr(error.args[0], "reason", None), NewConnectionError)


def leave_login_out(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Return the request unchanged: an `auth` by which no login out of a .netrc is sent."""
    return request


def parse_object(answer: requests.Response) -> dict[str, Any] | None:
    """Return the JSON object that an answer holds, if it holds one."""
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
