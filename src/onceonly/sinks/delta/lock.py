"""A lock for writers to the log of a table on a local disk.

Writers through delta-rs exclude each other by the log itself. Spark's log store for local disks does not: it checks
whether an entry exists, and then renames its own file over it. So a publisher through Spark takes the lock exclusively,
and writers through delta-rs share it.
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

NAME = ".onceonly.lock"  # in _delta_log, where readers ignore files that are not entries
PATIENCE = 300.0  # seconds
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def shared(uri: str) -> Iterator[None]:
    """With other delta-rs writers. If the file system has no locks, nothing can publish there through Spark."""
    with _held(uri, fcntl.LOCK_SH, UNSUPPORTED):
        yield


@contextmanager
def alone(uri: str) -> Iterator[None]:
    """Exclusively."""
    with _held(uri, fcntl.LOCK_EX):
        yield


@contextmanager
def _held(uri: str, kind: int, dispensable: tuple[int, ...] = ()) -> Iterator[None]:
    path = local_path(uri)
    if path is None:  # an object store excludes conflicting writers
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
                    f"It has locked {NAME} in _delta_log, and on a local disk no other process may write meanwhile.",
                    "Wait until it ends, or end it, then: onceonly recover. Nothing was changed.",
                ) from None
            time.sleep(0.05)
