"""Files of a table as single checkpoints of the pipeline that writes it have published them.

The version that published a checkpoint adds its rows, and nothing else; it is recognised by the number of its
transaction (`sinks.delta.evidence`). Where the log no longer has its entry, the files that were staged for it are
recognised by their folder, as long as the table still refers to all of them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import TopicRange
from onceonly.counts import count
from onceonly.errors import SourceLost
from onceonly.sources.delta_log import File, TableLog, Version

STAGED = "staged-"  # begins the names of folders, before that of the transaction
NAME = (1 << 32) - 1  # the part of a transaction's number that names it; the rest is the decision


def published(log: TableLog, range_: TopicRange) -> list[File]:
    """The files of the checkpoints that a range names.

    Raises:
        SourceLost: it can no longer be told which they are.
    """
    found: list[File] = []
    for number, (folder, files) in enumerate(range_.folders):
        start, _ = range_.partitions[number]
        added = _added(log, start, folder) if start else None
        found += _staged(newest(log), range_, folder, files) if added is None else added
    return found


def newest(log: TableLog) -> DeltaTable:
    return log.table(max(log.times()))


def _added(log: TableLog, version: int, folder: str) -> list[File] | None:
    try:
        (found,) = log.versions([version])
    except FileNotFoundError:  # its entry has expired
        return None
    return list(found.added) if _publishes(found, folder) else None  # in a copy, that number may be another version


def _publishes(version: Version, folder: str) -> bool:
    txn = Transaction.parse(folder.removeprefix(STAGED))
    number = version.transactions.get(txn.app_id) if txn else None
    if txn is None or number is None:
        return False
    return number & NAME == min(int(txn.nonce[:8], 16), NAME - 1)


def _staged(table: DeltaTable, range_: TopicRange, folder: str, files: int) -> list[File]:
    listed = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    found = [_file(add) for add in listed if unquote(add["path"]).startswith(f"{folder}/")]
    if len(found) != files:
        raise SourceLost(
            f"{range_.called}: rows that were published from {folder} can no longer be told from others.",
            f"The log no longer has that entry, and the table has {len(found):,} of {count(files, 'file')}: they were "
            "rewritten (OPTIMIZE, UPDATE, DELETE), or replaced.",
            "Process the interval again in the pipeline that writes the table, then here. Nothing was written.",
        )
    return found


def _file(add: dict[str, Any]) -> File:
    values = {name.removeprefix("partition."): value for name, value in add.items() if name.startswith("partition.")}
    texts = {name: None if value is None else str(value) for name, value in values.items()}
    return File(unquote(add["path"]), add["size_bytes"], texts)
