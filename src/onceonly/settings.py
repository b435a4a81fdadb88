"""Settings from the environment, with their defaults in parentheses. None of them is secret.

ONCEONLY_HOME             folder for the state table, relative paths of sinks and embedded services (./.onceonly)
ONCEONLY_STATE            path or URI of the state table ($ONCEONLY_HOME/state, which the first plan creates)
ONCEONLY_SPOOL            path or URI for the rows of Kafka sinks until they are published ($ONCEONLY_HOME/spool)
ONCEONLY_PROJECT          the folder with dags/, jobs/ and schemas/ (the current folder)
ONCEONLY_DOCS             path or URI for the gate's Data Docs ($ONCEONLY_HOME/docs)
ONCEONLY_KAFKA_BOOTSTRAP  broker addresses (those of the embedded broker, if it runs)
ONCEONLY_JARS             folder of `onceonly jars fetch` ($ONCEONLY_PROJECT/.jars if there, else $ONCEONLY_HOME/jars)
ONCEONLY_WEBHDFS          http(s)://host:port of the NameNode, for files on HDFS (http, the host of hdfs://…, 9870)
ONCEONLY_NOTIFY           package.module:function, called with (checkpoint, row) after each recorded transition
ONCEONLY_TRANSFORMS       installed packages (a,b.c) that may contain transforms and ONCEONLY_NOTIFY's function
SPARK_REMOTE              a Spark Connect server, sc://host:port; by default Spark runs in the process

Secrets are in Airflow connections, or in AIRFLOW_CONN_<ID> (see kafka/lookup.py). A pipeline names a connection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline


@dataclass(frozen=True)
class Settings:
    home: Path
    project: Path
    state: str
    spool: str
    docs: str
    bootstrap: str | None
    jars: Path
    webhdfs: str | None
    notify: str | None
    spark_remote: str | None = field(repr=False)  # may hold a token
    transforms: tuple[str, ...]
    embedded: bool = False  # ONCEONLY_STATE is not set

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Settings:
        project = Path(env.get("ONCEONLY_PROJECT") or Path.cwd()).absolute()
        home = Path(env.get("ONCEONLY_HOME") or project / ".onceonly").absolute()
        return cls(
            home=home,
            project=project,
            state=env.get("ONCEONLY_STATE") or str(home / "state"),
            spool=env.get("ONCEONLY_SPOOL") or str(home / "spool"),
            docs=env.get("ONCEONLY_DOCS") or str(home / "docs"),
            bootstrap=env.get("ONCEONLY_KAFKA_BOOTSTRAP"),
            jars=_jars(env.get("ONCEONLY_JARS"), project, home),
            webhdfs=env.get("ONCEONLY_WEBHDFS") or None,
            notify=env.get("ONCEONLY_NOTIFY"),
            spark_remote=env.get("SPARK_REMOTE"),
            transforms=tuple(filter(None, env.get("ONCEONLY_TRANSFORMS", "").replace(" ", "").split(","))),
            embedded=not env.get("ONCEONLY_STATE"),
        )

    def environment(self) -> dict[str, str]:
        """The same settings for a process on another machine, where all paths have to be valid."""
        given = {
            "HOME": self.home,
            "STATE": self.state,
            "SPOOL": self.spool,
            "PROJECT": self.project,
            "DOCS": self.docs,
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "JARS": self.jars,
            "WEBHDFS": self.webhdfs,
            "NOTIFY": self.notify,
            "TRANSFORMS": ",".join(self.transforms),
        }
        return {f"ONCEONLY_{name}": str(value) for name, value in given.items() if value}

    def locate(self, path: str) -> str:
        """A sink's path as an absolute path or URI. A relative path is below the home."""
        return path if urlsplit(path).scheme or Path(path).is_absolute() else str(self.home / path)

    def brokers(self, named: str | None) -> str:
        """The brokers that the pipeline names, else those of the environment, else the embedded broker."""
        found = named or self.bootstrap or self._embedded()
        if not found:
            raise InvalidPipeline(
                "no Kafka broker is configured.",
                "The pipeline has neither bootstrap nor connection, ONCEONLY_KAFKA_BOOTSTRAP is not set, and no "
                f"embedded broker runs in {self.home}.",
                "Set one of these, or start a broker: onceonly services up. Nothing was written.",
            )
        return found

    def spark_jars(self) -> list[str]:
        return sorted(str(jar) for jar in (self.jars / "spark").glob("*.jar"))

    def _embedded(self) -> str | None:
        try:
            return str(json.loads((self.home / "services.json").read_text())["kafka"])
        except FileNotFoundError:
            return None


def _jars(given: str | None, project: Path, home: Path) -> Path:
    """Without a jar there, Spark's own settings count."""
    usual = project / ".jars"
    return Path(given).absolute() if given else usual if usual.is_dir() else home / "jars"
