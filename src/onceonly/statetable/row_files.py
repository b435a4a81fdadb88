"""Writing to the state table: first a file of rows, and once it is on disk, the log entry that names it.

delta-rs names both before their content is on disk: after a power failure the log could name a file without content,
and the table could not be read.

What only writers need of pyarrow is imported when something is written, so that `onceonly status` starts fast.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from onceonly.checkpoint.model import Row
from onceonly.filesystems import durability
from onceonly.filesystems.paths import local_path
from onceonly.statetable import row_format

NOT_FOR_SKIPPING = ("head", "body")
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


def append(table: DeltaTable, row: Row) -> None:
    """Append one row, by a commit that conflicts with any other commit of that number."""
    add = put(table.table_uri, [row], row.id)
    _commit(table, [add], CommitProperties(app_transactions=[Transaction(row.pipeline, row.seq)]))


def replace(table: DeltaTable, files: dict[str, int], merged: AddAction) -> None:
    """Replace files (path -> size) by one file with the same rows; only as the next version, without retries."""
    now = int(time.time() * 1000)
    removes = [RemoveAction(path, False, now, size, dict(merged.partition_values)) for path, size in files.items()]
    add = dataclasses.replace(merged, data_change=False)
    _commit(table, [add, *removes], CommitProperties(max_commit_retries=0))


def put(uri: str, rows: Sequence[Row], name: str) -> AddAction:
    """Write a file of one pipeline's rows; returns the action that adds it. The same name means the same rows."""
    import pyarrow.parquet as pq

    table = row_format.to_arrow(rows).drop_columns(["pipeline"])
    path = path_of(rows[0].pipeline, name)
    out = pa.BufferOutputStream()
    pq.write_table(table, out)
    content = out.getvalue().to_pybytes()
    _write(uri, path, content, anew=rows[0].seq == 1)
    partition = {"pipeline": rows[0].pipeline}
    return AddAction(path, len(content), partition, int(time.time() * 1000), True, json.dumps(_stats(table)))


def path_of(pipeline: str, name: str) -> str:
    return f"pipeline={pipeline}/{name}.parquet"


def remove(uri: str, pipeline: str, name: str) -> None:
    """Remove a file that no log entry will ever name. On an object store that is never certain: there it stays."""
    local = local_path(uri)
    if local:
        (local / path_of(pipeline, name)).unlink(missing_ok=True)


def _write(uri: str, path: str, content: bytes, anew: bool) -> None:
    local = local_path(uri)
    if local is None:
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        files = pafs.PyFileSystem(DeltaStorageHandler(uri))
        with files.open_output_stream(path, buffer_size=len(content) + 1) as out:  # delta-rs takes bytes, not a Buffer
            out.write(content)
        return
    file = local / path
    file.parent.mkdir(exist_ok=True)
    durability.write(file, content)
    if anew:  # the pipeline's first row: its folder is new
        durability.to_disk(local)


def _commit(table: DeltaTable, actions: list[Any], properties: CommitProperties) -> None:
    hooks = NO_HOOKS if local_path(table.table_uri) else None  # see `compaction`
    table.create_write_transaction(
        actions,
        "append",
        table.schema(),
        partition_by=["pipeline"],
        commit_properties=properties,
        post_commithook_properties=hooks,
    )


def _stats(table: pa.Table) -> dict[str, Any]:
    """The statistics by which a reader can skip the file."""
    import pyarrow.compute as pc

    names = [name for name in table.column_names if name not in NOT_FOR_SKIPPING]
    ends = {name: pc.min_max(table[name]).as_py() for name in names if table[name].null_count < table.num_rows}
    return {
        "numRecords": table.num_rows,
        "minValues": {name: _plain(each["min"]) for name, each in ends.items()},
        "maxValues": {name: _plain(each["max"]) for name, each in ends.items()},
        "nullCount": {name: table[name].null_count for name in names},
    }


def _plain(value: Any) -> Any:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value
