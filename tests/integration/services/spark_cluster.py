"""A standalone cluster of Spark with a few workers of one core, and a Connect server whose executors run on them.

It is set up to lose tasks and executors: eager speculation, and executors that end when they are idle.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from integration.services.group import Group
from integration.services.standalone import CONF, ROOT, Master, Worker
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.dev.services.spark import SparkConnect

WORKERS = 3
FIRE: Mapping[str, str] = {
    **CONF,
    "spark.authenticate": "false",  # workers would need its secret
    "spark.driver.host": machine.LOCALHOST,
    "spark.executor.cores": "1",
    "spark.executor.extraClassPath": str(ROOT / ".jars" / "spark" / "*"),
    "spark.locality.wait": "100ms",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.1",
    "spark.task.maxFailures": "4",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "8s",
    "spark.dynamicAllocation.maxExecutors": str(WORKERS),
    "spark.dynamicAllocation.executorIdleTimeout": "8s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "8s",
    # What a stopped executor keeps is computed again soon; it is not given up for two minutes.
    "spark.shuffle.io.connectionTimeout": "5s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "100ms",
}


class SmallWorker(Worker):
    """Has room for one executor, at an address of its own: two copies of a task never run at the same one."""

    cores, memory = 1, "1g"

    def __init__(self, master: Master, env: Mapping[str, str], number: int) -> None:
        super().__init__(master, env, number)
        self.host = f"127.0.0.{number + 2}"


class Driver(SparkConnect):
    """The Connect server, whose tasks run on the cluster."""

    def __init__(self, master: Master) -> None:
        super().__init__(master.home, port=0)
        self._master = master

    def command(self, port: int) -> Sequence[str]:
        given, running = list(super().command(port)), self._master.daemon.running()
        assert running
        given[given.index("--master") + 1] = self._master.address(running.port)
        return given

    def _settings(self, port: int) -> dict[str, str | int]:
        return {**super()._settings(port), **FIRE}


@dataclass(frozen=True)
class SparkCluster(Group):
    master: Master
    workers: Sequence[SmallWorker]
    driver: Driver

    @property
    def remote(self) -> str:
        running = self.driver.daemon.running()
        assert running
        return self.driver.address(running.port)

    @property
    def services(self) -> Sequence[Service]:
        return (self.master, *self.workers, self.driver)

    def up(self) -> None:
        """What does not run."""
        self.master.launch()
        self.master.wait()  # others that do not find it ask again after seconds
        for service in self.services[1:]:
            service.launch()
        for service in self.services[1:]:
            service.wait()

    def executors(self) -> list[psutil.Process]:
        """The JVMs of all executors that any worker has started and that have not ended."""
        found = []
        for process in psutil.process_iter():
            try:
                line = process.cmdline()
                ours = any(argument.startswith(str(self.master.home)) for argument in [process.cwd()])
            except psutil.Error:
                continue
            if ours and any("ExecutorBackend" in argument for argument in line):
                found.append(process)
        return found

    def worker_of(self, executor: int) -> SmallWorker:
        """The worker that has started it."""
        parent = psutil.Process(executor).ppid()
        return next(worker for worker in self.workers if (seen := worker.daemon.running()) and seen.pid == parent)

    def until_idle(self) -> None:
        """Executors end when there is nothing to do."""
        wait_until(lambda: not self.executors(), "no executor is left", PATIENCE)


def kill_worker(worker: SmallWorker) -> None:
    """SIGKILL, with its executors, which are in its group."""
    running = worker.daemon.running()
    assert running is not None and running.pid is not None
    os.killpg(running.pid, signal.SIGKILL)


def with_children(executor: int) -> list[psutil.Process]:
    """An executor and the Python processes that it has started."""
    process = psutil.Process(executor)
    return [process, *process.children(recursive=True)]


def cluster(home: Path, env: Mapping[str, str], workers: int = WORKERS) -> Iterator[SparkCluster]:
    """One that runs, until the caller has done with it."""
    master = Master(home, port=0)
    found = SparkCluster(master, [SmallWorker(master, env, number) for number in range(workers)], Driver(master))
    with found.running():
        yield found
