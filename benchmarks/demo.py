"""`make demo` after set-up, from the command to its end: broker, flights, Airflow, six runs, two kills, the proof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.ratio import seconds
from benchmarks.results import Result, Row
from onceonly.settings import Settings
from onceonly.spark import jvm

ROUNDS = 3
PROGRAM = "from onceonly.cli import main; main()"


def demo(folder: Path) -> Result:
    """Each round in a folder that is as new as a first demo's. Fails if one does not show exactly once."""
    settings = Settings.from_env()
    jvm.make_archive(settings.jars)  # as `make setup` does
    given = {"PROJECT": str(settings.project.absolute()), "JARS": str(settings.jars.absolute())}
    env = {**os.environ, **{f"ONCEONLY_{name}": value for name, value in given.items()}}
    return Result(
        "The demo",
        "`onceonly demo run --exit` on this machine, in a new process.",
        [Row("make demo", "s", [seconds(lambda n=n: _run(folder / str(n), env)) for n in range(ROUNDS)])],  # type: ignore[misc]
    )


def _run(home: Path, env: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, "demo", "run", "--exit"]
    subprocess.run(command, env={**env, "ONCEONLY_HOME": str(home)}, check=True, stdout=subprocess.DEVNULL)
