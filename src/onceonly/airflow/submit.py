"""How the stage job reaches Spark: spark-submit in a process group of its own, or Spark Connect from this process.
(Where the driver runs on the cluster, too: `driver`.)

Either is ended from another thread, or from a signal handler, by `end`: `run` then raises.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseHook
from airflow.sdk.log import mask_secret

from onceonly import redaction
from onceonly.airflow.connections import from_airflow, handed_over
from onceonly.airflow.properties import properties
from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime.factory import LiveParts, coordinator, records, stage
from onceonly.runtime.jobs import program
from onceonly.runtime.orphan import die_with_parent
from onceonly.settings import Settings
from onceonly.spark import jvm
from onceonly.spark.conf import ELSEWHERE, conf
from onceonly.spark.home import spark_home
from onceonly.spark.progress import Say
from onceonly.statetable.table import StateTable
from onceonly.statetable.transitions import Notify
from onceonly.views.steps import MARK

REST_PORT = 6066  # Spark's own default
GRACE = 3.0  # seconds from SIGTERM to SIGKILL; Airflow gives a task five
TAIL = 12  # lines of the job's output that go into an error


@dataclass(frozen=True)
class Target:
    """Where Spark is: a master for spark-submit, or a Connect address."""

    master: str = "local[*]"
    remote: str | None = field(default=None, repr=False)  # may hold a token
    rest: str | None = None  # http://host:port of the master's REST server: the driver is to run on the cluster
    conf: dict[str, str] = field(default_factory=dict, repr=False)


def target(conn_id: str) -> Target:
    """The Spark connection.

    Raises:
        InvalidPipeline: there is no such connection, or it says what cannot be done.
    """
    try:
        connection: Any = BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' does not exist.",
            "Tasks reach Spark through it (spark_conn_id=…).",
            f"airflow connections add {conn_id} --conn-type spark --conn-host 'local[*]' (or spark://…, sc://…). "
            "Nothing was written.",
        ) from error
    host = connection.host or "local[*]"
    address = f"{host}:{connection.port}" if connection.port else host
    extra = {key: str(value) for key, value in connection.extra_dejson.get("conf", {}).items()}
    rest = _rest(conn_id, address, connection.extra_dejson)
    if address.startswith("sc://"):
        return Target(remote=_with_token(address, connection.password), conf=extra)
    _refuse_shown(conn_id, extra, rest)
    for value in redaction.secret(extra).values():
        mask_secret(value)
    return Target(address, rest=rest, conf=extra)


def _with_token(address: str, password: str | None) -> str:
    """As PySpark takes the token of a Spark Connect server."""
    if not password:
        return address
    return f"{address}{'' if '/;' in address else '/'};token={quote(password, safe='')}"


def _refuse_shown(conn_id: str, conf: Mapping[str, str], rest: str | None) -> None:
    """Refuse the secrets that could not be kept from others."""
    hidden = sorted(redaction.secret(conf))
    if rest and hidden:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(hidden)}.",
            "Its deploy mode is 'cluster': Spark's master would store them, and the driver's arguments show them.",
            "Give them to Spark's workers, in spark-defaults.conf or in their environment (AWS_SECRET_ACCESS_KEY, …), "
            "or set 'deploy-mode' to client. Nothing was written.",
        )
    if shown := [key for key in redaction.of_a_jvm(conf) if key in hidden]:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has secrets in its conf: {', '.join(shown)}.",
            "They are arguments of a Java process, which every user of its machine can see.",
            "Write them to a file with mode 600, and '@' and its path in their place. Nothing was written.",
        )


def _rest(conn_id: str, address: str, extra: Mapping[str, Any]) -> str | None:
    """Where to submit drivers, for deploy mode 'cluster'."""
    mode = extra.get("deploy-mode") or "client"
    if mode == "client":
        return None
    master = urlsplit(address)
    if mode != "cluster" or master.scheme != "spark" or "," in master.netloc:
        raise InvalidPipeline(
            f"the Airflow connection '{conn_id}' has deploy mode {mode!r} for {address}.",
            "A driver runs where the task does ('client'), or on the workers of one standalone master ('cluster').",
            "Set 'deploy-mode' in its extra to client, or its host to spark://…. Nothing was written.",
        )
    return f"http://{master.hostname}:{extra.get('rest-port') or REST_PORT}"


def job(spark: Target, say: Say, notify: Notify) -> Job:
    """A stage on that Spark; `say` gets its output, line by line."""
    return ConnectJob(spark, say, notify) if spark.remote else SubmitJob(spark, say)


class Job(Protocol):
    """A stage on its way."""

    def run(self, name: str, epoch: int, owner: str) -> None:
        """Stage, and return when that is recorded."""

    def end(self) -> None:
        """Stop what runs on Spark; returns at once."""


@dataclass
class ConnectJob:
    """Stages from this process on the Connect server."""

    spark: Target
    say: Say
    notify: Notify

    def run(self, name: str, epoch: int, owner: str) -> None:
        parts = self._parts()
        stage(parts, coordinator(parts, log=self.notify), name, epoch, owner, self.say)

    def end(self) -> None:
        interrupt(self._parts())

    def _parts(self) -> LiveParts:
        return LiveParts(replace(Settings.from_env(), spark_remote=self.spark.remote), from_airflow)


def interrupt(parts: LiveParts) -> None:
    """End what the Connect server does for this process's session, and for no other.

    From a thread: a signal handler may have interrupted its client.
    """
    threading.Thread(target=lambda: parts.spark().interruptAll(), daemon=True).start()


@dataclass
class SubmitJob:
    """Runs the stage program by spark-submit and waits for it.

    It finds the Kafka connections that the pipeline names in its environment: arguments and Spark's settings are
    there for everyone to see.
    """

    spark: Target
    say: Say
    process: subprocess.Popen[str] | None = None

    def run(self, name: str, epoch: int, owner: str) -> None:
        """Raises InvalidPipeline, NotCommitted or OutcomeUnknown by the job's exit code, with its last lines."""
        settings = Settings.from_env()
        checkpoint = _pinned(settings, name, epoch)
        tail: list[str] = []
        with self._started([name, str(epoch), owner], settings, checkpoint) as self.process:
            for line in self.process.stdout or ():
                told = line.rstrip().removeprefix(MARK)
                self.say(told)
                tail = [*tail, told][-TAIL:]
            code = self.process.wait()
        if code:
            raise error(code, tail)

    @contextmanager
    def _started(
        self, arguments: list[str], settings: Settings, checkpoint: Checkpoint | None
    ) -> Iterator[subprocess.Popen[str]]:
        here = replace(self.spark, conf=jvm.class_path(settings) | self.spark.conf)  # where the driver will run
        env = jvm.environment(settings.jars, records(checkpoint) if checkpoint else None)
        env |= handed_over(_connections(checkpoint))
        with properties(redaction.secret(here.conf)) as hidden:
            command = [_spark_submit(), *hidden.arguments, *submission(here, settings, "stage", arguments)]
            with _process(command, settings, env, hidden.inherited) as process:
                yield process

    def end(self) -> None:
        """SIGTERM lets Spark take leave of its cluster; SIGKILL follows."""
        if self.process and self.process.poll() is None:
            _signal(self.process, signal.SIGTERM)
            last = threading.Timer(GRACE, _signal, (self.process, signal.SIGKILL))
            last.daemon = True
            last.start()


