"""spark-submit that hands a driver over to a cluster, and returns."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceonly import redaction
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.runtime import command, process
from onceonly.runtime.cluster import Cluster, Job
from onceonly.runtime.properties import properties
from onceonly.spark import jvm
from onceonly.spark.conf import conf as session_conf


@dataclass
class SparkSubmit:
    """The launcher of `Cluster.submit`: see there."""

    child: subprocess.Popen[str] | None = None
    ended: bool = False

    def run(
        self, job: Job, conf: Mapping[str, str], program: str, more: Sequence[str] = (), inherited: Sequence[int] = ()
    ) -> tuple[int, list[str]]:
        """See `Launcher.run`."""
        job_conf = {**session_conf(job.settings), **conf}
        job_conf |= {"spark.submit.deployMode": "cluster", "spark.app.name": job.title}
        arguments = command.compose(job.spark.master, job_conf, program, [*job.arguments, *more])
        env = jvm.environment(job.settings.jars, records=0)
        with properties(redaction.secret(job_conf)) as hidden:
            line = [command.spark_submit(), *hidden.arguments, *arguments]
            with process.start_group(line, job.settings, env, [*hidden.inherited, *inherited]) as self.child:
                if self.ended:  # before there was a process to kill
                    self.end()
                lines = self.child.communicate()[0].splitlines()
                return self.child.returncode, process.last_telling_lines(lines)

    def end(self) -> None:
        """Kill immediately: there is nothing to deregister."""
        self.ended = True
        if self.child:
            process.send(self.child, signal.SIGKILL)


def require_one(cluster: Cluster, job: Job, code: int, lines: Sequence[str]) -> str:
    """Return the application that spark-submit has started. What it does not vouch for is ended.

    Args:
        code: the exit code of spark-submit.
        lines: its last lines.
    Raises:
        NotCommitted: nothing is running.
        OutcomeUnknown: something may be running.
    """
    output = "\n".join(lines)
    try:
        applications = cluster.list_submitted(job)
        if applications and not code:
            return applications[0]
        for application in applications:
            cluster.end(application)
    except OnceonlyError as error:
        raise OutcomeUnknown(
            f"it is not known whether the driver of {job.name} was started.",
            f"{output}\n{error}",
            "The next try looks for it first.",
        ) from error
    if not code:
        raise OutcomeUnknown(
            f"the driver of {job.name} was submitted, but the cluster does not know it.", output, "Try again."
        )
    raise NotCommitted(
        f"the driver of {job.name} was not submitted: spark-submit ended with {code}.",
        output,
        "Nothing of it is running.",
    )
