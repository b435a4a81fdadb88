"""Settings from the environment. None of them is secret.

`VARIABLES` lists them: `onceonly help settings` shows it, and docs/settings.md.

Secrets are in Airflow connections, or in AIRFLOW_CONN_<ID> (`kafka.airflow_connections`). Pipelines name connections.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline

STATE_VARIABLES = ("ONCEONLY_STATE", "ONCEONLY_HOME", "ONCEONLY_PROJECT")  # the first that is set counts
Writer = Literal["auto", "jvm", "python"]
BUNDLE_VERSION = "bundle "  # how the version of a bundle's code begins


@dataclass(frozen=True)
class Variable:
    """One setting: an environment variable, its meaning and its default."""

    name: str
    meaning: str
    default: str


VARIABLES = (
    Variable("ONCEONLY_HOME", "folder for everything that has no other setting", "$ONCEONLY_PROJECT/.onceonly"),
    Variable("ONCEONLY_STATE", "state table: a path or URI, created by `onceonly state init`", "$ONCEONLY_HOME/state"),
    Variable("ONCEONLY_SPOOL", "rows of Kafka sinks until they are published: a path or URI", "$ONCEONLY_HOME/spool"),
    Variable(
        "ONCEONLY_PROJECT",
        "folder with dags/, jobs/ and schemas/; its code may be run",
        "the current one; in a task of a git bundle, the bundle's",
    ),
    Variable("ONCEONLY_DOCS", "Data Docs of the gates: a path or URI", "$ONCEONLY_HOME/docs"),
    Variable("ONCEONLY_KAFKA_BOOTSTRAP", "broker addresses, host:port,…", "the broker of `onceonly services up`"),
    Variable(
        "ONCEONLY_JARS",
        "folder of Spark's jars and prepared classes; `onceonly jars` shows it",
        "$ONCEONLY_PROJECT/.jars or the checkout's, where there is one; else a cache of this user and these versions",
    ),
    Variable(
        "ONCEONLY_KAFKA_WRITER",
        "who writes the rows of Kafka sinks: Spark's `jvm`, or its `python` workers",
        "the JVM where it can; a small batch the process itself",
    ),
    Variable("ONCEONLY_WEBHDFS", "http(s)://host:port of the NameNode", "http, the host of hdfs://…, 9870"),
    Variable(
        "ONCEONLY_AWS_CONNECTION", "Airflow connection of type aws, with the login to S3", "the usual credential chain"
    ),
    Variable(
        "ONCEONLY_AZURE_CONNECTION",
        "Airflow connection of type wasb, with the login to Azure",
        "the usual credential chain",
    ),
    Variable(
        "ONCEONLY_GOOGLE_CONNECTION",
        "Airflow connection of type google_cloud_platform, with the login to Google Cloud Storage",
        "the usual credential chain",
    ),
    Variable("ONCEONLY_NOTIFY", "package.module:function, called after each recorded transition", "none"),
    Variable("ONCEONLY_TRANSFORMS", "installed packages, a,b.c, whose functions may be transforms, too", "none"),
    Variable(
        "ONCEONLY_CODE_VERSION",
        "version of the project's code, recorded with each attempt",
        "Airflow's bundle, or git's commit",
    ),
    Variable(
        "SPARK_REMOTE",
        "Spark Connect server, sc://host:port; if empty, Spark runs in the process",
        "the server of `onceonly services up --spark`, for commands; else Spark in the process",
    ),
    Variable("ONCEONLY_KAFKA_PORT", "port of the broker of `onceonly services up`", "that of the last start, or 19092"),
    Variable("ONCEONLY_SPARK_PORT", "port of its Spark Connect server", "that of the last start, or 15002"),
    Variable("ONCEONLY_SPARK_MEMORY", "memory of that server", "2g"),
    Variable("ONCEONLY_AIRFLOW_PORT", "port of the Airflow of `onceonly demo run`", "8080"),
)


@dataclass(frozen=True)
class Settings:
    """The settings of one process."""

    home: Path
    project: Path
    state: str
    spool: str
    docs: str
    bootstrap: str | None
    webhdfs: str | None
    notify: str | None
    spark_remote: str | None = field(repr=False)  # may hold a token
    transforms: tuple[str, ...]
    embedded: bool = False  # ONCEONLY_STATE is not set
    state_setting: str | None = None  # the variable that says where the state table is; None: the current folder
    aws_connection: str | None = None
    azure_connection: str | None = None
    google_connection: str | None = None
    jars_folder: Path | None = None  # that ONCEONLY_JARS names
    kafka_writer: Writer = "auto"
    bundle_version: str | None = None  # of the project, where that is in a bundle of Airflow

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
            jars_folder=Path(env["ONCEONLY_JARS"]).absolute() if env.get("ONCEONLY_JARS") else None,
            webhdfs=env.get("ONCEONLY_WEBHDFS") or None,
            notify=env.get("ONCEONLY_NOTIFY"),
            kafka_writer=_parse_writer(env.get("ONCEONLY_KAFKA_WRITER", "")),
            spark_remote=env.get("SPARK_REMOTE"),
            transforms=tuple(filter(None, env.get("ONCEONLY_TRANSFORMS", "").replace(" ", "").split(","))),
            embedded=not env.get("ONCEONLY_STATE"),
            state_setting=next(filter(env.get, STATE_VARIABLES), None),
            bundle_version=_find_bundle_version(env.get("ONCEONLY_CODE_VERSION", "")),
            aws_connection=env.get("ONCEONLY_AWS_CONNECTION") or None,
            azure_connection=env.get("ONCEONLY_AZURE_CONNECTION") or None,
            google_connection=env.get("ONCEONLY_GOOGLE_CONNECTION") or None,
        )

    @property
    def jars(self) -> Path:
        """The folder of Spark's jars and prepared classes."""
        return self.find_jars()[0]

    @property
    def store_connections(self) -> dict[str, str]:
        """The Airflow connections by which object stores are reached, by the variable that names each."""
        conn_ids = {
            "ONCEONLY_AWS_CONNECTION": self.aws_connection,
            "ONCEONLY_AZURE_CONNECTION": self.azure_connection,
            "ONCEONLY_GOOGLE_CONNECTION": self.google_connection,
        }
        return {variable: conn_id for variable, conn_id in conn_ids.items() if conn_id}

    def find_jars(self) -> tuple[Path, str]:
        """Return the folder of the jars and prepared classes, and why it is that one.

        Without a jar there, Spark's own settings count.
        """
        if self.jars_folder:
            return self.jars_folder, "ONCEONLY_JARS names it"
        if (self.project / ".jars").is_dir():
            return self.project / ".jars", "the project has it"
        checkout = find_checkout()
        if checkout and (checkout / ".jars").is_dir():
            return checkout / ".jars", "the checkout of Onceonly has it"
        return find_cache() / "jars" / _versions(), "the cache of this user, for these versions"

    def environment(self) -> dict[str, str]:
        """Return the same settings, as variables, for a process on another machine, where all paths have to be valid.

        Credentials do not travel: that machine reaches its storage by its own.
        """
        values = {
            "HOME": self.home,
            "STATE": self.state,
            "SPOOL": self.spool,
            "PROJECT": self.project,
            "DOCS": self.docs,
            "KAFKA_BOOTSTRAP": self.bootstrap,
            "JARS": self.jars,
            "WEBHDFS": self.webhdfs,
            "KAFKA_WRITER": "" if self.kafka_writer == "auto" else self.kafka_writer,
            "NOTIFY": self.notify,
            "TRANSFORMS": ",".join(self.transforms),
            "CODE_VERSION": self.bundle_version,  # else what that machine says: an image may have its own
        }
        return {f"ONCEONLY_{name}": str(value) for name, value in values.items() if value}

    def locate(self, path: str) -> str:
        """Return a sink's path as an absolute path or URI. A relative path is below the home."""
        return path if urlsplit(path).scheme or Path(path).is_absolute() else str(self.home / path)

    def brokers(self, pipeline_brokers: str | None) -> str:
        """Return the brokers that the pipeline names, else those of the environment, else the embedded broker.

        Raises:
            InvalidPipeline: there are none of them.
        """
        addresses = pipeline_brokers or self.bootstrap or self.embedded_at("kafka")
        if not addresses:
            raise InvalidPipeline(
                "no Kafka broker is configured.",
                "The pipeline has neither bootstrap nor connection, ONCEONLY_KAFKA_BOOTSTRAP is not set, and no "
                f"embedded broker runs in {self.home}.",
                "Set one of these, or start a broker: onceonly services up. Nothing was written.",
                code="broker-not-configured",
            )
        return addresses

    def spark_jars(self) -> list[str]:
        """Return the paths of Spark's jars, with those of object stores, where they were fetched.

        A jar that several need is there once.
        """
        paths: dict[str, str] = {}  # by name
        for folder in ("spark", "s3", "azure", "google"):
            for jar in sorted((self.jars / folder).glob("*.jar")):
                paths[jar.name] = str(jar)
        return list(paths.values())

    def embedded_at(self, service: str) -> str | None:
        """Return the address of "kafka" or "spark", where `onceonly services up` runs it for this home; else None."""
        try:
            address = json.loads((self.home / "services.json").read_text()).get(service)
        except FileNotFoundError:
            return None
        return str(address) if address else None


