"""Whether an object store arbitrates: of several writers that create one file at once, one is told that it did.

No list of products tells. Some servers ignore the condition, and the last writer wins; some look whether the file is
there, and then write it; some do not list the uploads of a folder, so nobody can end them; and it depends on what is
between them and this process. So it is tried, by a race for single objects. There are two trials, because a log is
written by puts and a file is published by uploads or copies, and a store may arbitrate one of them alone.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Barrier
from typing import TypeVar
from urllib.parse import urlsplit

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.object_files import Store, StoredObject
from onceonly.storage.objects import Objects

WRITERS = 8  # in each race
PUT_RACES, PUBLISHER_RACES = 6, 4
TRIAL_PREFIX = "_trial-"  # of the folder of a trial of puts: hidden, and no pipeline's folder
SERVER_VARIABLES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME", "AZURITE_BLOB_STORAGE_URL"),
    "GOOGLE_SERVICE_ACCOUNT",
)
RESULT = ".tried"  # beside the staged folders: each address by which the store has passed the trial of publishers

# Prepare a copy of that object for a name, with a mark; what it returns gives it the name, and tells whether it has.
BeginPublishing = Callable[[str, StoredObject, str, str], Callable[[], bool]]
T = TypeVar("T")

_stores_that_passed: set[tuple[str, tuple[str | None, ...]]] = set()  # the trial of puts, in this process
_buckets_that_passed: set[tuple[str, str]] = set()  # the trial of publishers, in this process: address and name


# ---- puts


def require_put_if_absent(uri: str, what: str = "the state table") -> None:
    """Refuse a store on which two writers of one object can both win.

    Args:
        what: is to be there.
    Raises:
        InvalidPipeline: more than one of the writers was told that it had won.
        OSError: the storage does not answer, or does not know the condition.
    """
    servers = tuple(os.environ.get(name) for name in SERVER_VARIABLES)
    store = f"{urlsplit(uri).scheme}://{urlsplit(uri).netloc}", servers
    if store in _stores_that_passed:
        return
    winners = _count_winners(f"{uri.rstrip('/')}/{TRIAL_PREFIX}{uuid.uuid4().hex}")
    if winners > 1:
        raise InvalidPipeline(
            f"{uri} cannot hold {what}.",
            f"{WRITERS} writers created one file there at the same time, and {winners} of them were told that they "
            "succeeded. So what one process has recorded there, another could replace.",
            f"Use a store with put-if-absent ({name_page('object-stores')}), or a local or network disk. "
            "Nothing was written.",
            code="store-not-arbitrating",
        )
    _stores_that_passed.add(store)


def _count_winners(folder: str) -> int:
    """Return how many writers were told in one race that they had won: 1, or the number of the first race with more.

    Args:
        folder: of the trial; it is emptied again.
    Raises:
        OSError: a race was not completed, and no other one had two winners.
    """
    files, errors = Objects(folder), list[Exception]()
    try:
        for number in range(PUT_RACES):
            winners, race_errors = _race_puts(files, f"{number}.json")
            errors += race_errors
            if winners > 1:
                return winners
            if len(race_errors) == WRITERS:
                break
    finally:
        _remove_trial(files)
    if errors:
        raise errors[0]
    return 1


def _remove_trial(files: Objects) -> None:
    files.unlink([f"{number}.json" for number in range(PUT_RACES)])


def _race_puts(files: Objects, name: str) -> tuple[int, list[Exception]]:
    """Let all writers create that object at the same time.

    Returns:
        How many of them are told that they have; and the errors of the storage.
    """
    answers = _run_at_once([partial(_create, files, name, writer) for writer in range(WRITERS)])
    errors = [error for error in answers if error and not isinstance(error, FileExistsError)]
    return answers.count(None), errors


def _create(files: Objects, name: str, writer: int) -> Exception | None:
    """Create the object; returns the error, or None if the writer is told that it has created it."""
    try:
        files.create(name, str(writer).encode())
    except OSError as error:
        return error
    return None


def _run_at_once(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Call all functions at the same time, each in a thread, and return what they return."""
    start = Barrier(len(functions))

    def run(function: Callable[[], T]) -> T:
        start.wait()
        return function()

    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(run, functions))


# ---- publishers


