"""Airflow beside the other runs: a second scheduler of the same pipeline, on which faults of its own fall."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING

from onceonly.dev.chaos.project import PIPELINE, RECOVERY
from onceonly.dev.services import machine
from onceonly.dev.services.daemon import Daemon
from onceonly.errors import NotCommitted
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.dev.demo.standalone import Standalone

MAX_RUN_SECONDS = 300.0  # of a DAG run, after which the next one is triggered
HEARTBEAT_SECONDS = 20  # without a sign of life, a task counts as dead
RECOVERY_EVERY = 4  # runs
PASSED_ON = ("ONCEONLY_", "SPARK_", "PYTHONPATH")  # variables of the project's environment


def explain_absence() -> str:
    """Return "" if Airflow is installed with what is needed to ask it, else what is not."""
    missing = [name for name in ("airflow", "requests") if find_spec(name) is None]
    return f"{missing[0]} is not installed" if missing else ""


@dataclass
class AirflowRuns(Thread):
    """A thread that triggers a run of the DAG when the last one has ended, and now and then one of the recovery.

    Args:
        folder: of the whole chaos run; Airflow's own is in it, and not on the disk that gets full.
        spark: address of the Spark Connect server.
        environment: of the project's processes.
    """

    folder: Path
    settings: Settings
    spark: str
    environment: Mapping[str, str]
    outcomes: Counter[str] = field(default_factory=Counter)
    _gate: RLock = field(default_factory=RLock)  # held while a DAG run lasts
    _ended: Event = field(default_factory=Event)
    _server: Standalone = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(name="chaos-airflow", daemon=True)
        from onceonly.dev.demo.standalone import Standalone

        self._server = Standalone(replace(self.settings, home=self.folder), machine.free_port(), self.spark)

    __hash__ = Thread.__hash__

    def start_server(self) -> None:
        """Start Airflow, and wait until it has the DAGs. Raises NotCommitted: it does not start."""
        from onceonly.dev.demo.standalone import wait_until

        self._server.start(self._variables())
        for dag in (PIPELINE, RECOVERY):
            wait_until(lambda dag=dag: self._server.unpause(dag), f"Airflow has parsed DAG {dag}", 120)  # type: ignore[misc]

    def stop_server(self) -> None:
        """End all its processes."""
        Daemon(self._server.folder).stop()

    def kill(self) -> None:
        """Kill all its processes, tasks too."""
        Daemon(self._server.folder).kill()

    def run(self) -> None:
        turn = 0
        while not self._ended.is_set():
            turn += 1
            dag = PIPELINE if turn % RECOVERY_EVERY else RECOVERY
            with self._gate:
                self.outcomes[f"Airflow's {dag}: {self._run_dag(dag)}"] += 1
            self._ended.wait(0.5)

    def end(self) -> None:
        """Trigger no other run, and leave the one that lasts."""
        self._ended.set()
        self.join()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Trigger no run while the block runs; it begins when the one that lasts has ended."""
        with self._gate:
            yield

    def _run_dag(self, dag: str) -> str:
        """Trigger a run, wait for its end, and return how it ended. While Airflow is down it is asked again."""
        end, run = time.monotonic() + MAX_RUN_SECONDS, ""
        while time.monotonic() < end and not self._ended.is_set():
            try:
                run = run or self._server.trigger(dag)
                state = self._server.run_state(dag, run)
            except (OSError, ValueError, KeyError, NotCommitted):  # those of `requests` are OSErrors
                state = ""
            if state in ("success", "failed"):
                return state
            self._ended.wait(1.0)
        return "left at the end" if self._ended.is_set() else "not ended in time"

    def _variables(self) -> dict[str, str]:
        passed_on = {name: value for name, value in self.environment.items() if name.startswith(PASSED_ON)}
        timeout = {"AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": str(HEARTBEAT_SECONDS)}
        return {**passed_on, **timeout, "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5"}
