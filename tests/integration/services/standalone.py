"""A real standalone cluster of Spark for tests: a master that takes drivers over REST, and a worker that runs them."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.services.group import Group
from patience import PATIENCE

from onceonly.dev.demo.standalone import wait_until
from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.spark.jvm import spark_home

ROOT = Path(__file__).parents[3]
LIGHT = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": machine.LOCALHOST}
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
CONF = {
    "spark.driver.extraJavaOptions": SHORT,
    "spark.driver.memory": "600m",
    "spark.executor.extraJavaOptions": SHORT,
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Master(Service):
    name = "standalone-master"
    port_variable, default_port = "ONCEONLY_TESTS_MASTER_PORT", 0
    seconds_to_start = PATIENCE

    def command(self, port: int) -> Sequence[str]:
        if not (self.folder / "ports").exists():  # started again, it is where it was
            found = {"rest": machine.free_port(besides=port), "web": machine.free_port(besides=port)}
            (self.folder / "ports").write_text(json.dumps(found))
        place = ["--host", machine.LOCALHOST, "--port", str(port), "--webui-port", str(self.ports["web"])]
        return [f"{spark_home()}/bin/spark-class", "org.apache.spark.deploy.master.Master", *place]

    def environment(self) -> Mapping[str, str]:
        settings = {"enabled": "true", "host": machine.LOCALHOST, "port": self.ports["rest"]}
        options = " ".join(f"-Dspark.master.rest.{name}={value}" for name, value in settings.items())
        return {**LIGHT, "SPARK_MASTER_OPTS": options}

    def is_ready(self, port: int) -> bool:
        return machine.is_open(self.ports["rest"])

    def address(self, port: int) -> str:
        return f"spark://{machine.LOCALHOST}:{port}"

    @property
    def ports(self) -> dict[str, int]:
        return dict(json.loads((self.folder / "ports").read_text()))

    def page(self) -> dict[str, Any]:
        """What it tells about its workers and drivers; nothing as long as it does not."""
        try:
            with urllib.request.urlopen(f"http://{machine.LOCALHOST}:{self.ports['web']}/json/", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}


class Worker(Service):
    """Its drivers find the project's packages, and whatever `env` holds, in its own environment."""

    name = "standalone-worker"
    port_variable, default_port = "ONCEONLY_TESTS_WORKER_PORT", 0
    seconds_to_start = PATIENCE
    cores, memory, host = 4, "4g", machine.LOCALHOST

    def __init__(self, master: Master, env: Mapping[str, str], number: int | None = None) -> None:
        self.name = self.name if number is None else f"{self.name}-{number}"
        super().__init__(master.home, port=0)
        self._master, self._env = master, env

    def command(self, port: int) -> Sequence[str]:
        known = self._master.daemon.running()
        assert known
        place = ["--host", self.host, "--port", str(port), "--webui-port", "0"]
        work = ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", str(self.folder / "work")]
        worker = [f"{spark_home()}/bin/spark-class", "org.apache.spark.deploy.worker.Worker", *place, *work]
        return [*worker, self._master.address(known.port)]

    def environment(self) -> Mapping[str, str]:
        return {**LIGHT, "SPARK_LOCAL_IP": self.host, "PYSPARK_PYTHON": sys.executable, **self._env}

    def is_ready(self, port: int) -> bool:
        workers = self._master.page().get("workers", [])
        return any((worker["state"], worker["port"]) == ("ALIVE", port) for worker in workers)

    def address(self, port: int) -> str:
        return ""


@dataclass(frozen=True)
class Cluster(Group):
    """Where it is."""

    master: Master
    worker: Worker

    @property
    def address(self) -> str:
        running = self.master.daemon.running()
        assert running
        return self.master.address(running.port)

    @property
    def rest(self) -> str:
        return f"http://{machine.LOCALHOST}:{self.master.ports['rest']}"

    def connection(self, **extra: Any) -> str:
        """For AIRFLOW_CONN_SPARK: drivers run on the worker."""
        where = {"deploy-mode": "cluster", "rest-port": self.master.ports["rest"], "conf": CONF, **extra}
        return json.dumps({"conn_type": "spark", "host": self.address, "extra": where})

    def replace_master(self) -> None:
        """SIGKILL, and another one at the same place, which knows of no driver."""
        running = self.master.daemon.running()
        assert running
        os.killpg(running.pid, signal.SIGKILL)
        wait_until(lambda: machine.is_free(running.port), "the master's port is free", PATIENCE)
        another = Master(self.master.home, port=running.port)
        another.launch()
        another.wait()

    @property
    def services(self) -> Sequence[Service]:
        return (self.master, self.worker)


def cluster(home: Path, env: Mapping[str, str]) -> Cluster:
    master = Master(home, port=0)
    return Cluster(master, Worker(master, env))
