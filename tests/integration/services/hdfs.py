"""A real HDFS for tests: a NameNode and a DataNode, a process each, shared by all test processes of a run."""

from __future__ import annotations

import fcntl
import getpass
import json
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from onceonly.dev.services import ServiceFailed, machine
from onceonly.dev.services.service import Service
from onceonly.spark.jvm import spark_home

if TYPE_CHECKING:
    from onceonly.sinks.files.sink import FileWriter

SERVER = "org.apache.hadoop.hdfs.server"
OPENS = "--add-opens=java.base/java.lang=ALL-UNNAMED"  # of which YARN makes use
LIGHT = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", OPENS)  # up in seconds beside other tests


@dataclass(frozen=True)
class Hdfs:
    """Where it is: for Spark, and over HTTP."""

    root: str
    webhdfs: str

    @property
    def fs(self) -> Any:
        """Plain fsspec, with nothing of Onceonly's."""
        import fsspec  # only where a test asks for HDFS

        place = urlsplit(self.webhdfs)
        return fsspec.filesystem("webhdfs", host=place.hostname, port=place.port, user=getpass.getuser())

    def files(self, folder: str) -> list[str]:
        """Every path below, folders included, as fsspec calls it."""
        found: list[str] = self.fs.find(folder.removeprefix(self.root), withdirs=True)
        return found


def writer(target: str, webhdfs: str, **config: Any) -> FileWriter:
    from onceonly.pipeline.sinks import FileSink
    from onceonly.sinks.files.sink import FileWriter

    return FileWriter(FileSink(name="lake", path=target, **config), target, webhdfs)


class NameNode(Service):
    """Its port is that of the RPC; HTTP has another one, which its configuration tells."""

    name = "namenode"
    port_variable, default_port = "ONCEONLY_TESTS_NAMENODE_PORT", 0

    def command(self, port: int) -> Sequence[str]:
        web = machine.free_port(besides=port)
        write_conf(self.folder, port, {"dfs.namenode.http-address": f"{machine.LOCALHOST}:{web}"})
        (self.folder / "web").write_text(str(web))
        if not (self.folder / "name").exists():
            command = [*java(self.folder, self.home), f"{SERVER}.namenode.NameNode", "-format", "-nonInteractive"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise ServiceFailed("namenode did not start: it cannot be formatted.", done.stdout + done.stderr)
        return [*java(self.folder, self.home), f"{SERVER}.namenode.NameNode"]

    def is_ready(self, port: int) -> bool:
        return self.bean("NameNodeInfo").get("Safemode") == ""

    def address(self, port: int) -> str:
        return f"hdfs://{machine.LOCALHOST}:{port}"

    @property
    def web(self) -> str:
        return f"http://{machine.LOCALHOST}:{(self.folder / 'web').read_text()}"

    def bean(self, name: str) -> Mapping[str, Any]:
        """What it tells about itself; nothing as long as it does not."""
        query = f"{self.web}/jmx?qry=Hadoop:service=NameNode,name={name}"
        try:
            with urllib.request.urlopen(query, timeout=5) as answer:
                return dict((json.load(answer)["beans"] or [{}])[0])
        except (OSError, ValueError):
            return {}


class DataNode(Service):
    """Ready when a file can be written: the NameNode counts it before it knows of its disks."""

    name = "datanode"
    port_variable, default_port = "ONCEONLY_TESTS_DATANODE_PORT", 0

    def __init__(self, namenode: NameNode) -> None:
        super().__init__(namenode.home, port=0)
        self._namenode = namenode

    def command(self, port: int) -> Sequence[str]:
        names = ("dfs.datanode.address", "dfs.datanode.http.address", "dfs.datanode.ipc.address")
        places = dict.fromkeys(names, f"{machine.LOCALHOST}:0")
        known = self._namenode.daemon.running()
        assert known
        write_conf(self.folder, known.port, {**places, "dfs.datanode.hostname": machine.LOCALHOST})
        return [*java(self.folder, self.home), f"{SERVER}.datanode.DataNode"]

    def is_ready(self, port: int) -> bool:
        if self._namenode.bean("FSNamesystemState").get("NumLiveDataNodes") != 1:
            return False
        try:
            Hdfs(self._namenode.address(0), self._namenode.web).fs.pipe_file("/ready", b"yes")
        except (OSError, RuntimeError):
            return False
        return True

    def address(self, port: int) -> str:
        return ""


def up(home: Path) -> Hdfs:
    """Start what does not run; wait until files can be written."""
    namenode = NameNode(home, port=0)
    (home / "services").mkdir(parents=True, exist_ok=True)
    with (home / "services" / "hdfs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for service in (namenode, DataNode(namenode)):
            service.launch()
            service.wait()
    running = namenode.daemon.running()
    assert running
    return Hdfs(namenode.address(running.port), namenode.web)


def down(home: Path) -> None:
    namenode = NameNode(home, port=0)
    for service in (DataNode(namenode), namenode):
        service.daemon.stop()


def java(folder: Path, home: Path) -> list[str]:
    """The daemons are in Hadoop's minicluster jar; the rest of Hadoop, and its log, is what PySpark brings along."""
    names = ("hadoop-client-*", "jcl-over-slf4j-*", "log4j-*", "slf4j-api-*")
    others = (jar for name in names for jar in spark_home().glob(f"jars/{name}.jar"))
    path = [folder / "conf", *machine.jars("hdfs").glob("*.jar"), *others]
    return [machine.java(), *LIGHT, "-cp", ":".join(map(str, path))]


def write_conf(folder: Path, port: int, more: Mapping[str, str]) -> None:
    settings = {
        "fs.defaultFS": f"hdfs://{machine.LOCALHOST}:{port}",
        "dfs.namenode.name.dir": (folder / "name").as_uri(),
        "dfs.datanode.data.dir": (folder / "data").as_uri(),
        "dfs.replication": "1",
        "hadoop.tmp.dir": str(folder / "tmp"),
        **more,
    }
    write_site(folder, "hdfs", settings)


def write_site(folder: Path, name: str, settings: Mapping[str, str], site: str = "-site") -> None:
    """A file of Hadoop's configuration."""
    pairs = (f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items())
    (folder / "conf").mkdir(exist_ok=True)
    (folder / "conf" / f"{name}{site}.xml").write_text(f"<configuration>{''.join(pairs)}</configuration>")
