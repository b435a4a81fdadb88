"""An empty database of Airflow, made once for all test processes: to make one takes as long as many a test."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE

SHARED = "ONCEONLY_TESTS_AIRFLOW_DATABASE"  # the variable with the folder that all processes of a test run share


def copy_database(home: Path) -> None:
    """Put an empty SQLite database of this Airflow into `home`."""
    shared = Path(os.environ.get(SHARED) or home.with_name(f"{home.name}-database"))  # the latter outside of a test run
    shared.mkdir(parents=True, exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "complete").exists():
            _make(shared)
    home.mkdir(parents=True, exist_ok=True)
    shutil.copy(shared / "airflow.db", home)


def _make(folder: Path) -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ONCEONLY"))}
    env = {**own, "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-m", "airflow", "db", "migrate"]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE, env=env)
    (folder / "complete").touch()
