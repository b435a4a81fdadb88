"""Processes that a test starts: each in a group of its own, and none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from patience import PATIENCE

from onceonly.dev.services.spark import TOKEN

CHILDREN: list[subprocess.Popen[str]] = []  # of the test that runs


def start(*arguments: str, env: Mapping[str, str], stdin: int | None = None) -> subprocess.Popen[str]:
    """Python with these arguments; what it prints can be read."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    CHILDREN.append(child)
    return child


def without_spark(env: Mapping[str, str]) -> dict[str, str]:
    """A session of ours marks the process for Spark Connect; a child decides for itself, and has the server's token."""
    neutral = (TOKEN, "SPARK_CONF_DIR", "SPARK_SUBMIT_OPTS")
    return {name: value for name, value in env.items() if not name.startswith("SPARK_") or name in neutral}


def end_children() -> None:
    """Whatever a test has left behind: stopped ones too."""
    while CHILDREN:
        child = CHILDREN.pop()
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if child.stdout:
            child.stdout.close()


def output(child: subprocess.Popen[str], seconds: float = 2 * PATIENCE) -> str:
    """What the child printed until its end. Its work may take longer than one wait."""
    try:
        return child.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
