"""From `onceonly run` to a published checkpoint of 100 records into Delta and Kafka: cold, warm on a Spark Connect
server, and each without one of the things that make it quick. Each is a new process, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.ratio import alternate
from benchmarks.results import Result, ratio
from benchmarks.world import create, fill
from onceonly.dev.services import Services
from onceonly.settings import Settings
from onceonly.spark import jvm

ROUNDS, RECORDS, PARTITIONS = 3, 100, 4
BY_SPARK, UNPREPARED, OPTIMISED = ", read and written by Spark", ", no prepared classes", ", optimising"
COLD = ("cold run", f"cold run{BY_SPARK}", f"cold run{UNPREPARED}", f"cold run{OPTIMISED}")
WARM = ("warm run", f"warm run{BY_SPARK}")
SIDES = COLD + WARM
OPTIMISING = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=4"}
PROGRAM = "from onceonly.cli import main; main()"
MANY = "from onceonly.spark import small_batch; small_batch.MAX_RECORDS = -1"  # no number of records is few
PIPELINE = """
from datetime import datetime

from onceonly import DeltaSink, KafkaSink, KafkaSource, Pipeline
from onceonly.airflow import checkpoint_dag

small = Pipeline(
    name="{name}",
    source=KafkaSource(topic="bench", max_records={records}),
    transform="small:same",
    sinks=[DeltaSink("table", path="lake/{name}"), KafkaSink(name="topic", topic="{name}", format="raw")],
)
dag = checkpoint_dag(small, schedule=None, start_date=datetime(2013, 1, 1))
"""
TRANSFORM = """
def same(batch):
    text = batch.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    return {"table": text, "topic": text}
"""


def cold_start(folder: Path) -> Result:
    """Seconds and CPU of each side."""
    with _project(folder) as env:
        sides = {name: _Side(folder, name, env) for name in SIDES}
        works = {name: side.run for name, side in sides.items()}
        rows = alternate(works, ROUNDS, settle=lambda: _await_ends(sides.values()))
    sides_of = [[row for row in rows if row.measure in each] for each in (COLD, WARM)]
    return Result(
        "The first result",
        f"`onceonly run` in a new process: {RECORDS} records of {PARTITIONS} partitions into a table and a topic, "
        "the definition in a DAG file; `warm run` uses the server of `onceonly services up --spark`.",
        [*rows, *(ratio(first, other) for first, *others in sides_of for other in others)],
        settings={"optimising": OPTIMISING},
        notes=["Each begins when the JVM of the one before has ended. The CPU is without that of a run's own JVM."],
    )


class _Side:
    """One pipeline of its own, run again and again."""

    def __init__(self, folder: Path, side: str, env: Mapping[str, str]) -> None:
        name = f"small_{SIDES.index(side)}"
        self._file = folder / "dags" / f"{name}.py"
        self._file.parent.mkdir(exist_ok=True)
        self._file.write_text(PIPELINE.format(name=name, records=RECORDS))
        bare = {"ONCEONLY_JARS": str(_bare(folder))} if side.endswith(UNPREPARED) else {}
        slow = OPTIMISING if side.endswith(OPTIMISED) else {}
        self._program = f"{MANY}; {PROGRAM}" if side.endswith(BY_SPARK) else PROGRAM
        here = {} if side in WARM else {"SPARK_REMOTE": ""}
        self._env = {**env, **bare, **slow, **here}
        create(env["ONCEONLY_KAFKA_BOOTSTRAP"], name, PARTITIONS)
        self._session: int | None = None  # of the processes of the last run

    def run(self) -> None:
        command = [sys.executable, "-c", self._program, "run", f"{self._file}:small"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=self._env, start_new_session=True, **pipes) as process:
            self._session = process.pid
            output, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{self._file.stem} failed:\n{output}\n{errors}")

    def list_processes(self) -> list[psutil.Process]:
        """Return what is left of the last run: its JVM, which outlives the process that has started it by a moment."""
        return [process for process in psutil.process_iter() if _session_of(process.pid) == self._session]


@contextmanager
def _project(folder: Path) -> Iterator[dict[str, str]]:
    """A broker with records, a Spark server, and the environment of a process that uses them."""
    jvm.make_archive(Settings.from_env().jars)
    (folder / "small.py").write_text(TRANSFORM)
    services = Services(folder / "home", port=0, spark_port=0)
    bootstrap = services.up(spark=True).bootstrap
    try:
        create(bootstrap, "bench", PARTITIONS)
        fill(bootstrap, "bench", RECORDS * (ROUNDS + 2), PARTITIONS)
        given = {"HOME": folder / "home", "PROJECT": folder, "JARS": Settings.from_env().jars}
        ours = {f"ONCEONLY_{name}": str(value) for name, value in given.items()}
        yield {**os.environ, **ours, "ONCEONLY_KAFKA_BOOTSTRAP": bootstrap}
    finally:
        services.down()


def _await_ends(sides: Iterable[_Side]) -> None:
    psutil.wait_procs([process for side in sides for process in side.list_processes()])


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _bare(folder: Path) -> Path:
    """The same jars, without prepared classes."""
    jars = folder / "bare"
    jars.mkdir(exist_ok=True)
    if not (jars / "spark").exists():
        (jars / "spark").symlink_to(Settings.from_env().jars / "spark")
    return jars
