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

from onceonly.clusters import http
from onceonly.clusters.interface import GONE, Found, Job, Launcher, Seen
from onceonly.clusters.launch import require_one
from onceonly.clusters.process import without_frames
from onceonly.clusters.properties import hidden_file
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.runtime.jobs import program
from onceonly.spark import s3

AT_WORK = ("ACCEPTED", "NEW", "NEW_SAVING", "RUNNING", "SUBMITTED")
ENDED = ("FAILED", "FINISHED", "KILLED")
LAST = 8192  # bytes of a log
CONTAINER = re.compile(r"container_\w+")
AROUND = re.compile(r"\*+$|(End of )?LogType:|$")  # what the NodeManager puts around a log
TODO = "Check 'yarn_resourcemanager_webapp_address' in the connection's extra. This is safe to retry."
KERBEROS = "requests_kerberos"
FILES = "spark.yarn.dist.files"
HANDED_OVER = "onceonly-connections.json"  # in the working directory of the driver


@dataclass(frozen=True)
class Yarn:
    """The ResourceManagers whose web addresses these are; of several, one is active."""

    managers: tuple[str, ...]

    def submit(self, job: Job, launcher: Launcher) -> str:
        """See `Cluster.submit`. An application that spark-submit does not vouch for is ended."""
        conf = _conf(job) | s3.keys(job.connections)
        with _handed_over(job.connections) as (file, inherited):
            if file:
                others = [conf[FILES]] if conf.get(FILES) else []
                conf[FILES] = ",".join([*others, f"{file}#{HANDED_OVER}"])
            more = [HANDED_OVER] if file else []
            code, lines = launcher.run(job, conf, str(program(job.step)), more, inherited)
        return require_one(self, job, code, lines)

    def submitted(self, job: Job) -> Sequence[str]:
        return [app["id"] for app in self._applications(applicationTags=job.nonce)]

    def find(self, tag: str) -> Sequence[Found]:
        found = self._applications(applicationTags=tag, states=",".join(AT_WORK))
        first = sorted(found, key=lambda app: (app["state"] != "RUNNING", app.get("startedTime", 0)))
        return [Found(app["id"], app["name"].rpartition(" ")[2]) for app in first]

    def look(self, application: str) -> Seen:
        app = self._application(application)
        return Seen(str(app["state"]), app["state"] not in ENDED) if app else GONE

    def end(self, application: str) -> None:
        answer = self._ask("PUT", f"apps/{application}/state", {"state": "KILLED"})
        done = answer.status_code in (200, 202) and "state" in (http.fields(answer) or {})  # 202: it will be
        if not done and not _does_not_know(answer):
            raise NotCommitted(
                f"YARN did not end {application}.", _why(answer), "Only its user, or an administrator, can do that."
            )

    def where(self, application: str) -> str:
        return f"{self.managers[0]}/cluster/app/{application}, or: yarn logs -applicationId {application}"

    def tail(self, application: str) -> Sequence[str]:
        """What the NodeManager still has of its standard error, else what the ResourceManager was told."""
        app = self._application(application)
        if not app:
            return []
        with suppress(OnceonlyError):
            if lines := _log(app):
                return lines
        return str(app.get("diagnostics", "")).splitlines()

    def _application(self, application: str) -> dict[str, Any]:
        answer = self._ask("GET", f"apps/{application}")
        if _does_not_know(answer):
            return {}
        found = (http.fields(answer) or {}).get("app")
        if not isinstance(found, dict) or "state" not in found:
            raise NotCommitted(f"YARN did not report the status of {application}.", _why(answer))
        return found

    def _applications(self, **which: str) -> list[dict[str, Any]]:
        answer = self._ask("GET", "apps", params=which)
        said = http.fields(answer) or {}
        if answer.status_code != 200 or "apps" not in said:
            raise NotCommitted(f"YARN did not list the applications with the tag of {which}.", _why(answer))
        return list((said["apps"] or {}).get("app") or [])

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
    ) -> requests.Response:
        """The answer of the ResourceManager that is active; where none is, a bad one."""
        trouble: OnceonlyError | None = None
        bad: requests.Response | None = None
        given = {"user.name": _user(), **(params or {})}
        for manager in self.managers:
            url = f"{manager}/ws/v1/cluster/{path}"
            try:
                answer = http.ask("YARN's ResourceManager", method, url, TODO, body, params=given, **_login())
            except OnceonlyError as error:
                trouble = error
                continue
            if answer.status_code == 401:
                raise _not_let_in(manager)
            if answer.status_code == 307:  # a standby's
                continue
            if answer.status_code < 500 and http.fields(answer) is not None:
                return answer
            bad = answer  # also of a standby that knows of no active one: 200, and no JSON
        if bad is not None:
            return bad
        raise trouble or OutcomeUnknown(
            "no ResourceManager of YARN is active.", f"These were asked: {', '.join(self.managers)}.", TODO
        )


