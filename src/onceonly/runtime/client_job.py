"""Spark jobs whose driver runs in or under this process: a stage, and a look at a catalog.

The driver is spark-submit's own process, in client mode, or a Spark Connect server's. A stage is ended from another
thread, or from a signal handler, by `end`: `run` then raises.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from onceonly import redaction
from onceonly.checkpoint.model import Checkpoint
from onceonly.error_codes import find_explanation
from onceonly.errors import ActionNeeded, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.kafka import airflow_connections
from onceonly.kafka.airflow_connections import Lookup
from onceonly.pipeline.catalogs import CatalogTable
from onceonly.pipeline.requirements import list_connection_ids
from onceonly.runtime import child_process, spark_master, spark_submit
from onceonly.runtime.child_process import hidden_properties
from onceonly.runtime.live_services import LiveServices, open_coordinator
from onceonly.runtime.spark_connection import SparkConnection
from onceonly.runtime.spark_stage import max_records, stage
from onceonly.settings import Settings
from onceonly.spark import catalog, jvm
from onceonly.spark.progress import Say
from onceonly.statetable.table import Notify, StateTable
from onceonly.views.descriptions import JOB_LINE_PREFIX

NO_MASTER = "All masters are unresponsive"  # in the log of Spark's StandaloneSchedulerBackend
CODE_OF_HEADLINE = re.compile(r"\[([a-z0-9-]+)\]$")  # see `errors.headline`


def make_stage_job(spark: SparkConnection, say: Say, notify: Notify, connections: Lookup) -> StageJob:
    """Return a stage on that Spark; `say` gets its output, line by line."""
    if spark.remote:
        return ConnectJob(spark, say, notify, connections)
    return SubmitJob(spark, say, connections)


@dataclass
class InterruptibleServices(LiveServices):
    """Services that interrupt what a Connect server does for the session that they opened, and for no other."""

    session: Any = field(default=None, init=False)

    def spark(self, records: int | None = None) -> Any:
        self.session = self.open_session(records)
        return self.session

    def open_session(self, records: int | None) -> Any:
        return super().spark(records)

    def interrupt(self) -> None:
        """Interrupt it, if there is one; returns at once.

        From a thread: a signal handler may have interrupted the session's client.
        """
        if self.session is not None:
            threading.Thread(target=self.session.interruptAll, daemon=True).start()


class StageJob(Protocol):
    """A stage that runs, or is about to."""

    def run(self, name: str, epoch: int, owner: str) -> None:
        """Stage, and return when that is recorded."""

    def end(self) -> None:
        """Stop what runs on Spark; returns at once."""


@dataclass
class ConnectJob:
    """Stages from this process on the Connect server."""

    spark: SparkConnection
    say: Say
    notify: Notify
    connections: Lookup
    services: InterruptibleServices | None = None

    def run(self, name: str, epoch: int, owner: str) -> None:
        settings = replace(Settings.from_env(), spark_remote=self.spark.remote)
        self.services = InterruptibleServices(settings, self.connections)
        coordinator = open_coordinator(self.services, log=self.notify)
        stage(self.services, coordinator, name, epoch, owner, self.say)

    def end(self) -> None:
        if self.services:
            self.services.interrupt()


@dataclass
class SubmitJob:
    """Runs the stage program by spark-submit and waits for it.

    It finds the Kafka connections that the pipeline names in its environment: arguments and Spark's settings are
    there for everyone to see.
    """

    spark: SparkConnection
    say: Say
    connections: Lookup
    process: subprocess.Popen[str] | None = None

    def run(self, name: str, epoch: int, owner: str) -> None:
        """Run spark-submit until it ends.

        Raises:
            InvalidPipeline, NotCommitted, OutcomeUnknown: by the job's exit code, with its last lines; or NotCommitted:
                the master does not answer, for which Spark alone would wait a minute and then not name it.
        """
        settings = Settings.from_env()
        spark_master.require_master(self.spark)
        checkpoint = _find_checkpoint(settings, name, epoch)
        env = jvm.environment(settings.jars, max_records(checkpoint) if checkpoint else None)
        env |= airflow_connections.write_variables(list_connections(checkpoint), self.connections)
        tail: list[str] = []
        has_no_master = False
        with start_program(self.spark, "stage", [name, str(epoch), owner], settings, env) as self.process:
            for output in self.process.stdout or ():
                line = output.rstrip().removeprefix(JOB_LINE_PREFIX)
                self.say(line)
                has_no_master = has_no_master or NO_MASTER in line
                tail = [*tail, line][-child_process.MAX_ERROR_LINES :]
            code = self.process.wait()
        if code and has_no_master:
            raise spark_master.no_master_error(
                self.spark, "It has accepted no application: it is no master of this Spark's version."
            )
        if code:
            raise classify_exit(code, tail)

    def end(self) -> None:
        """Send SIGTERM, which lets Spark deregister from its cluster; SIGKILL follows."""
        if self.process and self.process.poll() is None:
            child_process.signal_group(self.process, signal.SIGTERM)
            kill_timer = threading.Timer(
                child_process.TERM_GRACE_SECONDS, child_process.signal_group, (self.process, signal.SIGKILL)
            )
            kill_timer.daemon = True
            kill_timer.start()


@contextmanager
def start_program(
    spark: SparkConnection, step: str, arguments: Sequence[str], settings: Settings, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Run the program of `step` under spark-submit, with the driver in it, for no longer than this block."""
    spark = replace(spark, conf=jvm.class_path(settings) | spark.conf)  # of this machine: the driver will run here
    with hidden_properties(redaction.secret(spark.conf)) as hidden:
        program_line = spark_submit.build_client_arguments(spark, settings, step, arguments)
        line = [spark_submit.find_spark_submit(), *hidden.arguments, *program_line]
        with child_process.start_group(line, settings, env, hidden.inherited) as child:
            yield child


