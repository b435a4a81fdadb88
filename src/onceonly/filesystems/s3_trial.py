"""Whether a store completes one of several uploads of one name, and tells the others that they came too late.

No list of products tells. Some servers ignore the condition, and the last upload wins; it also depends on what is
between them and this process. So it is tried, by a race beside the target, and the result is kept there.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from onceonly.filesystems.interface import Unsuitable, Upload
from onceonly.filesystems.s3_client import Bucket
from onceonly.filesystems.s3_uploads import Uploads

WRITERS, ROUNDS = 8, 4
RESULT = ".tried"  # beside the staged folders: each address by which the store has passed
_passed: set[tuple[str, str]] = set()  # addresses and buckets that this process has tried


def check(bucket: Bucket, uploads: Uploads, target: str) -> None:
    """Refuse a store on which two commits can both give a file its name.

    Raises:
        Unsuitable: two were told that they had, or what is there is not what the one has uploaded.
        OSError: the store does not answer, or does not know one of the requests.
    """
    above, _, name = target.rpartition("/")
    staging = f"{above}/.{name}.staged"
    recorded = _recorded(bucket, f"{staging}/{RESULT}")
    if bucket.endpoint in recorded:
        return
    store = bucket.endpoint, bucket.name
    if store not in _passed:
        _try(bucket, uploads, f"{staging}/.trial-{uuid.uuid4().hex}")
        _passed.add(store)
    bucket.put(f"{staging}/{RESULT}", "\n".join([*recorded, bucket.endpoint]).encode())


def _try(bucket: Bucket, uploads: Uploads, folder: str) -> None:
    bucket.put(f"{folder}/source", b"tried")
    try:
        won = [_race(bucket, uploads, f"{folder}/source", f"{folder}/{number}") for number in range(ROUNDS)]
    finally:
        uploads.end(folder, "")
        bucket.unlink([f"{folder}/{name}" for name in bucket.below(folder)])
    if not any(won):
        raise OSError(f"of {WRITERS} uploads that were completed at the same time, none got its name")


def _recorded(bucket: Bucket, result: str) -> list[str]:
    try:
        return bucket.get(result).decode().splitlines()
    except FileNotFoundError:
        return []


def _race(bucket: Bucket, uploads: Uploads, source: str, new: str) -> bool:
    """Whether one has won; else nobody was told so, and nothing is there."""
    found = bucket.find(source)
    assert found  # it has just been put there
    marks = [uuid.uuid4().hex for _ in range(WRITERS)]
    together = Barrier(WRITERS)

    def complete(upload: Upload) -> bool:
        together.wait()
        return uploads.complete(upload, new)

    with ThreadPoolExecutor(WRITERS) as pool:
        begun = list(pool.map(lambda mark: uploads.copying(source, found, new, mark), marks))
        told = list(pool.map(complete, begun))
    won = [mark for mark, one in zip(marks, told, strict=True) if one]
    there = bucket.find(new)
    if not won and not there:
        return False
    if len(won) == 1 and there and there.mark == won[0] and there.bytes == found.bytes:
        return True
    raise Unsuitable(
        f"{WRITERS} uploads of one name were completed there at the same time, each on the condition that the name was "
        f"free, and {len(won)} of them were told that they had got it. So two processes could publish other files.",
        "Use a store with conditional completion of uploads (docs/object-stores.md), a disk, or HDFS.",
    )
