"""Log entries that delta-rs writes, and the lock under which it does on a local disk.

Writers through delta-rs exclude each other by the log itself. Spark's log store for local disks does not: it checks
whether an entry exists, and then renames its own file over it. So a publisher through Spark takes the lock exclusively,
and writers through delta-rs share it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from deltalake import CommitProperties, DeltaTable
from deltalake import Transaction as DeltaTxn
from deltalake.exceptions import CommitFailedError

from onceonly.delta import log_files
from onceonly.delta.log_files import LOG_FOLDER
from onceonly.errors import OutcomeUnknown
from onceonly.storage import durability
from onceonly.storage.objects import Objects
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

LOCK_NAME = ".onceonly.lock"  # in _delta_log, where readers ignore files that are not entries
LOCK_TIMEOUT_SECONDS = 300.0
STORED_ADD_KEYS = ("path", "partitionValues", "size", "modificationTime", "stats")
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def commit_entry(
    target: DeltaTable,
    adds: Sequence[Any],
    removes: Sequence[Any],
    app_id: str,
    version: int,
    exactly_next: bool = False,
) -> None:
    """Write the log entry. Another commit since that snapshot may come between only if nothing is removed.

    Args:
        version: the evidence.
        exactly_next: no other commit may come between, in any case.
    Raises:
        CommitFailedError: another one did, or it has published the same.
    """
    # delta-rs allows a removal in parallel to an OPTIMIZE of the same rows: so only commit the very next version
    retries = 0 if removes or exactly_next else None
    stamp = CommitProperties(app_transactions=[DeltaTxn(app_id, version)], max_commit_retries=retries)
    columns = target.metadata().partition_columns
    with hold_shared(target.table_uri):
        target.create_write_transaction(
            [*adds, *removes], "append", target.schema(), partition_by=columns, commit_properties=stamp
        )


def put_entry(
    target: DeltaTable,
    adds: Iterable[Mapping[str, Any]],
    removed: Iterable[Mapping[str, Any]],
    app_id: str,
    version: int,
) -> None:
    """Write the very next log entry as it stands: delta-rs removes no file of which a deletion vector hides rows.

    Args:
        adds: add actions, with paths as a log has them.
        removed: the add actions of the files to remove: the vector is a part of what identifies one.
        version: the evidence.
    Raises:
        CommitFailedError: another commit came first.
    """
    now = int(time.time() * 1000)
    info = {"timestamp": now, "operation": "WRITE", "operationParameters": {"mode": "Append"}, "engineInfo": "onceonly"}
    actions: list[dict[str, Any]] = [
        {"commitInfo": info},
        {"txn": {"appId": app_id, "version": version, "lastUpdated": now}},
    ]
    for add in adds:
        new: dict[str, Any] = {"dataChange": True}
        for key in STORED_ADD_KEYS:
            new[key] = add.get(key)
        actions.append({"add": new})
    for old in removed:
        actions.append({"remove": _to_remove(old, now)})
    content = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()
    path = log_files.entry_path(target.version() + 1)
    with hold_shared(target.table_uri):
        try:
            if local := local_path(target.table_uri):
                _create_file(local / path, content)
            else:
                Objects(target.table_uri).create(path, content)
        except FileExistsError as error:
            raise CommitFailedError(f"{path} exists") from error


def _to_remove(add: Mapping[str, Any], now: int) -> dict[str, Any]:
    remove = {"path": add["path"], "deletionTimestamp": now, "dataChange": True, "size": add["size"]}
    if "partitionValues" in add:
        remove |= {"extendedFileMetadata": True, "partitionValues": add["partitionValues"]}
    if vector := add.get("deletionVector"):
        remove["deletionVector"] = {key: value for key, value in vector.items() if value is not None}
    return remove


def _create_file(path: Path, content: bytes) -> None:
    """Write a file in one step, unless it is there. Raises FileExistsError: it is."""
    draft = path.with_name(f".onceonly.{uuid.uuid4().hex}.tmp")  # which readers of a log pass over
    try:
        draft.write_bytes(content)
        durability.sync(draft)
        os.link(draft, path)  # fails where the name exists
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def hold_shared(uri: str) -> Iterator[None]:
    """Hold the lock together with other delta-rs writers.

    If the file system has no locks, nothing can publish there through Spark, so the lock is not needed.
    """
    with _hold(uri, fcntl.LOCK_SH, UNSUPPORTED):
        yield


@contextmanager
def hold_exclusive(uri: str) -> Iterator[None]:
    """Hold the lock alone, as a publisher through Spark."""
    with _hold(uri, fcntl.LOCK_EX):
        yield


@contextmanager
def _hold(uri: str, kind: int, dispensable: tuple[int, ...] = ()) -> Iterator[None]:
    """Hold the lock.

    Args:
        dispensable: error numbers on which to continue without a lock.
    """
    path = local_path(uri)
    if path is None:  # an object store excludes conflicting writers
        yield
        return
    with open(path / LOG_FOLDER / LOCK_NAME, "w") as lock:
        try:
            _take(lock, kind, uri)
        except OSError as error:
            if error.errno not in dispensable:
                raise
        yield


def _take(lock: IO[str], kind: int, uri: str) -> None:
    end = time.monotonic() + LOCK_TIMEOUT_SECONDS
    with wait_for(f"another process that writes to {uri}"):
        while True:
            try:
                return fcntl.flock(lock, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise OutcomeUnknown(
                        f"another process has been writing to {uri} for {LOCK_TIMEOUT_SECONDS:.0f} seconds.",
                        f"It has locked {LOCK_NAME} in {LOG_FOLDER}, and on a local disk no other process may write "
                        "meanwhile.",
                        "Wait until it ends, or end it, then: onceonly recover. Nothing was changed.",
                        code="log-locked",
                    ) from None
                time.sleep(0.05)
