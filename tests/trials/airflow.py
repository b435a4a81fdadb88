"""Airflow standalone on the flights of January, whose parts can be killed and started again one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from integration.services.postgres import postgres, programs

from onceonly.checkpoint.model import Checkpoint
from onceonly.dev.demo import flights
from onceonly.dev.demo.load import load
from onceonly.dev.demo.standalone import Standalone, wait_until
from onceonly.dev.services import Services, machine
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable

DAG = "flights_daily"
RECOVERY = "onceonly_recovery"
STARTED = time.monotonic()
PATH = os.pathsep.join(str(Path(__file__).parents[2] / part) for part in ("tests", "src"))  # of this checkout


def say(words: str) -> None:
    print(f"{time.monotonic() - STARTED:6.0f} s  {words}", flush=True)


@dataclass
class Airflow(Standalone):
    """Standalone, which starts none of its parts again: `replace` does."""

    spark: str = "local[2]"
    extra: Mapping[str, str] = field(default_factory=dict)
    replaced: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        spark = {"conn_type": "generic", "host": self.spark}
        ours = {"AIRFLOW_CONN_SPARK": json.dumps(spark), "PYTHONPATH": PATH}
        ours["AIRFLOW__CORE__PARALLELISM"] = "8"
        return {**super().environment(), **ours, **self.extra}

    def part(self, name: str) -> psutil.Process:
        """The first process of scheduler, triggerer, dag-processor or api-server."""
        started = [process.pid for process in self.replaced] + [self.pid]
        for pid in started:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    if _is_part(process, name):
                        return process
        raise LookupError(name)

    @property
    def pid(self) -> int:
        running = self._daemon.running()
        assert running and running.pid
        return running.pid

    def kill(self, name: str) -> None:
        """SIGKILL to that process alone; what it has started lives on."""
        process = self.part(name)
        process.kill()
        say(f"SIGKILL to the {name} (pid {process.pid})")

    def replace(self, name: str) -> None:
        log = (self.folder / f"{name}-again.log").open("ab")
        environment = {**os.environ, **self.environment(), "AIRFLOW__CORE__EXECUTOR": "LocalExecutor"}
        command = [sys.executable, "-m", "airflow", name]
        self.replaced.append(
            subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        )
        log.close()
        say(f"started another {name}")

    def unpause_parsed(self, dag: str) -> None:
        """As soon as Airflow knows it."""
        wait_until(lambda: self.unpause(dag), f"Airflow has parsed DAG {dag}", 300)

    def cli(self, *arguments: str) -> str:
        """What `airflow …` prints."""
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def stop(self) -> None:
        sessions = {process.pid for process in self.replaced}
        super().stop()
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) in sessions:
                    process.kill()
        for process in self.replaced:
            process.wait(30)


def _is_part(process: psutil.Process, name: str) -> bool:
    words = " ".join(process.cmdline()).replace("_", "-")  # the api-server calls itself api_server
    return process.status() != psutil.STATUS_ZOMBIE and (words.endswith(f" {name}") or f"airflow {name}" in words)


@dataclass
class World:
    settings: Settings
    airflow: Airflow
    dag: str = DAG  # and its pipeline, and its table

    @property
    def table(self) -> Path:
        return Path(self.settings.locate(f"lake/{self.dag}"))

    def checkpoints(self) -> list[Checkpoint]:
        view = StateTable(self.settings.state).view(self.dag)
        found = (view.checkpoint(epoch) for epoch in range(1, view.head.epoch + 1))
        return [checkpoint for checkpoint in found if checkpoint]

    def of_day(self, day: int) -> list[Checkpoint]:
        """The checkpoints of a day in January, oldest first."""
        return [cp for cp in self.checkpoints() if cp.interval and cp.interval.start.isoformat()[:10] == date(day)]


def date(day: int) -> str:
    return f"2013-01-{day:02}"


def _database(url: str | None) -> dict[str, str]:
    """SQLite refuses `airflow backfill create` now and then, while the scheduler writes."""
    return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url} if url else {}


@contextmanager
def world(extra: Mapping[str, str] | None = None) -> Iterator[World]:
    """Broker, Spark Connect server, January's flights, Airflow; all of it ended with the block."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with TemporaryDirectory(prefix="onceonly-trial-") as folder, ExitStack() as stack:
        home = Path(folder)
        settings = replace(Settings.from_env(), home=home, state=str(home / "state"), bootstrap=None)
        services = Services(home, port=0, spark_port=0)
        database = stack.enter_context(postgres()) if programs() else None
        try:
            endpoints = services.up(spark=True)
            StateTable.make(settings.state)
            loaded = load(settings, "flights", flights.month_period("2013-01"))
            say(f"broker, Spark Connect, {loaded.loaded:,} flights of January")
            say(f"Airflow's database: {'PostgreSQL' if database else 'SQLite'}")
            airflow = Airflow(
                settings,
                machine.free_port(),
                spark=endpoints.spark_remote or "",
                extra={**(extra or {}), **_database(database)},
            )
            try:
                airflow.start({})
                for dag in (DAG, RECOVERY):
                    airflow.unpause_parsed(dag)
                say(f"Airflow standalone at {airflow.url}")
                yield World(settings, airflow)
            finally:
                airflow.stop()
        finally:
            services.down()
