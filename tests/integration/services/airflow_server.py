"""A real Airflow api-server with our plugin, and people who are logged in to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from integration.services.airflow_database import copy_database
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services import machine
from onceonly.errors import NotCommitted

ROOT = Path(__file__).parents[3]
TO_LEAVE = 20  # seconds from SIGTERM to SIGKILL
TRIES = 5  # another process may take a port between the look and the start
ROLES = {"vera": "viewer", "uma": "user", "adam": "admin", "olga": "user"}


@dataclass
class Server:
    """With SQLite in `folder`; `env` says where the state table is."""

    folder: Path
    env: Mapping[str, str]
    dags: Mapping[str, str] = field(default_factory=dict)  # file -> text
    port: int = 0  # once it is started
    process: subprocess.Popen[bytes] | None = None
    _environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "dags").mkdir(exist_ok=True)
        for name, text in self.dags.items():
            (self.folder / "dags" / name).write_text(text)
        passwords = self.folder / "passwords.json"
        passwords.write_text(json.dumps({name: name for name in ROLES}))
        environment = {
            **os.environ,
            "AIRFLOW_HOME": str(self.folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__AUTH_MANAGER": "integration.services.auth_by_dag.AuthByDag",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(":".join(pair) for pair in ROLES.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            "AIRFLOW__API_AUTH__JWT_SECRET": "only-for-this-test-and-long-enough-to-be-accepted-as-a-key-of-sha512",
            "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("tests", "src")),  # of this checkout
            **self.env,
        }
        self._environment = environment
        airflow = [sys.executable, "-m", "airflow"]
        copy_database(self.folder)
        if self.dags:
            command = [*airflow, "dags", "reserialize"]
            subprocess.run(command, env=environment, check=True, capture_output=True, timeout=PATIENCE)
        for _ in range(TRIES):
            self.port = machine.free_port()
            self._serve([*airflow, "api-server", "--host", "127.0.0.1", "--port", str(self.port)], environment)
            try:
                wait_until(self._answers, "the api-server answers", PATIENCE, self._alive)
                return
            except NotCommitted as error:
                if "address already in use" not in str(error):
                    raise
        raise NotCommitted(f"no port was free long enough in {TRIES} tries.")

    def _serve(self, command: list[str], environment: Mapping[str, str]) -> None:
        env = {**environment, "AIRFLOW__API__BASE_URL": self.url}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--workers", "1"], env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def stop(self) -> None:
        """Its whole process group; Airflow's processes set their own titles, so nothing else tells them apart."""
        if self.process:
            os.killpg(self.process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(TO_LEAVE)
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(PATIENCE)

    def token(self, user: str) -> str:
        answer = httpx.post(f"{self.url}/auth/token", json={"username": user, "password": user}, timeout=PATIENCE)
        answer.raise_for_status()
        return str(answer.json()["access_token"])

    def command(self, *arguments: str) -> str:
        """What an `airflow` command prints beside this server."""
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def api(self, method: str, path: str, body: Mapping[str, object] | None = None) -> httpx.Response:
        """What Airflow's REST API answers to an administrator."""
        header = {"Authorization": f"Bearer {self.token('adam')}"}
        return httpx.request(method, f"{self.url}/api/v2{path}", json=body, headers=header, timeout=PATIENCE)

    def trigger(self, dag_id: str, run_id: str) -> None:
        """A run that stays queued: there is no scheduler."""
        header = {"Authorization": f"Bearer {self.token('adam')}"}
        body = {"dag_run_id": run_id, "logical_date": None}
        url = f"{self.url}/api/v2/dags/{dag_id}/dagRuns"
        httpx.post(url, json=body, headers=header, timeout=PATIENCE).raise_for_status()

    def client(self, token: str | None) -> httpx.Client:
        """As a browser: the login is a cookie."""
        cookies = {"_token": token} if token else {}
        return httpx.Client(base_url=f"{self.url}/onceonly", timeout=PATIENCE, cookies=cookies)

    def login(self, user: str) -> httpx.Client:
        return self.client(self.token(user))

    def _alive(self) -> None:
        if self.process is None or self.process.poll() is not None:
            raise NotCommitted("the api-server ended while starting.", self.log.read_text(errors="replace")[-3000:])

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/version", timeout=5).is_success
        except httpx.HTTPError:
            return False