def _parse_writer(text: str) -> Writer:
    if text in ("", "auto"):
        return "auto"
    if text == "jvm":
        return "jvm"
    if text == "python":
        return "python"
    raise InvalidPipeline(
        f"ONCEONLY_KAFKA_WRITER={text!r} names no writer.",
        "There are 'jvm' and 'python'.",
        "Set one of them, or unset it: the JVM writes where it can. Nothing was written.",
        code="option-invalid",
    )


def _find_bundle_version(code_version: str) -> str | None:
    """Return the version that a task has taken over from its bundle; None where there is none, or people set it."""
    return code_version if code_version.startswith(BUNDLE_VERSION) else None


@cache
def find_checkout() -> Path | None:
    """Return the checkout that contains this package, or None if it is installed as a wheel."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def find_cache() -> Path:
    """Return the folder in which this user keeps what can be fetched again: XDG_CACHE_HOME, or as the system has it."""
    from platformdirs import user_cache_path  # few processes need it

    return user_cache_path("onceonly", appauthor=False).absolute()


@cache
def _versions() -> str:
    """Return what the jars are for: this Onceonly, which lists them, and the series of the installed PySpark."""
    from importlib.metadata import PackageNotFoundError, version  # few processes need it

    try:
        series = ".".join(version("pyspark").split(".")[:2])
    except PackageNotFoundError:
        return version("onceonly")
    return f"{version('onceonly')}-spark-{series}"
