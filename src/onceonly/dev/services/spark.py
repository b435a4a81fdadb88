"""A Spark Connect server: a running JVM, so that a stage starts in about a second."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.spark import jvm, stores
from onceonly.spark.conf import CONF, TOKEN_FILE
from onceonly.spark.home import spark_home

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # as Spark and PySpark know it
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkConnect(Service):
    """Delta, the Kafka connector and Avro are on its class path; memory: ONCEONLY_SPARK_MEMORY (2g).

    Anyone with its token can run code on it. Each start generates a token, in a file that only this user can read. The
    server reads it from its environment, since every user of the machine can see arguments.
    """

    name = "spark"
    port_variable = "ONCEONLY_SPARK_PORT"
    default_port = 15002
    seconds_to_start = 240.0

    def command(self, port: int) -> Sequence[str]:
        """The server in the foreground, by spark-class: the scripts in sbin would detach it."""
        self._draw_token()
        options = [part for name, value in self._settings(port).items() for part in ("--conf", f"{name}={value}")]
        submit = [f"{spark_home()}/bin/spark-class", "org.apache.spark.deploy.SparkSubmit", "--class", SERVER]
        place = ["--master", "local[*]", "--driver-memory", os.environ.get("ONCEONLY_SPARK_MEMORY", "2g")]
        jars = ["--driver-class-path", os.pathsep.join(jvm.listed(self._jars))]
        if more := stores.jars(self._jars):
            jars += ["--jars", ",".join(more)]
        return [*submit, *place, *jars, *options]

    def environment(self) -> Mapping[str, str]:
        """Make the workers use this interpreter, and find the modules of checkout and project."""
        project = os.environ.get("ONCEONLY_PROJECT") or os.getcwd()
        paths = [str(machine.checkout() or ""), project, os.environ.get("PYTHONPATH", "")]
        python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        place = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": machine.LOCALHOST}
        return {**python, **place, **jvm.environment(self._jars), TOKEN: self.token() or ""}

    def token(self) -> str | None:
        """The token of the last start; None before the first."""
        with suppress(FileNotFoundError):
            return self._token.read_text()
        return None

    def is_ready(self, port: int) -> bool:
        """Whether the gRPC port is open."""
        return machine.is_open(port)

    def address(self, port: int) -> str:
        """The URL for `SparkSession.builder.remote`. PySpark sends a token unencrypted to this host name only."""
        return f"sc://localhost:{port}"

    @property
    def _jars(self) -> Path:
        return machine.jars("spark", self.home).parent

    @property
    def _token(self) -> Path:
        return self.home / TOKEN_FILE

    def _draw_token(self) -> None:
        self._token.unlink(missing_ok=True)
        with open(self._token, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_urlsafe(32))

    def _settings(self, port: int) -> dict[str, str | int]:
        return {
            "spark.authenticate": "true",  # for its other ports, which every user of this machine can reach
            "spark.connect.grpc.binding.address": machine.LOCALHOST,
            "spark.connect.grpc.binding.port": port,
            "spark.local.dir": str(self.folder / "local"),
            "spark.log.level": "WARN",
            "spark.sql.catalogImplementation": "in-memory",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),  # more would cost time on one machine
            **CONF,
            **stores.conf(self._jars),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
        }
