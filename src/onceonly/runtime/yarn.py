"""YARN: drivers are submitted by spark-submit, and looked at and ended over the ResourceManager's REST API.

Source: Hadoop's docs, "ResourceManager REST API's" and "NodeManager REST API's"; Spark's docs, "Running Spark on YARN".
"""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import requests

from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.runtime.child_process import drop_java_frames, hidden_file
from onceonly.runtime.cluster import (
    GONE,
    ApplicationStatus,
    RunningApplication,
    parse_object,
    require_submitted,
    send_request,
)
from onceonly.runtime.spark_submit import DriverJob, SparkSubmit, program
from onceonly.spark import stores

RUNNING_STATES = ("ACCEPTED", "NEW", "NEW_SAVING", "RUNNING", "SUBMITTED")
ENDED_APPLICATION_STATES = ("FAILED", "FINISHED", "KILLED")
LOG_BYTES = 8192  # the last ones
CONTAINER = re.compile(r"container_\w+")
FRAME_OF_LOG = re.compile(r"\*+$|(End of )?LogType:|$")  # what the NodeManager puts around a log
YARN_REMEDY = "Check 'yarn_resourcemanager_webapp_address' in the connection's extra. This is safe to retry."
KERBEROS = "requests_kerberos"
FILES = "spark.yarn.dist.files"
CONNECTIONS_FILE = "onceonly-connections.json"  # in the working directory of the driver


@dataclass(frozen=True)
class Yarn:
    """YARN, by the web addresses of its ResourceManagers; of several, one is active."""

    managers: tuple[str, ...]

    def submit(self, job: DriverJob, launcher: SparkSubmit) -> str:
        """Start a driver by spark-submit. An application that spark-submit does not vouch for is ended."""
        conf = _conf(job) | stores.find_s3_keys(job.connections)
        with _hidden_connections(job.connections) as (file, inherited):
            more = []
            if file:
                files = [f"{file}#{CONNECTIONS_FILE}"]
                if conf.get(FILES):
                    files.insert(0, conf[FILES])
                conf[FILES] = ",".join(files)
                more = [CONNECTIONS_FILE]
            code, lines = launcher.run(job, conf, str(program(job.step)), more, inherited)
        return require_submitted(self, job, code, lines)

    def list_submitted(self, job: DriverJob) -> Sequence[str]:
        return [app["id"] for app in self._applications(applicationTags=job.nonce)]

    def find(self, tag: str) -> Sequence[RunningApplication]:
        """Return those with the tag: those that run before those that wait, and of these the oldest first."""
        apps = self._applications(applicationTags=tag, states=",".join(RUNNING_STATES))
        apps.sort(key=lambda app: (app["state"] != "RUNNING", app.get("startedTime", 0)))
        return [RunningApplication(app["id"], app["name"].rpartition(" ")[2]) for app in apps]

    def look(self, application: str) -> ApplicationStatus:
        app = self._application(application)
        if not app:
            return GONE
        return ApplicationStatus(str(app["state"]), app["state"] not in ENDED_APPLICATION_STATES)

    def end(self, application: str) -> None:
        answer = self._ask("PUT", f"apps/{application}/state", {"state": "KILLED"})
        is_ended = answer.status_code in (200, 202) and "state" in (parse_object(answer) or {})  # 202: it will be
        if not is_ended and not _is_unknown_application(answer):
            raise NotCommitted(
                f"YARN did not end {application}.",
                _why(answer),
                "Only its user, or an administrator, can do that.",
                code="cluster-refused",
            )

    def describe_log(self, application: str) -> str:
        return f"{self.managers[0]}/cluster/app/{application}, or: yarn logs -applicationId {application}"

    def tail(self, application: str) -> Sequence[str]:
        """Return what the NodeManager still has of its standard error, else the ResourceManager's diagnostics."""
        app = self._application(application)
        if not app:
            return []
        with suppress(OnceonlyError):
            lines = _read_log(app)
            if lines:
                return lines
        return str(app.get("diagnostics", "")).splitlines()

    def _application(self, application: str) -> dict[str, Any]:
        """Return what YARN says of an application; empty where it does not know it."""
        answer = self._ask("GET", f"apps/{application}")
        if _is_unknown_application(answer):
            return {}
        app = (parse_object(answer) or {}).get("app")
        if not isinstance(app, dict) or "state" not in app:
            raise NotCommitted(
                f"YARN did not report the status of {application}.", _why(answer), code="cluster-refused"
            )
        return app

    def _applications(self, **which: str) -> list[dict[str, Any]]:
        answer = self._ask("GET", "apps", params=which)
        content = parse_object(answer) or {}
        if answer.status_code != 200 or "apps" not in content:
            raise NotCommitted(
                f"YARN did not list the applications with the tag of {which}.", _why(answer), code="cluster-refused"
            )
        return list((content["apps"] or {}).get("app") or [])

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
    ) -> requests.Response:
        """Return the answer of the ResourceManager that is active; where none is, a bad one."""
        last_error: OnceonlyError | None = None
        bad_answer: requests.Response | None = None
        all_params = {"user.name": _user(), **(params or {})}
        for manager in self.managers:
            url = f"{manager}/ws/v1/cluster/{path}"
            try:
                answer = send_request(
                    "YARN's ResourceManager", method, url, YARN_REMEDY, body, params=all_params, **_login()
                )
            except OnceonlyError as error:
                last_error = error
                continue
            if answer.status_code == 401:
                raise _login_error(manager)
            if answer.status_code == 307:  # a standby's
                continue
            if answer.status_code < 500 and parse_object(answer) is not None:
                return answer
            bad_answer = answer  # also of a standby that knows of no active one: 200, and no JSON
        if bad_answer is not None:
            return bad_answer
        raise last_error or OutcomeUnknown(
            "no ResourceManager of YARN is active.",
            f"These were asked: {', '.join(self.managers)}.",
            YARN_REMEDY,
            code="no-answer",
        )


