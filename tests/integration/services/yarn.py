"""A real YARN for tests: a ResourceManager and a NodeManager, a process each, on local disks."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from integration.services.group import Group
from integration.services.hdfs import java, write_site
from integration.services.standalone import CONF, ROOT

from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.spark.jvm import spark_home

SERVER = "org.apache.hadoop.yarn.server"
SCHEDULER = {
    "yarn.scheduler.capacity.root.queues": "default,nightly",
    "yarn.scheduler.capacity.root.default.capacity": "50",
    "yarn.scheduler.capacity.root.default.maximum-capacity": "100",
    "yarn.scheduler.capacity.root.default.user-limit-factor": "10",
    "yarn.scheduler.capacity.root.nightly.capacity": "50",
    "yarn.scheduler.capacity.root.nightly.maximum-capacity": "100",
    "yarn.scheduler.capacity.root.nightly.user-limit-factor": "10",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
    "yarn.scheduler.capacity.root.acl_administer_queue": " ",  # nobody; without access lists, whoever asks
}
SOON = {  # milliseconds; by default a container waits for the next second, and a node for half a minute
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "100",
    "yarn.resourcemanager.connect.retry-interval.ms": "200",
}
PATH = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])  # the code beside these tests
HERE = {"SPARK_LOCAL_IP": machine.LOCALHOST, "PYTHONPATH": PATH}
PLACES = [("spark.yarn.appMasterEnv", HERE), ("spark.executorEnv", HERE)]


class ResourceManager(Service):
    """Its port is that of the web; the others are in its configuration."""

    name = "resourcemanager"
    port_variable, default_port = "ONCEONLY_TESTS_YARN_PORT", 0

    def command(self, port: int) -> Sequence[str]:
        write_conf(self.folder, self.settings(port), self.core())
        return [*java(self.folder, self.home), f"{SERVER}.resourcemanager.ResourceManager"]

    def core(self) -> dict[str, str]:
        """What is the same for YARN and HDFS."""
        return {}

    def settings(self, port: int) -> dict[str, str]:
        """The same, when it is started again: clients know where it is."""
        file = self.folder / "settings.json"
        if not file.exists():
            names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
            taken: list[int] = [port]
            for _ in names:
                taken.append(machine.free_port(besides=taken[-1]))
            places = {
                f"yarn.resourcemanager.{name}": f"{machine.LOCALHOST}:{each}"
                for name, each in zip(names, taken[1:], strict=True)
            }
            place = {"yarn.resourcemanager.webapp.address": f"{machine.LOCALHOST}:{port}"}
            file.write_text(json.dumps({**SOON, **places, **place, "yarn.resourcemanager.hostname": machine.LOCALHOST}))
        return dict(json.loads(file.read_text()))

    def is_ready(self, port: int) -> bool:
        return bool(self.ask("cluster/info"))

    def address(self, port: int) -> str:
        return f"http://{machine.LOCALHOST}:{port}"

    @property
    def web(self) -> str:
        running = self.daemon.last()
        assert running
        return self.address(running.port)

    def ask(self, path: str) -> dict[str, Any]:
        """What it answers; nothing as long as it does not."""
        try:
            with urllib.request.urlopen(f"{self.web}/ws/v1/{path}", timeout=5) as answer:
                return dict(json.load(answer))
        except (OSError, ValueError):
            return {}


class NodeManager(Service):
    name = "nodemanager"
    port_variable, default_port = "ONCEONLY_TESTS_NODE_PORT", 0

    def __init__(self, manager: ResourceManager) -> None:
        super().__init__(manager.home, port=0)
        self._manager = manager

    def command(self, port: int) -> Sequence[str]:
        known = self._manager.daemon.running()
        assert known
        names = ("address", "localizer.address", "collector-service.address")
        settings = {
            **self._manager.settings(known.port),
            **{f"yarn.nodemanager.{name}": f"{machine.LOCALHOST}:0" for name in names},
            "yarn.nodemanager.webapp.address": f"{machine.LOCALHOST}:{port}",
            "yarn.nodemanager.hostname": machine.LOCALHOST,
            "yarn.nodemanager.local-dirs": str(self.folder / "local"),
            "yarn.nodemanager.log-dirs": str(self.folder / "logs"),
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
        }
        write_conf(self.folder, settings, self._manager.core())
        return [*java(self.folder, self.home), f"{SERVER}.nodemanager.NodeManager"]

    def is_ready(self, port: int) -> bool:
        nodes = (self._manager.ask("cluster/nodes").get("nodes") or {}).get("node", [])
        return any(node["state"] == "RUNNING" for node in nodes)

    def address(self, port: int) -> str:
        return f"http://{machine.LOCALHOST}:{port}"


@dataclass(frozen=True)
class Yarn(Group):
    """Where it is."""

    manager: ResourceManager
    node: NodeManager

    @property
    def conf(self) -> Path:
        """HADOOP_CONF_DIR."""
        return self.manager.folder / "conf"

    def connection(self, **extra: Any) -> str:
        """For AIRFLOW_CONN_SPARK, as users of Airflow's own provider fill it in."""
        mine = {f"{prefix}.{name}": value for prefix, env in PLACES for name, value in env.items()}
        mine |= {
            "spark.yarn.jars": f"local:{spark_home()}/jars/*",
            "spark.yarn.stagingDir": (self.manager.home / "staging").as_uri(),
            "spark.yarn.am.memory": "512m",
            "spark.executor.instances": "1",
            "spark.executor.memoryOverhead": "384m",
            "spark.yarn.scheduler.heartbeat.interval-ms": "200",
            "spark.ui.enabled": "false",
        }
        conf = {**CONF, **mine, **extra.pop("conf", {})}
        where = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": self.manager.web, **extra}
        return json.dumps({"conn_type": "spark", "host": "yarn", "extra": {**where, "conf": conf}})

    @property
    def services(self) -> Sequence[Service]:
        return (self.manager, self.node)

    def up(self) -> None:
        """At the same time: the node asks for its manager until it is there."""
        for service in self.services:
            service.launch()
        for service in self.services:
            service.wait()


def yarn(home: Path) -> Yarn:
    manager = ResourceManager(home, port=0)
    return Yarn(manager, NodeManager(manager))


def write_conf(folder: Path, settings: Mapping[str, str], core: Mapping[str, str] = MappingProxyType({})) -> None:
    write_site(folder, "core", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder / "tmp"), **core})
    write_site(folder, "yarn", settings)
    write_site(folder, "capacity-scheduler", SCHEDULER, "")
