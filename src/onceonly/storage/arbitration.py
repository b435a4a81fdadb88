"""Whether an object store arbitrates: of several writers that create one file at once, one is told that it did.

No list of products tells. Some servers ignore `If-None-Match: *`; some look whether the file is there, and then write
it; and it depends on what is between them and this process. So it is tried, by a race for single objects, in a folder
that is deleted again.
"""

from __future__ import annotations

import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.storage.objects import Objects

WRITERS, ROUNDS = 8, 6
TRIAL = "_trial-"  # hidden, and no pipeline's folder
SERVERS = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ACCOUNT_NAME", "AZURITE_BLOB_STORAGE_URL"),
    "GOOGLE_SERVICE_ACCOUNT",
)
_arbitrates: set[tuple[str, tuple[str | None, ...]]] = set()  # stores that this process has tried


def check(uri: str, what: str = "the state table") -> None:
    """Refuse a store on which two writers can both win.

    Args:
        what: is to be there.
    Raises:
        InvalidPipeline: more than one of the writers was told that it had won.
        OSError: the storage does not answer, or does not know the condition.
    """
    store = f"{urlsplit(uri).scheme}://{urlsplit(uri).netloc}", tuple(os.environ.get(name) for name in SERVERS)
    if store in _arbitrates:
        return
    most = _most_winners(f"{uri.rstrip('/')}/{TRIAL}{uuid.uuid4().hex}")
    if most > 1:
        raise InvalidPipeline(
            f"{uri} cannot hold {what}.",
            f"{WRITERS} writers created one file there at the same time, and {most} of them were told that they "
            "succeeded. So what one process has recorded there, another could replace.",
            "Use a store with put-if-absent (docs/object-stores.md), or a local or network disk. Nothing was written.",
        )
    _arbitrates.add(store)


def _most_winners(trial: str) -> int:
    """Return how many writers were told in one round that they had won: 1, or the number of the first round with more.

    Raises:
        OSError: a round was not completed, and no other one had two winners.
    """
    files, errors = Objects(trial), list[Exception]()
    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            for number in range(ROUNDS):
                winners, round_errors = _race(files, f"{number}.json", pool)
                errors += round_errors
                if winners > 1:
                    return winners
                if len(round_errors) == WRITERS:
                    break
    finally:
        _remove_trial(files)
    if errors:
        raise errors[0]
    return 1


def _remove_trial(files: Objects) -> None:
    files.unlink([f"{number}.json" for number in range(ROUNDS)])


def _race(files: Objects, name: str, pool: ThreadPoolExecutor) -> tuple[int, list[Exception]]:
    """Let all writers create that object at the same time.

    Returns:
        How many of them are told that they have; and the errors of the storage.
    """
    start = Barrier(WRITERS)
    answers = list(pool.map(lambda writer: _create(files, name, writer, start), range(WRITERS)))
    errors = [error for error in answers if error and not isinstance(error, FileExistsError)]
    return answers.count(None), errors


def _create(files: Objects, name: str, writer: int, start: Barrier) -> Exception | None:
    """Create the object once all writers are ready; returns the error, or None if it is told that it has created it."""
    start.wait()
    try:
        files.create(name, str(writer).encode())
    except OSError as error:
        return error
    return None