def _find_checkpoint(settings: Settings, name: str, epoch: int) -> Checkpoint | None:
    return StateTable(settings.state).view(name).checkpoint(epoch)


def list_connections(checkpoint: Checkpoint | None) -> set[str]:
    """Return the ids of the connections that its pipeline names."""
    return list_connection_ids(checkpoint.definition.pipeline) if checkpoint else set()


def classify_exit(code: int, tail: list[str]) -> Exception:
    """Return the error of a job that ended with that code, and these last lines."""
    if code < 0 or code > 128:
        number = -code if code < 0 else code - 128  # Popen has a signal as -9, a shell and a JVM as 128 + 9
        return NotCommitted(
            f"the stage job was killed by signal {number}.",
            "Nothing is published by staging.",
            "The next attempt, or recovery, removes what it left.",
            code="job-killed",
        )
    kind = {1: NotCommitted, 2: InvalidPipeline, 4: ActionNeeded}.get(code, OutcomeUnknown)
    return kind("the stage job failed.", "\n".join(tail), code=_find_code(tail) or "job-failed")


def _find_code(lines: Sequence[str]) -> str:
    """Return the code of the last error that the lines tell; empty if they tell none that the catalogue explains."""
    for line in reversed(lines):
        code = CODE_OF_HEADLINE.search(line)
        if code and find_explanation(code[1]):
            return code[1]
    return ""


def find_tables(spark: SparkConnection, names: Iterable[str]) -> Mapping[str, CatalogTable]:
    """Return where these tables are now, by name.

    Raises:
        InvalidPipeline, NotCommitted: see `spark.catalog.find`.
    """
    settings = Settings.from_env()
    if spark.remote:
        return catalog.find(LiveServices(replace(settings, spark_remote=spark.remote)).spark(), names)
    env = jvm.environment(settings.jars, records=0)
    with start_program(SparkConnection("local[1]", conf=spark.conf), "tables", sorted(names), settings, env) as job:
        lines = job.communicate()[0].splitlines()
    answers = [line.removeprefix(JOB_LINE_PREFIX) for line in lines if line.startswith(JOB_LINE_PREFIX)]
    if job.returncode == 0 and answers:
        return {name: CatalogTable(**table) for name, table in json.loads(answers[-1]).items()}
    kind: type[NotCommitted] = NotCommitted
    if job.returncode == InvalidPipeline.exit_code:
        kind = InvalidPipeline
    raise kind(
        f"it is not known where these tables are: {', '.join(sorted(names))}.",
        "\n".join(child_process.select_last_lines(lines)),
        "Nothing was planned.",
        code=_find_code(lines) or "job-failed",
    )
