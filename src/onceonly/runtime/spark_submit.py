"""spark-submit: its command line, and the run that hands a driver over to a cluster.

Secret settings are not on the command line: arguments are there for everyone to see.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onceonly import redaction
from onceonly.runtime import child_process
from onceonly.runtime.child_process import hidden_properties
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.settings import Settings
from onceonly.spark import jvm
from onceonly.spark.conf import conf as session_conf
from onceonly.spark.jvm import spark_home


def find_spark_submit() -> str:
    return str(spark_home() / "bin" / "spark-submit")


def program(step: str) -> Path:
    """Return the program of a step, a file of its own. On a cluster, the driver's machine has it at the same path."""
    return Path(__file__).with_name("jobs") / f"{step}.py"


def build_client_arguments(
    spark: SparkConnection, settings: Settings, step: str, program_arguments: Sequence[str]
) -> list[str]:
    """Return the arguments for the program of `step` on that master; the driver is spark-submit's own process."""
    deploy_mode = {"spark.submit.deployMode": "client"}  # whatever a spark-defaults.conf says
    return build_arguments(
        spark.master, session_conf(settings) | spark.conf | deploy_mode, str(program(step)), program_arguments
    )


def build_arguments(master: str, conf: Mapping[str, str], program: str, program_arguments: Sequence[str]) -> list[str]:
    """Return the arguments, without the secrets among the settings: see `hidden_properties`."""
    composed = ["--master", master]
    for key, value in redaction.public(conf).items():
        composed += ["--conf", f"{key}={value}"]
    return [*composed, program, *program_arguments]


@dataclass(frozen=True)
class DriverJob:
    """One step of a checkpoint, for a driver.

    `tag` is the same whoever submits this step of this attempt, and `name` is of this submission alone.
    """

    step: str  # "stage" or "gate"
    name: str
    tag: str
    arguments: Sequence[str]
    spark: SparkConnection
    settings: Settings
    connections: Mapping[str, str] = field(default_factory=dict, repr=False)  # AIRFLOW_CONN_<ID>, AWS_…: secret

    @property
    def title(self) -> str:
        """Return the application's name, for people; the name of the job can be read from it."""
        return f"onceonly {self.name}"

    @property
    def nonce(self) -> str:
        return self.name.rpartition("-")[2]


@dataclass
class SparkSubmit:
    """A run of spark-submit that hands a driver over to a cluster, as a child of this process."""

    child: subprocess.Popen[str] | None = None
    ended: bool = False

    def run(
        self,
        job: DriverJob,
        conf: Mapping[str, str],
        program: str,
        more: Sequence[str] = (),
        inherited: Sequence[int] = (),
    ) -> tuple[int, list[str]]:
        """Run spark-submit in cluster mode until it ends, and return its exit code and last lines.

        Args:
            conf: settings, secret ones too, beside those of every session.
            program: what the driver runs.
            more: arguments of the program after those of the job.
            inherited: file descriptors.
        """
        job_conf = {**session_conf(job.settings), **conf}
        job_conf |= {"spark.submit.deployMode": "cluster", "spark.app.name": job.title}
        arguments = build_arguments(job.spark.master, job_conf, program, [*job.arguments, *more])
        env = jvm.environment(job.settings.jars, records=0)
        with hidden_properties(redaction.secret(job_conf)) as hidden:
            line = [find_spark_submit(), *hidden.arguments, *arguments]
            with child_process.start_group(line, job.settings, env, [*hidden.inherited, *inherited]) as self.child:
                if self.ended:  # before there was a process to kill
                    self.end()
                lines = self.child.communicate()[0].splitlines()
                return self.child.returncode, child_process.select_last_lines(lines)

    def end(self) -> None:
        """Kill immediately: there is nothing to deregister."""
        self.ended = True
        if self.child:
            child_process.signal_group(self.child, signal.SIGKILL)
