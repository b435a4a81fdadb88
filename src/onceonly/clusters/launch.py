"""spark-submit that hands a driver over to a cluster, and returns."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onceonly import redaction
from onceonly.clusters import command, process
from onceonly.clusters.interface import Cluster, Job
from onceonly.clusters.properties import properties
from onceonly.errors import NotCommitted, OnceonlyError, OutcomeUnknown
from onceonly.spark import jvm
from onceonly.spark.conf import conf as ours


@dataclass
class SparkSubmit:
    """The launcher of `Cluster.submit`: see there."""

    child: subprocess.Popen[str] | None = None
    ended: bool = False

    def run(
        self, job: Job, conf: Mapping[str, str], program: str, more: Sequence[str] = (), inherited: Sequence[int] = ()
    ) -> tuple[int, list[str]]:
        """See `Launcher.run`."""
        whole = {**ours(job.settings), **conf, "spark.submit.deployMode": "cluster", "spark.app.name": job.title}
        composed = command.compose(job.spark.master, whole, program, [*job.arguments, *more])
        env = jvm.environment(job.settings.jars, records=0)
        with properties(redaction.secret(whole)) as hidden:
            line = [command.spark_submit(), *hidden.arguments, *composed]
            with process.started(line, job.settings, env, [*hidden.inherited, *inherited]) as self.child:
                if self.ended:
                    self.end()
                told = self.child.communicate()[0].splitlines()
                return self.child.returncode, process.telling(told)

    def end(self) -> None:
        """At once: it has no cluster to take leave of."""
        self.ended = True
        if self.child:
            process.send(self.child, signal.SIGKILL)


def require_one(cluster: Cluster, job: Job, code: int, lines: Sequence[str]) -> str:
    """The application that spark-submit has started. What it does not vouch for is ended.

    Raises:
        NotCommitted: nothing is running.
        OutcomeUnknown: something may.
    """
    told = "\n".join(lines)
    try:
        found = cluster.submitted(job)
        if found and not code:
            return found[0]
        for application in found:
            cluster.end(application)
    except OnceonlyError as error:
        raise OutcomeUnknown(
            f"it is not known whether the driver of {job.name} was started.",
            f"{told}\n{error}",
            "The next try looks for it first.",
        ) from error
    if not code:
        raise OutcomeUnknown(
            f"the driver of {job.name} was submitted, but the cluster does not know it.", told, "Try again."
        )
    raise NotCommitted(
        f"the driver of {job.name} was not submitted: spark-submit ended with {code}.",
        told,
        "Nothing of it is running.",
    )
