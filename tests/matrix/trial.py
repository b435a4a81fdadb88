"""One cell: killed at each point, ended undisturbed, and compared with the CSV by readers of another environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from integration.programs.children import without_spark
from integration.readers.flights_truth import by_hour, by_sums, csv, in_files, in_state
from integration.readers.kafka_reader import new_topic

from matrix.cells import Cell
from matrix.environments import ROOT, Environment
from matrix.smoke import NAME, POINTS
from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import load, proof
from onceonly.dev.services import Services
from onceonly.kafka.transactions import Transactions
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

DAYS = Interval(datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2013, 1, 4, 5, tzinfo=UTC))
SECONDS = 1800  # for one process, of which one runs a whole Airflow
TO_LEAVE = 120
TAIL = 6000
DEFAULTS = """\
spark.master local[2]
spark.sql.shuffle.partitions 2
"""


class Failed(Exception):
    """What went otherwise than it has to."""


@dataclass(frozen=True)
class Trial:
    cell: Cell
    folder: Path
    env: dict[str, str]
    arguments: tuple[str, str]  # topics: the source's, the sink's

    def run(self, script: str, point: str) -> tuple[int, str]:
        """The code with which the process ended, and what it printed; nothing of it lives on."""
        with self._started(script, point) as child:
            printed = child.communicate(timeout=SECONDS)[0]
        return child.returncode, printed

    @contextmanager
    def _started(self, script: str, point: str) -> Iterator[subprocess.Popen[str]]:
        child = subprocess.Popen(
            [Environment(self.cell).python, Path(__file__).with_name(script), *self.arguments],
            env={**without_spark(os.environ), **self.env, "MATRIX_POINT": point},
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            if child.poll() is None:
                self._end(child)

    @staticmethod
    def _end(child: subprocess.Popen[str]) -> None:
        child.terminate()  # an Airflow and a cluster are ended by whoever has started them
        try:
            child.communicate(timeout=TO_LEAVE)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()

    def die(self, script: str, point: str) -> None:
        code, printed = self.run(script, point)
        if f"dies {point}" not in printed:
            raise Failed(f"'{point}' was not reached: {code}\n{printed[-TAIL:]}")

    def live(self, script: str) -> None:
        """To the end of all there is, undisturbed."""
        if self.cell.connect:
            self._serve()
        code, printed = self.run(script, "")
        if code:
            raise Failed(f"exit code {code}\n{printed[-TAIL:]}")

    def _serve(self) -> None:
        """A Spark Connect server, which this process's end stops with the broker."""
        command = [Environment(self.cell).python.with_name("onceonly"), "services", "up", "--spark"]
        env = {**without_spark(os.environ), **self.env, "ONCEONLY_SPARK_PORT": "0"}
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Failed(f"no Spark Connect server: {done.stdout[-TAIL:]}")
        self.env["SPARK_REMOTE"] = str(Settings.from_env(self.env).embedded_at("spark"))


def try_out(cell: Cell) -> dict[str, object]:
    """Raises Failed, or whatever a reader finds wrong."""
    with TemporaryDirectory(prefix="matrix-") as name, ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(services(cell, folder))
        topic, out = f"flights-{uuid.uuid4().hex[:8]}", new_topic(broker)
        env = environment(cell, folder, broker)
        settings = Settings.from_env(env)
        StateTable.make(settings.state)
        load.load(settings, topic, DAYS)
        trial, started = Trial(cell, folder, env, (topic, out)), time.monotonic()
        if cell.dag:
            trial.live("scheduled.py")
        else:
            for point in POINTS:
                trial.die("smoke.py", point)
            trial.live("smoke.py")
        seconds = time.monotonic() - started
        return {"seconds": round(seconds), "rows": judge(settings, broker, out), "Kafka writers": writers(settings)}


def environment(cell: Cell, folder: Path, broker: str) -> dict[str, str]:
    conf = folder / "spark-conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(DEFAULTS)
    return {
        "SPARK_CONF_DIR": str(conf),
        "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1",  # for jobs of seconds
        "ONCEONLY_HOME": str(folder),
        "ONCEONLY_PROJECT": str(ROOT),
        "ONCEONLY_JARS": str(Environment(cell).jars),
        "ONCEONLY_KAFKA_BOOTSTRAP": broker,
        "ONCEONLY_KAFKA_WRITER": "jvm",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("src", "tests", ".")),
    }


@contextmanager
def services(cell: Cell, folder: Path) -> Iterator[str]:
    """The address of the cell's broker."""
    before = os.environ.get("ONCEONLY_JARS")
    os.environ["ONCEONLY_JARS"] = str(Environment(cell).jars)
    here = Services(folder, port=0)
    try:
        yield here.up().bootstrap
    finally:
        here.down()
        os.environ.pop("ONCEONLY_JARS")
        os.environ.update({"ONCEONLY_JARS": before} if before else {})


def judge(settings: Settings, broker: str, out: str) -> dict[str, int]:
    """The rows that independent readers find in each sink; none is missing, none is there twice.

    Raises Failed.
    """
    table = proof.prove(settings.home / "lake" / "flights", DAYS)
    events = proof.prove_late(broker, out, ROOT / "schemas" / "late-flight.v1.avsc", DAYS)
    truth, closed, held = by_hour(csv(DAYS)), in_files(settings.home), in_state(settings, NAME)
    hours = by_sums(truth, [closed, held])
    with Transactions({"bootstrap_servers": broker}) as known:
        left = known.list_open(f".*-{StateTable(settings.state).id}-{NAME}-.*")
    if not (table.holds and events.holds and hours.holds) or {**closed, **held} != truth or left:
        raise Failed(f"table {table}, topic {events}, files and state {hours}, transactions left open: {left}")
    return {"table": table.actual, "topic": events.actual, "files and state": hours.actual}


def writers(settings: Settings) -> list[str]:
    """What wrote the rows of the Kafka sinks, as their handles say."""
    handles = (
        handle
        for each in StateTable(settings.state).view(NAME).checkpoints.values()
        for handle in each.handles.values()
    )
    return sorted({handle["writer"] for handle in handles if "writer" in handle})