def require_one_publisher(
    store: Store, target: str, begin: BeginPublishing, clear: Callable[[str], None] = lambda folder: None
) -> None:
    """Refuse a store on which two commits can both give a file its name. The result is kept beside the target.

    Args:
        clear: ends what was prepared below a folder, once its objects are removed.
    Raises:
        UnsuitableTarget: two were told that they had, or what is there is not what the one has prepared; or what was
            ended got its name.
        OSError: the store does not answer, or does not know one of the requests.
    """
    above, _, name = target.rpartition("/")
    staging = f"{above}/.{name}.staged"
    endpoints = _read_result(store, f"{staging}/{RESULT}")
    if store.endpoint in endpoints:
        return
    bucket = store.endpoint, store.name
    if bucket not in _buckets_that_passed:
        _try_publishers(store, f"{staging}/.trial-{uuid.uuid4().hex}", begin, clear)
        _buckets_that_passed.add(bucket)
    store.put(f"{staging}/{RESULT}", "\n".join([*endpoints, store.endpoint]).encode())


def _read_result(store: Store, result: str) -> list[str]:
    """Return the addresses by which the store has passed."""
    try:
        return store.get(result).decode().splitlines()
    except FileNotFoundError:
        return []


def _try_publishers(store: Store, folder: str, begin: BeginPublishing, clear: Callable[[str], None]) -> None:
    """Run the races in a folder of the trial, and then a copy that is finished after it was ended."""
    source, late = f"{folder}/source", f"{folder}/late"
    store.put(source, b"tried")
    try:
        races_won = 0
        for number in range(PUBLISHER_RACES):
            races_won += _race_publishers(store, source, f"{folder}/{number}", begin)
        finish_late = begin(source, _require_object(store, source), late, uuid.uuid4().hex)
    finally:
        store.unlink([f"{folder}/{name}" for name in store.list_names(folder)])
        clear(folder)
    if not races_won:
        raise OSError(f"of {WRITERS} concurrent writers of one name, none succeeded")
    _check_ended(store, finish_late, late)


def _check_ended(store: Store, finish_late: Callable[[], bool], new: str) -> None:
    """Finish what was ended, as a process that hangs while others give up what it is about to publish.

    Raises:
        UnsuitableTarget: it got its name.
    """
    with suppress(FileNotFoundError):
        finish_late()
    if store.find(new) is not None:
        store.unlink([new])
        raise UnsuitableTarget(
            "A pending write was aborted there, and still succeeded afterwards. Perhaps the store does not list "
            "uploads by prefix. So a process that hangs could publish files that were given up or replaced.",
            f"Use a store that lists open uploads by a prefix ({name_page('files')}), a disk, or HDFS.",
            code="store-not-arbitrating",
        )


def _race_publishers(store: Store, source: str, new: str, begin: BeginPublishing) -> bool:
    """Let several writers give one name at the same time; whether one has won, and knows it; else nobody was told so.

    Raises:
        UnsuitableTarget: several were told that they had won, or what is there is not what the winner has prepared.
    """
    staged = _require_object(store, source)
    marks = [uuid.uuid4().hex for _ in range(WRITERS)]
    with ThreadPoolExecutor(WRITERS) as pool:
        prepared = list(pool.map(lambda mark: begin(source, staged, new, mark), marks))
    answers = _run_at_once(prepared)
    winners = [mark for mark, has_won in zip(marks, answers, strict=True) if has_won]
    published = store.find(new)
    if not winners and (published is None or published.mark in marks):  # the answer to the one that won was lost
        return False
    if len(winners) == 1 and published and published.mark == winners[0] and published.bytes == staged.bytes:
        return True
    raise UnsuitableTarget(
        f"{WRITERS} writers tried to create one name there at the same time, each on the condition that the name "
        f"was free, and {len(winners)} of them were told that they succeeded. So two processes could publish different "
        "files under one name.",
        f"Use a store with conditional writes ({name_page('object-stores')}), a disk, or HDFS.",
        code="store-not-arbitrating",
    )


def _require_object(store: Store, source: str) -> StoredObject:
    """Return the object. Raises FileNotFoundError: somebody has removed it meanwhile."""
    staged = store.find(source)
    if staged is None:
        raise FileNotFoundError(source)
    return staged