@contextmanager
def _hidden_connections(connections: Mapping[str, str]) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the path, and file descriptors, of a file with the connections; an empty path if there are none.

    Nobody else can read it, nor the folder to which spark-submit uploads it. The NodeManager serves what stands in the
    environment of a container, and none of the files that it brings there.
    """
    if not connections:
        yield "", []
        return
    with hidden_file(json.dumps(dict(connections)).encode()) as (path, inherited):
        yield path, inherited


def _conf(job: DriverJob) -> dict[str, str]:
    """Return the settings that this job has to have, and those that it has unless the connection says otherwise."""
    connection_conf = job.spark.conf
    env = {f"spark.yarn.appMasterEnv.{name}": value for name, value in job.settings.environment().items()}
    tags = [job.tag, job.nonce]
    if connection_conf.get("spark.yarn.tags"):
        tags.insert(0, connection_conf["spark.yarn.tags"])
    return {
        **env,
        "spark.yarn.maxAppAttempts": "1",  # a second master's driver would find the checkpoint changed, and give way
        **connection_conf,
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.tags": ",".join(tags),
    }


def _read_log(app: Mapping[str, Any]) -> list[str]:
    """Return the last lines of the driver's standard error, without stack traces; none where it is not served."""
    container, node = CONTAINER.search(app.get("amContainerLogs", "")), app.get("amHostHttpAddress")
    if container is None or not node:
        return []
    scheme = "https" if app["amContainerLogs"].startswith("https:") else "http"
    url = f"{scheme}://{node}/ws/v1/node/containers/{container[0]}/logs/stderr"
    answer = send_request("YARN's NodeManager", "GET", url, "", params={"size": f"-{LOG_BYTES}"}, **_login())
    if answer.status_code != 200:
        return []
    return [line for line in drop_java_frames(answer.text.splitlines()) if not FRAME_OF_LOG.match(line)]


def _is_unknown_application(answer: requests.Response) -> bool:
    """Return whether the ResourceManager has no such application. With any other 404, a web server has no such page."""
    remote_error = (parse_object(answer) or {}).get("RemoteException")
    if answer.status_code != 404 or not isinstance(remote_error, dict):
        return False
    return remote_error.get("exception") == "NotFoundException"


def _user() -> str:
    """Return who this process is to a Hadoop without Kerberos."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise NotCommitted(
            "who this process is to YARN is not known.",
            f"User id {os.getuid()} has no name on this machine.",
            "Set HADOOP_USER_NAME where tasks and triggers run, or add the user to /etc/passwd.",
            code="cluster-login-failed",
        ) from error


def _login() -> dict[str, Any]:
    """Return options of requests: a login by the ticket of this process, where the cluster requires one.

    None where the package for it is not installed.
    """
    if find_spec(KERBEROS) is None:
        return {}
    from requests_kerberos import OPTIONAL, HTTPKerberosAuth

    return {"auth": HTTPKerberosAuth(mutual_authentication=OPTIONAL)}


def _login_error(manager: str) -> NotCommitted:
    why = "It requires a Kerberos login."
    if find_spec(KERBEROS) is None:
        why = "requests-kerberos is not installed."
    return NotCommitted(
        f"YARN's ResourceManager at {manager} refuses this process.",
        why,
        "Install requests-kerberos where tasks and triggers run, and keep a ticket there (airflow kerberos).",
        code="cluster-login-failed",
    )


def _why(answer: requests.Response) -> str:
    """Return the message of a bad answer, else the beginning of its text."""
    remote_error = (parse_object(answer) or {}).get("RemoteException")
    if isinstance(remote_error, dict) and "message" in remote_error:
        return str(remote_error["message"])
    return answer.text[:200]
