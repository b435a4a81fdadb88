"""Files of rows: written before the log names them.

They have their whole content on disk by then. Else, after a power failure, the log could name a file without content.

What only writers need of pyarrow is imported when something is written, so that `onceonly status` starts fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.model import Row
from onceonly.statetable import row_format
from onceonly.statetable.log import Action, now_millis
from onceonly.storage import durability
from onceonly.storage.objects import Objects
from onceonly.storage.paths import local_path

NOT_FOR_SKIPPING = ("head", "body")


def put(uri: str, rows: Sequence[Row], name: str, changes: bool = True) -> Action:
    """Write a file of rows; returns the action that adds it. The same name means the same rows.

    Args:
        changes: False where the rows are in the table already, in other files.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = row_format.columns(rows)
    out = pa.BufferOutputStream()
    is_single = len(rows) == 1  # then a dictionary and statistics in the file help nobody, and take time
    pq.write_table(row_format.to_arrow(columns), out, use_dictionary=not is_single, write_statistics=not is_single)
    content = out.getvalue().to_pybytes()
    path = path_of(name)
    _write(uri, path, content)
    return {
        "add": {
            "path": path,
            "partitionValues": {},
            "size": len(content),
            "modificationTime": now_millis(),
            "dataChange": changes,
            "stats": json.dumps(_stats(columns, len(rows))),
        }
    }


def path_of(name: str) -> str:
    """Return the path of the file with that name, below the table."""
    return f"{name}.parquet"


def remove(uri: str, name: str) -> None:
    """Remove a file that no log entry will ever name. On an object store that is never certain: there it stays."""
    local = local_path(uri)
    if local:
        (local / path_of(name)).unlink(missing_ok=True)


def _write(uri: str, path: str, content: bytes) -> None:
    local = local_path(uri)
    if local is not None:
        return durability.write(local / path, content)
    Objects(uri).write(path, content)


def _stats(columns: Mapping[str, list[Any]], row_count: int) -> dict[str, Any]:
    """Return the statistics by which a reader can skip the file, as Delta names them."""
    minima, maxima, null_counts = {}, {}, {}
    for name, values in columns.items():
        if name in NOT_FOR_SKIPPING:
            continue
        present_values = [value for value in values if value is not None]
        null_counts[name] = row_count - len(present_values)
        if present_values:
            minima[name], maxima[name] = min(present_values), max(present_values)
    for name in row_format.TIMES:
        if name in minima:
            minima[name], maxima[name] = _time_text(minima[name]), _time_text(maxima[name])
    return {"numRecords": row_count, "minValues": minima, "maxValues": maxima, "nullCount": null_counts}


def _time_text(time: datetime) -> str:
    """Return the time as Delta's statistics have it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
