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

from onceonly.filesystems.interface import Unsuitable
from onceonly.filesystems.object_files import Found, Store

# Prepare a copy of that object for a name, with a mark; what it returns gives it the name, and tells whether it has.
Begin = Callable[[str, Found, str, str], Callable[[], bool]]
WRITERS, ROUNDS = 8, 4
RESULT = ".tried"  # beside the staged folders: each address by which the store has passed
_passed: set[tuple[str, str]] = set()  # addresses and buckets that this process has tried


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
    recorded = _recorded(store, f"{staging}/{RESULT}")
    if store.endpoint in recorded:
        return
    here = store.endpoint, store.name
    if here not in _passed:
        _try(store, f"{staging}/.trial-{uuid.uuid4().hex}", begin, clear)
        _passed.add(here)
    store.put(f"{staging}/{RESULT}", "\n".join([*recorded, store.endpoint]).encode())


def _try(store: Store, folder: str, begin: Begin, clear: Callable[[str], None]) -> None:
    source, late = f"{folder}/source", f"{folder}/late"
    store.put(source, b"tried")
    try:
        won = [_race(store, source, f"{folder}/{number}", begin) for number in range(ROUNDS)]
        hanging = begin(source, _found(store, source), late, uuid.uuid4().hex)
    finally:
        store.unlink([f"{folder}/{name}" for name in store.below(folder)])
        clear(folder)
    if not any(won):
        raise OSError(f"of {WRITERS} concurrent writers of one name, none succeeded")
    _check_ended(store, hanging, late)


def _check_ended(store: Store, hanging: Callable[[], bool], new: str) -> None:
    """Of a process that hangs while others give up what it is about to publish."""
    with suppress(FileNotFoundError):
        hanging()
    if store.find(new) is not None:
        store.unlink([new])
        raise Unsuitable(
            "A pending write was aborted there, and still succeeded afterwards. Perhaps the store does not list "
            "uploads by prefix. So a process that hangs could publish files that were given up or replaced.",
            "Use a store that lists open uploads by a prefix (docs/files.md), a disk, or HDFS.",
        )


def _recorded(store: Store, result: str) -> list[str]:
    try:
        return store.get(result).decode().splitlines()
    except FileNotFoundError:
        return []


def _race(store: Store, source: str, new: str, begin: Begin) -> bool:
    """Whether one has won, and knows it; else nobody was told so."""
    found = _found(store, source)
    marks = [uuid.uuid4().hex for _ in range(WRITERS)]
    together = Barrier(WRITERS)

    def finish(name: Callable[[], bool]) -> bool:
        together.wait()
        return name()

    with ThreadPoolExecutor(WRITERS) as pool:
        begun = list(pool.map(lambda mark: begin(source, found, new, mark), marks))
        told = list(pool.map(finish, begun))
    won = [mark for mark, one in zip(marks, told, strict=True) if one]
    there = store.find(new)
    if not won and (there is None or there.mark in marks):  # the answer to the one that won was lost
        return False
    if len(won) == 1 and there and there.mark == won[0] and there.bytes == found.bytes:
        return True
    raise Unsuitable(
        f"{WRITERS} writers tried to create one name there at the same time, each on the condition that the name "
        f"was free, and {len(won)} of them were told that they succeeded. So two processes could publish different "
        "files under one name.",
        "Use a store with conditional writes (docs/object-stores.md), a disk, or HDFS.",
    )


def _found(store: Store, source: str) -> Found:
    """Raises FileNotFoundError: somebody has removed it meanwhile."""
    if found := store.find(source):
        return found
    raise FileNotFoundError(source)
