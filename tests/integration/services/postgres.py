"""A PostgreSQL server of a test's own, from the system's packages, where they are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services import machine

USER = "postgres"  # the server refuses to run as root


def programs() -> Path | None:
    """Where initdb and postgres are: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else Path(on_path).parent if (on_path := shutil.which("initdb")) else None


class Postgres:
    """A server on data of its own, which is killed and started again on the same port.

    Args:
        folder: of the data; it exists.
        settings: such as 'a=b'.
        primary: a server that runs, and that this one follows.
    """

    def __init__(self, folder: str, *settings: str, primary: Postgres | None = None) -> None:
        bin_ = programs()
        assert bin_ is not None
        self.port = machine.free_port()
        self._bin, self._folder, self._settings = bin_, folder, settings
        self._process: subprocess.Popen[bytes] | None = None
        if primary:
            source = ["-h", "127.0.0.1", "-p", str(primary.port), "-U", "airflow"]
            command = [bin_ / "pg_basebackup", *source, "-R", "-c", "fast", "-X", "stream"]
        else:
            command = [bin_ / "initdb", "-U", "airflow", "-A", "trust", "-E", "UTF8"]
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        make_data = [*command, "-D", f"{folder}/data", "--no-sync"]
        subprocess.run(make_data, check=True, **self._run, **_as_nobody_special())

    @property
    def url(self) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg2://airflow@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        if self._process:
            self._process.wait(PATIENCE)  # as a zombie it would be taken for a server that runs
        command = [self._bin / "postgres", "-D", f"{self._folder}/data", "-p", str(self.port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self._folder}"]
        for setting in self._settings:
            command += ["-c", setting]
        self._process = subprocess.Popen(command, **self._run, **_as_nobody_special())
        ready = [self._bin / "pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        wait_until(lambda: subprocess.run(ready, **self._run).returncode == 0, "PostgreSQL is ready", PATIENCE)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server: SIGQUIT ends its processes at once, without a checkpoint; SIGINT writes one."""
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, as a machine that loses its power would."""
        assert self._process is not None
        kill_server(self._process.pid)
        self._process.wait(PATIENCE)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def _run(self) -> dict[str, object]:
        return {"cwd": self._folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def kill_server(pid: int) -> None:
    """Kill a server and all its processes with SIGKILL."""
    process = psutil.Process(pid)
    process.suspend()  # else it would start others in place of those that die
    for one in [*process.children(recursive=True), process]:
        with suppress(psutil.NoSuchProcess):
            one.kill()


@contextmanager
def postgres(*settings: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database; the server, with such `settings` as 'a=b', ends with the block."""
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        # A killed scheduler's workers keep its connection open, and with it the locks of its last transaction.
        quick = ["fsync=off", "max_connections=200", "idle_in_transaction_session_timeout=30s"]
        server = Postgres(folder, *quick, *settings)
        server.start()
        try:
            yield server.url
        finally:
            server.stop()


def _as_nobody_special() -> dict[str, object]:
    if os.geteuid() != 0:
        return {"start_new_session": True}
    user = pwd.getpwnam(USER)
    return {"start_new_session": True, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
