"""No process of a stage outlives the one that it works for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


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
