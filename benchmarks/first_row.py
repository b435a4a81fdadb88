"""From an empty machine to the first published row, by the wheel: each command of README's Install, timed.

Once with empty caches, which includes every download, and then with the caches that this has filled: what a machine
needs that has everything near. The wheel itself is built before, and not counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ratio import seconds
from benchmarks.results import Result, Row

ROOT = Path(__file__).parents[1]
EXTRAS = "airflow,gate,kafka,services,spark"
WARM_ROUNDS = 2  # and one that downloads: the registries are asked once
DOWNLOADING, NEAR = "with downloads", "without"
NAME, RECORDS = "orders", 1_000
PIPELINE = f"dags/pipelines/{NAME}.py"
# What the person who measures has set is not there on an empty machine; pip's own settings say where packages are.
FOREIGN = ("ONCEONLY_", "AIRFLOW", "SPARK_", "PYTHON", "PYSPARK_", "VIRTUAL_ENV", "XDG_", "PIP_CACHE_DIR", "JAVA_TOOL")
READER = (
    "from deltalake import DeltaTable, QueryBuilder; "
    f"table = QueryBuilder().register('rows', DeltaTable('.onceonly/lake/{NAME}')); "
    "rows = table.execute('SELECT * FROM rows').read_all().num_rows; "
    f"assert rows == {RECORDS}, rows"
)


def first_row(folder: Path) -> Result:
    """Seconds of each step, with downloads and without, and of all of them. Fails if a row is missing."""
    wheel = _build_wheel(folder / "dist")
    home = folder / "home"
    home.mkdir()
    runs: dict[str, dict[str, list[float]]] = {DOWNLOADING: {}, NEAR: {}}
    for number, kind in enumerate([DOWNLOADING, *[NEAR] * WARM_ROUNDS]):
        machine = _Machine(folder / str(number), home)
        with machine.measured(wheel) as times:
            for step, spent in times.items():
                runs[kind].setdefault(step, []).append(spent)
    rows = [row for kind, steps in runs.items() for row in _rows(kind, steps)]
    return Result(
        "From an empty machine to the first row",
        "The wheel in a new virtual environment, its dependencies in the versions of requirements.lock, a project by "
        f"`onceonly init`, and its first checkpoint of {RECORDS:,} records, until a reader of the table has all rows. "
        f"`{DOWNLOADING}`: the caches of pip and of `onceonly jars` are empty. `{NEAR}`: both are full, as in a second "
        "project on the same machine.",
        rows,
        notes=[
            "Python, Java and the wheel are there at the start.",
            "Between the two, a step that downloads nothing (python -m venv) shows what the load of the machine adds.",
            "The downloads came from mirrors near the machine: a slow line makes them longer.",
        ],
    )


def _rows(kind: str, steps: Mapping[str, Sequence[float]]) -> list[Row]:
    wholes = [sum(spent) for spent in zip(*steps.values(), strict=True)]
    return [Row(f"{kind}: all", "s", wholes), *(Row(f"{kind}: {step}", "s", spent) for step, spent in steps.items())]


def _build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@dataclass
class _Machine:
    """A folder for an environment and a project, and a home with caches."""

    folder: Path
    home: Path
    times: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def measured(self, wheel: Path) -> Iterator[dict[str, float]]:
        """The steps in their order. The broker ends with the block."""
        self.folder.mkdir()
        self._time("python -m venv", sys.executable, "-m", "venv", "venv")
        package = f"onceonly[{EXTRAS}] @ {wheel.as_uri()}"
        constraints = str(ROOT / "requirements.lock")
        self._time("pip install", "pip", "install", "--quiet", "--constraint", constraints, package, "pytest")
        self._time("onceonly jars fetch", "onceonly", "jars", "fetch")
        self._time("onceonly init", "onceonly", "init", NAME)
        self._time("onceonly services up", "onceonly", "services", "up", "--port", "0")
        try:
            self._time("python sample.py", "python", "sample.py")
            self._time("onceonly check", "onceonly", "check", PIPELINE)
            self._time("onceonly run", "onceonly", "run", PIPELINE)
            self._time("a reader has all rows", "python", "-c", READER)
            yield self.times
        finally:
            self._run("onceonly", "services", "down")

    def _time(self, step: str, *command: str) -> None:
        self.times[step] = seconds(lambda: self._run(*command))

    def _run(self, *command: str) -> None:
        scripts, project = self.folder / "venv" / "bin", self.folder / NAME
        program = scripts / command[0]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        done = subprocess.run(
            [str(program if program.exists() else command[0]), *command[1:]],
            cwd=project if project.exists() else self.folder,
            env={**kept, "HOME": str(self.home), "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