@contextmanager
def _handed_over(connections: Mapping[str, str]) -> Iterator[tuple[str, Sequence[int]]]:
    """A file that nobody else can read, which spark-submit uploads to a folder that nobody else can read.

    The NodeManager serves what stands in the environment of a container, and none of the files that it brings there.
    """
    if not connections:
        yield "", []
        return
    with hidden_file(json.dumps(dict(connections)).encode()) as found:
        yield found


def _conf(job: Job) -> dict[str, str]:
    """What of spark-submit's settings this job has to have, and what it has unless the connection says otherwise."""
    given = job.spark.conf
    env = {f"spark.yarn.appMasterEnv.{name}": value for name, value in job.settings.environment().items()}
    theirs = [given["spark.yarn.tags"]] if given.get("spark.yarn.tags") else []
    return {
        **env,
        "spark.yarn.maxAppAttempts": "1",  # a second master's driver would find the checkpoint changed, and give way
        **given,
        "spark.yarn.submit.waitAppCompletion": "false",
        "spark.yarn.tags": ",".join([*theirs, job.tag, job.nonce]),
    }


def _log(app: Mapping[str, Any]) -> list[str]:
    container, node = CONTAINER.search(app.get("amContainerLogs", "")), app.get("amHostHttpAddress")
    if container is None or not node:
        return []
    scheme = "https" if app["amContainerLogs"].startswith("https:") else "http"
    url = f"{scheme}://{node}/ws/v1/node/containers/{container[0]}/logs/stderr"
    answer = http.ask("YARN's NodeManager", "GET", url, "", params={"size": f"-{LAST}"}, **_login())
    lines = answer.text.splitlines() if answer.status_code == 200 else []
    return [line for line in without_frames(lines) if not AROUND.match(line)]


def _does_not_know(answer: requests.Response) -> bool:
    """Whether the ResourceManager has no such application. Of any other 404, a web server has no such page."""
    said = (http.fields(answer) or {}).get("RemoteException")
    return answer.status_code == 404 and isinstance(said, dict) and said.get("exception") == "NotFoundException"


def _user() -> str:
    """Who this process is to a Hadoop without Kerberos."""
    try:
        return os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    except (KeyError, OSError) as error:
        raise NotCommitted(
            "who this process is to YARN is not known.",
            f"User id {os.getuid()} has no name on this machine.",
            "Set HADOOP_USER_NAME where tasks and triggers run, or add the user to /etc/passwd.",
        ) from error


def _login() -> dict[str, Any]:
    """By the ticket of this process, where the cluster asks for one, and where that package is installed."""
    if find_spec(KERBEROS) is None:
        return {}
    from requests_kerberos import OPTIONAL, HTTPKerberosAuth

    return {"auth": HTTPKerberosAuth(mutual_authentication=OPTIONAL)}


def _not_let_in(manager: str) -> NotCommitted:
    return NotCommitted(
        f"YARN's ResourceManager at {manager} refuses this process.",
        "It requires a Kerberos login." if find_spec(KERBEROS) else "requests-kerberos is not installed.",
        "Install requests-kerberos where tasks and triggers run, and keep a ticket there (airflow kerberos).",
    )


def _why(answer: requests.Response) -> str:
    said = (http.fields(answer) or {}).get("RemoteException")
    return str(said["message"]) if isinstance(said, dict) and "message" in said else answer.text[:200]