@contextmanager
def _process(
    command: list[str], settings: Settings, more: Mapping[str, str], inherited: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    """The job's process group, which does not outlive this block, nor (on Linux) this process."""
    # The connection says which Spark: what points a process to a Connect server would win over --master.
    ours = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    env = {**ours, **more, "PYSPARK_PYTHON": sys.executable, "ONCEONLY_PROJECT": str(settings.project)}
    job = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",  # a library of the transform may write what it likes
        start_new_session=True,
        pass_fds=inherited,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    try:
        yield job
    finally:
        _end(job)
        if job.stdout:
            job.stdout.close()


def _end(job: subprocess.Popen[str]) -> None:
    """SIGTERM first, so that Spark can take leave of its cluster; then SIGKILL to whoever of the group is left."""
    if job.poll() is None:
        _signal(job, signal.SIGTERM)
        last = time.monotonic() + GRACE
        while time.monotonic() < last and not os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.05)
        _signal(job, signal.SIGKILL)
        job.wait()


def _signal(job: subprocess.Popen[str], number: signal.Signals) -> None:
    """To the whole group, as long as its leader was not waited for: its id cannot have become another's."""
    if job.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)


def _pinned(settings: Settings, name: str, epoch: int) -> Checkpoint | None:
    return StateTable(settings.state).view(name).checkpoint(epoch)


def _connections(checkpoint: Checkpoint | None) -> set[str]:
    return Pipeline.from_json(checkpoint.definition).connections if checkpoint else set()


def _spark_submit() -> str:
    return str(spark_home() / "bin" / "spark-submit")


def submission(spark: Target, settings: Settings, step: str, arguments: list[str]) -> list[str]:
    """spark-submit's arguments for the program of `step` on that master; secret settings are not among them."""
    settings_ = conf(settings) | redaction.public(spark.conf)
    pairs = [part for key, value in settings_.items() for part in ("--conf", f"{key}={value}")]
    return ["--master", spark.master, *pairs, str(program(step)), *arguments]


def error(code: int, tail: list[str]) -> Exception:
    """What a job that ended with that code, and these last lines, has met."""
    kind = {1: NotCommitted, 2: InvalidPipeline}.get(code, OutcomeUnknown)
    if code < 0 or code > 128:
        return NotCommitted(
            f"the stage job was killed by signal {-code if code < 0 else code - 128}.",
            "Nothing is published by staging.",
            "The next attempt, or recovery, removes what it left.",
        )
    return kind("the stage job failed.", "\n".join(tail))
