"""Files of a table that single checkpoints of the pipeline that writes it have published.

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


def list_published_files(log: TableLog, range_: TopicRange) -> list[File]:
    """Return the files of the checkpoints that a range names.

    Raises:
        SourceLost: it can no longer be told which they are.
    """
    files: list[File] = []
    for number, (folder, file_count) in enumerate(range_.folders):
        version, _ = range_.partitions[number]
        added = _find_added_files(log, version, folder) if version else None
        if added is None:
            added = _list_folder_files(read_newest_table(log), range_, folder, file_count)
        files += added
    return files


def read_newest_table(log: TableLog) -> DeltaTable:
    return log.table(max(log.times()))


def _find_added_files(log: TableLog, number: int, folder: str) -> list[File] | None:
    """Return the files that the version adds; None if the log does not show that it published `folder`."""
    try:
        (version,) = log.versions([number])
    except FileNotFoundError:  # its entry has expired
        return None
    if not _publishes(version, folder):  # in a copy, that number may be another version
        return None
    return list(version.added)


def _publishes(version: Version, folder: str) -> bool:
    """Return whether the version published the transaction that was staged in `folder`."""
    txn = Transaction.parse(folder.removeprefix(STAGED))
    number = version.transactions.get(txn.app_id) if txn else None
    if txn is None or number is None:
        return False
    return number & NAME == min(int(txn.nonce[:8], 16), NAME - 1)


def _list_folder_files(table: DeltaTable, range_: TopicRange, folder: str, file_count: int) -> list[File]:
    """Return the files that were staged in `folder`. Raises SourceLost: the table does not refer to all of them."""
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    files = [_to_file(add) for add in adds if unquote(add["path"]).startswith(f"{folder}/")]
    if len(files) != file_count:
        raise SourceLost(
            f"{range_.label}: rows that were published from {folder} can no longer be told from others.",
            f"The log no longer has that entry, and the table has {len(files):,} of {count(file_count, 'file')}: they "
            "were rewritten (OPTIMIZE, UPDATE, DELETE), or replaced.",
            "Process the interval again in the pipeline that writes the table, then here. Nothing was written.",
        )
    return files


def _to_file(add: dict[str, Any]) -> File:
    """Convert a flattened add action, with its partition values as text."""
    values: dict[str, str | None] = {}
    for name, value in add.items():
        if name.startswith("partition."):
            values[name.removeprefix("partition.")] = None if value is None else str(value)
    return File(unquote(add["path"]), add["size_bytes"], values)
