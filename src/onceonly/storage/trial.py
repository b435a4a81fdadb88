"""Whether a store gives a name to one of several writers, and tells the others that they came too late.

No list of products tells. Some servers ignore the condition, and the last upload wins; some do not list the uploads of
a folder, so nobody can end them; it also depends on what is between them and this process. So it is tried, by a race
beside the target, and the result is kept there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

from onceonly.storage.interface import Unsuitable
from onceonly.storage.object_files import Found, Store

# Prepare a copy of that object for a name, with a mark; what it returns gives it the name, and tells whether it has.
Begin = Callable[[str, Found, str, str], Callable[[], bool]]
WRITERS, ROUNDS = 8, 4
RESULT = ".tried"  # beside the staged folders: each address by which the store has passed
_passed_buckets: set[tuple[str, str]] = set()  # addresses and buckets that this process has tried


def check(store: Store, target: str, begin: Begin, clear: Callable[[str], None] = lambda folder: None) -> None:
    """Refuse a store on which two commits can both give a file its name.

    Args:
        clear: ends what was prepared below a folder, once its objects are removed.
    Raises:
        Unsuitable: two were told that they had, or what is there is not what the one has prepared; or what was ended
            got its name.
        OSError: the store does not answer, or does not know one of the requests.
    """
    above, _, name = target.rpartition("/")
    staging = f"{above}/.{name}.staged"
    endpoints = _read_result(store, f"{staging}/{RESULT}")
    if store.endpoint in endpoints:
        return
    bucket = store.endpoint, store.name
    if bucket not in _passed_buckets:
        _run_trial(store, f"{staging}/.trial-{uuid.uuid4().hex}", begin, clear)
        _passed_buckets.add(bucket)
    store.put(f"{staging}/{RESULT}", "\n".join([*endpoints, store.endpoint]).encode())


def _run_trial(store: Store, folder: str, begin: Begin, clear: Callable[[str], None]) -> None:
    """Run the races in a folder of the trial, and then a copy that is finished after it was ended. See `check`."""
    source, late = f"{folder}/source", f"{folder}/late"
    store.put(source, b"tried")
    try:
        has_winner = [_run_race(store, source, f"{folder}/{number}", begin) for number in range(ROUNDS)]
        finish_late = begin(source, _require_object(store, source), late, uuid.uuid4().hex)
    finally:
        store.unlink([f"{folder}/{name}" for name in store.list_names(folder)])
        clear(folder)
    if not any(has_winner):
        raise OSError(f"of {WRITERS} concurrent writers of one name, none succeeded")
    _check_ended(store, finish_late, late)


def _check_ended(store: Store, finish_late: Callable[[], bool], new: str) -> None:
    """Finish what was ended, as a process that hangs while others give up what it is about to publish.

    Raises:
        Unsuitable: it got its name.
    """
    with suppress(FileNotFoundError):
        finish_late()
    if store.find(new) is not None:
        store.unlink([new])
        raise Unsuitable(
            "A pending write was aborted there, and still succeeded afterwards. Perhaps the store does not list "
            "uploads by prefix. So a process that hangs could publish files that were given up or replaced.",
            "Use a store that lists open uploads by a prefix (docs/files.md), a disk, or HDFS.",
        )


def _read_result(store: Store, result: str) -> list[str]:
    """Return the addresses by which the store has passed."""
    try:
        return store.get(result).decode().splitlines()
    except FileNotFoundError:
        return []


def _run_race(store: Store, source: str, new: str, begin: Begin) -> bool:
    """Let several writers give one name at the same time; whether one has won, and knows it; else nobody was told so.

    Raises:
        Unsuitable: several were told that they had won, or what is there is not what the winner has prepared.
    """
    staged = _require_object(store, source)
    marks = [uuid.uuid4().hex for _ in range(WRITERS)]
    together = Barrier(WRITERS)

    def finish(give_name: Callable[[], bool]) -> bool:
        together.wait()
        return give_name()

    with ThreadPoolExecutor(WRITERS) as pool:
        prepared = list(pool.map(lambda mark: begin(source, staged, new, mark), marks))
        answers = list(pool.map(finish, prepared))
    winners = [mark for mark, has_won in zip(marks, answers, strict=True) if has_won]
    published = store.find(new)
    if not winners and (published is None or published.mark in marks):  # the answer to the one that won was lost
        return False
    if len(winners) == 1 and published and published.mark == winners[0] and published.bytes == staged.bytes:
        return True
    raise Unsuitable(
        f"{WRITERS} writers tried to create one name there at the same time, each on the condition that the name "
        f"was free, and {len(winners)} of them were told that they succeeded. So two processes could publish different "
        "files under one name.",
        "Use a store with conditional writes (docs/object-stores.md), a disk, or HDFS.",
    )


def _require_object(store: Store, source: str) -> Found:
    """Return the object. Raises FileNotFoundError: somebody has removed it meanwhile."""
    staged = store.find(source)
    if staged is None:
        raise FileNotFoundError(source)
    return staged
