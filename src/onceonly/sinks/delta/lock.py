"""Whose turn it is to write to the log of a table on a local disk.

delta-rs writers arbitrate by the log itself and need only keep out of Spark's way: Spark's log store for local disks
looks whether an entry is there, and then renames its own over whatever is. So they share the lock that a publisher
through Spark holds alone.
"""

from __future__ import annotations

import errno
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from onceonly.errors import OutcomeUnknown
from onceonly.filesystems.paths import local_path

NAME = ".onceonly.lock"  # in _delta_log: readers pass over what is no entry
PATIENCE = 300.0  # seconds
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def shared(uri: str) -> Iterator[None]:
    """Beside other delta-rs writers. Where the file system has no locks, there can be no publisher through Spark."""
    with _held(uri, fcntl.LOCK_SH, UNSUPPORTED):
        yield


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """Beside nobody."""
    with _held(uri, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(uri: str, kind: int, dispensable: tuple[int, ...] = ()) -> Iterator[None]:
    path = local_path(uri)
    if path is None:  # object stores arbitrate by themselves
        yield
        return
    with open(path / "_delta_log" / NAME, "w") as lock:
        try:
            _take(lock, kind, uri)
        except OSError as error:
            if error.errno not in dispensable:
                raise
        yield


def _take(lock: IO[str], kind: int, uri: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise OutcomeUnknown(
                    f"another process has been writing to {uri} for {PATIENCE:.0f} seconds.",
                    f"It holds {NAME} in _delta_log, and on a local disk nobody may write beside it.",
                    "Wait until it ends, or end it; then: onceonly recover. Nothing was changed.",
                ) from None
            time.sleep(0.05)
