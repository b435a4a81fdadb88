"""No process of a stage outlives the one that it works for."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys

PR_SET_PDEATHSIG = 1
GATEWAY = "PYSPARK_GATEWAY_PORT"  # Spark sets it for the Python process that it starts; its JVM listens there


def die_with_parent(parent: int | None = None) -> None:
    """From now on, on Linux, this process is killed when the one that started it ends, however it ends.

    Args:
        parent: the process id of the one that started it, where that is known: it may have ended already.
    """
    if sys.platform == "linux":
        expected = os.getppid() if parent is None else parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != expected:  # it has ended before it was asked to tell
            os.kill(os.getpid(), signal.SIGKILL)


def die_with_jvm() -> None:
    """The same for a process that a JVM of Spark has started, and whose process id is not known.

    Where it ended before this process asked, another one is the parent by now. But then its port is closed: one that
    still listens was alive when the kernel was asked to tell.
    """
    die_with_parent()
    port = os.environ.get(GATEWAY)
    if port and not _listens(int(port)):
        os.kill(os.getpid(), signal.SIGKILL)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except ConnectionRefusedError:
        return False
