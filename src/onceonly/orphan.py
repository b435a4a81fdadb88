"""No process of a stage outlives the one that it works for."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """From now on, on Linux, this process is killed when the one that started it ends, however it ends."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended before it was asked to tell
            os.kill(os.getpid(), signal.SIGKILL)
