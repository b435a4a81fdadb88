"""Commits to HDFS that die: of the n-th handle after the n-th request, which HDFS has carried out by then.

Arguments: HANDLES WEBHDFS. Prints how each process ended: a signal's negative number, or 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import requests
from integration.services.hdfs import writer

from onceonly.checkpoint.model import Handle
from onceonly.sinks.files import moves
from onceonly.testing.fakes import FakeReceipts


def die_after(limit: int) -> None:
    inner, count = requests.Session.request, iter(range(1, 10**9))

    def counted(*arguments: Any, **more: Any) -> Any:
        try:
            return inner(*arguments, **more)
        finally:
            if next(count) == limit:
                os.killpg(0, signal.SIGKILL)

    requests.Session.request = counted  # type: ignore[method-assign, assignment]


def commit(handle: Handle, limit: int) -> int:
    """In a process and a process group of its own."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        die_after(limit)
        moves.MAX_PARALLEL_REQUESTS = 1  # so that it also dies between any two moves
        writer(handle["target"], sys.argv[2]).commit(handle, 1, FakeReceipts(Path("unused")))
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    for number, handle in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        print(commit(handle, number + 1), flush=True)


if __name__ == "__main__":
    main()
