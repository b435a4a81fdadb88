"""A PostgreSQL server of a test's own, from the system's packages, where they are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services import machine

USER = "postgres"  # the server refuses to run as root


def programs() -> Path | None:
    """Where initdb and postgres are: Debian keeps them off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else Path(on_path).parent if (on_path := shutil.which("initdb")) else None


@contextmanager
def postgres(*settings: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database; the server, with such `settings` as 'a=b', ends with the block."""
    bin_ = programs()
    assert bin_ is not None
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, USER)
        data = f"{folder}/data"
        run = {"cwd": folder, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [bin_ / "initdb", "-D", data, "-U", "airflow", "-A", "trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(command, check=True, **run, **_as_nobody_special())
        quick = ["-c", "fsync=off", "-c", f"unix_socket_directories={folder}", "-c", "max_connections=200"]
        # A killed scheduler's workers keep its connection open, and with it the locks of its last transaction.
        quick += ["-c", "idle_in_transaction_session_timeout=30s"]
        quick += [word for setting in settings for word in ("-c", setting)]
        port = machine.free_port()
        listen = ["-p", str(port), "-c", "listen_addresses=127.0.0.1"]
        server = subprocess.Popen([bin_ / "postgres", "-D", data, *listen, *quick], **run, **_as_nobody_special())
        try:
            ready = [bin_ / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
            wait_until(lambda: subprocess.run(ready, **run).returncode == 0, "PostgreSQL is ready", PATIENCE)
            yield f"postgresql+psycopg2://airflow@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(PATIENCE)


def _as_nobody_special() -> dict[str, object]:
    if os.geteuid() != 0:
        return {"start_new_session": True}
    user = pwd.getpwnam(USER)
    return {"start_new_session": True, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
