"""Airflow standalone for the demo: one process tree in its own folder, used over its public API and waited for."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests

from onceonly.dev.services.daemon import Daemon
from onceonly.errors import NotCommitted
from onceonly.settings import Settings
from onceonly.waits import wait_for

T = TypeVar("T")
USER = "admin"
START_SECONDS = 600.0  # on a machine that is busy with much else; one that has ended is noticed at once
SHORT_JOBS = {  # a JVM that runs for seconds should not spend them on optimisation
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
}
OWN_SPARK = {"conn_type": "generic", "host": "local[2]", "extra": {"conf": SHORT_JOBS}}


@dataclass
class Standalone:
    """Airflow with SQLite under `<home>/airflow`.

    Args:
        spark: the Spark Connect server on which its stages run; None: each starts a Spark of its own.
    """

    settings: Settings
    port: int
    spark: str | None = None

    @property
    def folder(self) -> Path:
        return self.settings.home / "airflow"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        file = self.folder / "simple_auth_manager_passwords.json.generated"
        return str(json.loads(file.read_text())[USER])

    def start(self, extra: Mapping[str, str]) -> None:
        """Start it, and wait until the API answers and the scheduler is healthy."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "airflow", "standalone"]
        self._daemon.start(command, self.port, {**self.environment(), **extra})
        wait_until(self.healthy, "Airflow is up", START_SECONDS, self._require_running)

    def stop(self) -> None:
        self._daemon.stop()

    def trigger(self, dag: str) -> str:
        """Start a run, and return its id."""
        run = self.call("POST", f"/dags/{dag}/dagRuns", {"logical_date": None})
        return str(run["dag_run_id"])

    def run_state(self, dag: str, run: str) -> str:
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{run}")["state"])

    def task_states(self, dag: str, run: str) -> dict[str, str]:
        """Return the state of each task by its id ('none' before it is scheduled)."""
        tasks = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: str(task["state"] or "none") for task in tasks}

    def unpause(self, dag: str) -> bool:
        """Unpause the DAG; False until Airflow has parsed it."""
        return self._request("PATCH", f"/dags/{dag}", {"is_paused": False}).status_code == 200

    @property
    def _daemon(self) -> Daemon:
        return Daemon(self.folder)

    def environment(self) -> dict[str, str]:
        """Return the variables that its processes need in addition to the caller's environment."""
        commands = Path(sys.executable).parent  # standalone starts its parts as `airflow …`
        connection = {"conn_type": "generic", "host": self.spark} if self.spark else OWN_SPARK
        return {
            "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', '')}",
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.settings.project / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(self.settings.project / "plugins"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW_CONN_SPARK": json.dumps(connection),
            "ONCEONLY_HOME": str(self.settings.home),
            "ONCEONLY_PROJECT": str(self.settings.project),
        }

    def _require_running(self) -> None:
        if self._daemon.running() is None:
            raise NotCommitted(
                "Airflow exited while starting.",
                self._daemon.tail(),
                f"Read its log: {self._daemon.log}",
                code="demo-failed",
            )

    def healthy(self) -> bool:
        """Return whether the API answers, and reports that every part is healthy."""
        try:
            health = requests.get(f"{self.url}/api/v2/monitor/health", timeout=5).json()
        except (requests.RequestException, ValueError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("metadatabase", "scheduler", "dag_processor"))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the public API, and return the decoded response; None if it is empty."""
        response = self._request(method, path, body)
        if not response.ok:
            raise NotCommitted(f"Airflow refused {method} {path}.", response.text[:500], code="demo-failed")
        return response.json() if response.content else None

    def _request(self, method: str, path: str, body: Any = None) -> requests.Response:
        login = {"username": USER, "password": self.password}
        token = requests.post(f"{self.url}/auth/token", json=login, timeout=30).json()["access_token"]

        def add_token(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"  # not a plain header: a .netrc would win over that
            return request

        return requests.request(method, f"{self.url}/api/v2{path}", json=body, auth=add_token, timeout=30)


def wait_until(
    ready: Callable[[], T | None],
    what: str,
    seconds: float,
    meanwhile: Callable[[], None] | None = None,
    every: float = 0.5,
) -> T:
    """Return the first result of `ready` that is neither None nor False. `meanwhile` may raise, to stop waiting."""
    end = time.monotonic() + seconds
    with wait_for(f"this: {what}"):
        while time.monotonic() < end:
            result = ready()
            if result:
                return result
            if meanwhile:
                meanwhile()
            time.sleep(every)
    raise NotCommitted(f"timed out waiting until {what}.", f"It took more than {seconds:.0f} s.", code="demo-failed")
