"""spark-submit as a process group, which does not outlive this process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from onceonly.runtime.orphan import die_with_parent
from onceonly.settings import Settings
from onceonly.spark.conf import ELSEWHERE

GRACE = 3.0  # seconds from SIGTERM to SIGKILL; Airflow gives a task five
FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)")  # of a stack trace of Java
TAIL = 12  # lines of the output that go into an error


@contextmanager
def start_group(
    command: Sequence[str], settings: Settings, more: Mapping[str, str], inherited: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a command as a process group, which does not outlive this block, nor (on Linux) this process.

    Args:
        more: environment variables, beside those of this process.
        inherited: file descriptors.
    """
    # The connection says which Spark: what points a process to a Connect server would win over --master.
    own_env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    job_env = {"PYSPARK_PYTHON": sys.executable, "ONCEONLY_PROJECT": str(settings.project)}
    job = subprocess.Popen(
        command,
        env={**own_env, **more, **job_env},
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
        _end_group(job)
        if job.stdout:
            job.stdout.close()


def last_telling_lines(lines: Sequence[str]) -> list[str]:
    """Return the last lines, without the frames of Java's stack traces: what went wrong stands before them."""
    return without_frames(lines)[-TAIL:]


def without_frames(lines: Sequence[str]) -> list[str]:
    """Return the lines that are no frames of Java's stack traces."""
    return [line for line in lines if not FRAME.match(line)]


def _end_group(job: subprocess.Popen[str]) -> None:
    """Send SIGTERM first, so that Spark can deregister from its cluster; then SIGKILL to the rest of the group."""
    if job.poll() is None:
        send(job, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        # WNOWAIT leaves the leader's status to be collected: until then the group's id cannot become another's.
        while time.monotonic() < deadline and not os.waitid(os.P_PID, job.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.05)
        send(job, signal.SIGKILL)
        job.wait()


def send(job: subprocess.Popen[str], number: signal.Signals) -> None:
    """Signal the whole group, as long as its leader was not waited for: its id cannot have become another's."""
    if job.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, number)
