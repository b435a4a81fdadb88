"""The log checkpoints of a Delta table: what they hold beside files, and when one is due.

Source: Delta protocol, "Checkpoints".
"""

from __future__ import annotations

import warnings
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.delta.table_snapshot import TableSnapshot

CHECKPOINT_COLUMNS = ["txn.appId", "txn.version", "metaData", "protocol"]
CHECKPOINT_BATCH_ROWS = 4096  # of a log checkpoint, at a time: most of them are files
DEFAULT_INTERVAL = 100  # commits between log checkpoints: delta-rs's default
INTERVAL_SETTING = "delta.checkpointInterval"
CLEANUP_SETTING = "delta.enableExpiredLogCleanup"  # the owner's choice whether old log entries are deleted


def read_actions(part: pa.NativeFile) -> list[dict[str, Any]]:
    """Read the `txn`, `metaData` and `protocol` actions of a log checkpoint, or of a part of one."""
    actions: list[dict[str, Any]] = []
    checkpoint = pq.ParquetFile(part)
    for batch in checkpoint.iter_batches(CHECKPOINT_BATCH_ROWS, columns=CHECKPOINT_COLUMNS, use_threads=False):
        actions += _actions_in(batch)
    return actions


def _actions_in(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the few rows that are no file. (Without `drop_null`: it imports what takes longer than all of this.)"""
    actions = []
    for name in batch.schema.names:
        if batch[name].null_count == len(batch):
            continue
        for value in batch[name].to_pylist():
            if value:
                actions.append({name: value})
    return actions


def make_if_due(before: TableSnapshot) -> None:
    """Make a log checkpoint, as delta-rs does after a commit, if one is due.

    Nothing depends on it, so a failure only causes a warning.

    Args:
        before: the table before the commit.
    """
    try:
        if (before.version() + 1) % int(before.metadata().configuration.get(INTERVAL_SETTING, DEFAULT_INTERVAL)):
            return
        table = DeltaTable(before.table_uri)
        table.create_checkpoint()
        if (
            before.metadata().configuration.get(CLEANUP_SETTING, "true").lower() == "true"
        ):  # what delta-rs itself looks at
            table.cleanup_metadata()
    except Exception as error:
        warnings.warn(f"{before.table_uri} got no log checkpoint: {error}", RuntimeWarning, stacklevel=2)
