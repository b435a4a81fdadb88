"""A Spark Connect server: a running JVM, so that a stage starts in about a second."""

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onceonly.dev.services import machine
from onceonly.dev.services.service import Service
from onceonly.settings import find_checkout
from onceonly.spark import jvm, stores
from onceonly.spark.conf import CONF, TOKEN_FILE
from onceonly.spark.jvm import spark_home

TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # as Spark and PySpark know it
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class SparkConnect(Service):
    """A server with Delta, the Kafka connector and Avro on its class path; memory: ONCEONLY_SPARK_MEMORY (2g).

    Anyone with its token can run code on it. Each start generates a token, in a file that only this user can read. The
    server reads it from its environment, since every user of the machine can see arguments.
    """

    name = "spark"
    port_variable = "ONCEONLY_SPARK_PORT"
    default_port = 15002
    seconds_to_start = 240.0
    java_options: Sequence[str] = ()  # beside Spark's own; those of a subclass, or of a test run

    def command(self, port: int) -> Sequence[str]:
        """Return the command of the server in the foreground, by spark-class: the scripts in sbin would detach it."""
        self._draw_token()
        command = [f"{spark_home()}/bin/spark-class", "org.apache.spark.deploy.SparkSubmit", "--class", SERVER]
        command += ["--master", "local[*]", "--driver-memory", os.environ.get("ONCEONLY_SPARK_MEMORY", "2g")]
        if self.java_options:
            command += ["--driver-java-options", " ".join(self.java_options)]
        command += ["--driver-class-path", os.pathsep.join(jvm.list_jars(self._jars))]
        store_jars = stores.list_jars(self._jars)
        if store_jars:
            command += ["--jars", ",".join(store_jars)]
        for name, value in self._settings(port).items():
            command += ["--conf", f"{name}={value}"]
        return command

    def environment(self) -> Mapping[str, str]:
        """Make the workers use this interpreter, and find the modules of checkout and project."""
        project = os.environ.get("ONCEONLY_PROJECT") or os.getcwd()
        paths = [str(find_checkout() or ""), project, os.environ.get("PYTHONPATH", "")]
        python = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        place = {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": machine.LOCALHOST}
        return {**python, **place, **jvm.environment(self._jars), TOKEN: self.token() or ""}

    def token(self) -> str | None:
        """Return the token of the last start; None before the first."""
        with suppress(FileNotFoundError):
            return self._token_file.read_text()
        return None

    def is_ready(self, port: int) -> bool:
        """Return whether the gRPC port is open."""
        return machine.is_open(port)

    def address(self, port: int) -> str:
        """Return the URL for `SparkSession.builder.remote`. PySpark sends a token unencrypted to this host only."""
        return f"sc://localhost:{port}"

    @property
    def _jars(self) -> Path:
        return machine.jars("spark").parent

    @property
    def _token_file(self) -> Path:
        return self.home / TOKEN_FILE

    def _draw_token(self) -> None:
        """Write a new token to a file that only this user can read."""
        self._token_file.unlink(missing_ok=True)
        with open(self._token_file, "x", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
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
