"""A process that is killed at a request that it sends to an object store."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from integration.faults.s3_proxy import FORK, Kill, Proxy
from patience import PATIENCE

Run = Callable[[str, str], Any]  # of a checkpoint, with the source's folder and the targets' root


def dies(between: Proxy, run: Run, folder: str, root: str, number: int, after: bool, where: str = "") -> bool:
    """Let a process run one checkpoint until its change of that number; whether it came so far.

    Args:
        where: only changes of such a path are counted.
    """
    go = FORK.Event()
    victim = FORK.Process(target=_alone, args=(go, run, folder, root, dict(between.environment)))
    victim.start()
    between.let(Kill(victim.pid or 0, number, after, where=where))
    go.set()
    victim.join(PATIENCE)
    assert victim.exitcode in (-signal.SIGKILL, 0)
    return victim.exitcode != 0


def _alone(go: Any, run: Run, folder: str, root: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    go.wait(PATIENCE)
    run(folder, root)
