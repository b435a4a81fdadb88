"""Ending a process when its parent ends, so that no process of a stage outlives its task."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
GATEWAY = "PYSPARK_GATEWAY_PORT"  # Spark sets it for the Python process that it starts; its JVM listens there


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed, on Linux, when its parent process ends, for whatever reason.

    Args:
        parent: the process id of the parent, if known: it may have ended already.
    """
    if sys.platform == "linux":
        expected = os.getppid() if parent is None else parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:  # it ended before prctl was called
            os.kill(os.getpid(), signal.SIGKILL)


def die_with_jvm() -> None:
    """Do the same for a process that Spark's JVM has started, without knowing the process id of the JVM.

    If the JVM ended before, this process has another parent by now. But then its port is closed. If the port is still
    open, the JVM was alive when prctl was called.
    """
    die_with_parent()
    port = os.environ.get(GATEWAY)
    if port and not _is_open(int(port)):
        os.kill(os.getpid(), signal.SIGKILL)


def _is_open(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except ConnectionRefusedError:
        return False
