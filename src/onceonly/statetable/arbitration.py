"""Whether an object store arbitrates: of several writers that create one file at once, one is told that it did.

No list of products tells. Some servers ignore `If-None-Match: *`; some look whether the file is there, and then write
it; and it depends on what is between them and this process. So it is tried, by a race for entries of a Delta log, in
a folder that is deleted again.
"""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler

from onceonly.errors import InvalidPipeline
from onceonly.statetable.store_log import NO_HOOKS, StoreLog

WRITERS, ROUNDS = 8, 6
TRIAL = "_trial-"  # hidden, and no pipeline's folder
SERVERS = ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ACCOUNT_NAME", "AZURITE_BLOB_STORAGE_URL", "GOOGLE_SERVICE_ACCOUNT")
_arbitrates: set[tuple[str, tuple[str | None, ...]]] = set()  # stores that this process has tried


def check(uri: str) -> None:
    """Refuse a store on which two writers can both win.

    Raises:
        InvalidPipeline: more than one of the writers was told that it had won.
        OSError, DeltaError: the storage does not answer, or does not know the condition.
    """
    store = f"{urlsplit(uri).scheme}://{urlsplit(uri).netloc}", tuple(os.environ.get(name) for name in SERVERS)
    if store in _arbitrates:
        return
    most = _most_winners(f"{uri.rstrip('/')}/{TRIAL}{uuid.uuid4().hex}")
    if most > 1:
        raise InvalidPipeline(
            f"{uri} cannot hold the state table.",
            f"{WRITERS} writers created one file there at the same time, and {most} of them were told that they had "
            "won. So two processes could make the same decision.",
            "Use a store with put-if-absent (docs/object-stores.md), or a local or network disk. Nothing was written.",
        )
    _arbitrates.add(store)


def _most_winners(trial: str) -> int:
    """Raises DeltaError, OSError: a round was not completed, and no other one had two winners."""
    log, errors = StoreLog(trial), list[Exception]()
    log.create()
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            for _ in range(ROUNDS):
                won, failed = _round(trial, pool)
                errors += failed
                if won > 1:
                    return won
                if len(failed) == WRITERS:
                    break
    finally:
        _remove(trial)
    if errors:
        raise errors[0]
    return 1


def _round(trial: str, pool: ThreadPoolExecutor) -> tuple[int, list[Exception]]:
    """How many of those that make the next version at the same time are told that they have; errors of the storage."""
    tables = list(pool.map(DeltaTable, [trial] * WRITERS))
    together = Barrier(WRITERS)
    told = list(pool.map(lambda table: _make_next(table, together), tables))
    return told.count(None), [error for error in told if error and not isinstance(error, CommitFailedError)]


def _make_next(table: DeltaTable, together: Barrier) -> Exception | None:
    """None: it is told that it has made the next version."""
    once = CommitProperties(max_commit_retries=0)
    together.wait()
    try:
        table.create_write_transaction(
            [], "append", table.schema(), commit_properties=once, post_commithook_properties=NO_HOOKS
        )
    except (DeltaError, OSError) as error:
        return error
    return None


def _remove(trial: str) -> None:
    pafs.PyFileSystem(DeltaStorageHandler(trial)).delete_dir("_delta_log")
