"""A state table with a long past of many pipelines, written at once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceonly.checkpoint.model import Checkpoint, Event, first
from onceonly.checkpoint.model import Row as StateRow
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable import location, row_files, row_format
from onceonly.statetable.log import MERGE, Action, Commit, now_millis
from onceonly.statetable.row_format import Head
from onceonly.statetable.table import StateTable

HOUR = timedelta(hours=1)
START = datetime(2000, 1, 1, tzinfo=UTC)
CHUNK = 12_000  # rows in one generated file, about what tidying leaves
TAIL = 12  # rows that are not merged: two checkpoints
HOW = "Each pipeline's past is in large files, as tidying leaves it at best, but for its last two checkpoints."


def write(state_table: StateTable, pipelines: Sequence[Pipeline], epochs: int, topic_id: str = "an-id") -> None:
    """Committed checkpoints of one offset each, as the coordinator would have written them; the same for all pipelines.

    Only their names differ.
    """
    model = pipelines[0].name
    rows = row_format.to_arrow(row_format.columns(_lives(state_table, pipelines[0], topic_id, epochs)))
    for pipeline in pipelines:
        _append(location.table_folder(state_table.uri, pipeline.name), _named(rows, model, pipeline.name))


def _append(folder: str, rows: pa.Table) -> None:
    log, merged = location.open_log(folder), rows.num_rows - TAIL
    log.create()
    files = [_file(folder, rows.slice(start, min(CHUNK, merged - start))) for start in range(0, merged, CHUNK)]
    log.commit(1, Commit(MERGE, files), None)
    for version, row in enumerate(map(row_format.from_record, rows.slice(merged).to_pylist()), start=2):
        log.commit(version, Commit("WRITE", [row_files.put(folder, [row], row.id)], row), None)


def _file(folder: str, rows: pa.Table) -> Action:
    """As `row_files.put`, for millions of rows: without making an object of each."""
    path = f"merged-{rows['seq'][0]}.parquet"
    pq.write_table(rows, f"{folder}/{path}")
    size, stats = os.path.getsize(f"{folder}/{path}"), json.dumps(_stats(rows))
    add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": now_millis(), "dataChange": False}
    return {"add": {**add, "stats": stats}}


def _stats(rows: pa.Table) -> dict[str, Any]:
    names = [name for name in rows.column_names if name not in row_files.NOT_FOR_SKIPPING]
    ends = {name: pc.min_max(rows[name]).as_py() for name in names if rows[name].null_count < rows.num_rows}
    return {
        "numRecords": rows.num_rows,
        "minValues": {name: _format_bound(each["min"]) for name, each in ends.items()},
        "maxValues": {name: _format_bound(each["max"]) for name, each in ends.items()},
        "nullCount": {name: rows[name].null_count for name in names},
    }


def _format_bound(value: Any) -> Any:
    """Return a bound as Delta's statistics have it."""
    return row_files._time_text(value) if isinstance(value, datetime) else value


def _named(rows: pa.Table, model: str, name: str) -> pa.Table:
    """`model` is a whole word wherever it occurs."""
    columns = [pc.replace_substring(c, model, name) if pa.types.is_string(c.type) else c for c in rows.columns]
    return pa.table(columns, schema=rows.schema)


def _lives(state_table: StateTable, pipeline: Pipeline, topic_id: str, epochs: int) -> list[StateRow]:
    """The rows of that many committed checkpoints."""
    head, rows = Head(), []
    for epoch in range(1, epochs + 1):
        for row in _life(state_table, pipeline, topic_id, epoch, head):
            known: Checkpoint = known.apply(row) if row.event is not Event.PLANNED else first(row)  # noqa: F821
            head = head.apply(row, known)
            rows.append(replace(row, head=head.to_json()))
    return rows


def _life(state_table: StateTable, pipeline: Pipeline, topic_id: str, epoch: int, head: Head) -> Iterator[StateRow]:
    start = START + (epoch - 1) * HOUR
    interval = Interval(start, start + HOUR) if pipeline.mode == "interval" else None
    ranges = [TopicRange("t", topic_id, {0: (0, 0)}).to_json()]
    planned = {"definition": pipeline.to_json(), "ranges": ranges}
    handle = {"folder": "staged-" + "x" * 80, "rows": 1, "app_id": "onceonly/" + "y" * 60}
    claim = {"nonce": "0" * 12, "state_id": state_table.id, "worker": "host:1"}
    events: list[tuple[Event, dict[str, object]]] = [
        (Event.PLANNED, {"owner": f"owner-{epoch - 1}", "interval": interval, "body": planned}),
        (Event.CLAIMED, {"attempt": 1, "body": claim}),
        (Event.STAGED, {"attempt": 1, "body": {"handles": {"s": handle}}}),
        (Event.COMMITTING, {"attempt": 1, "decision": epoch}),
        (Event.PUBLISHED, {"attempt": 1, "decision": epoch, "sink": "s", "body": {"already": False}}),
        (Event.COMMITTED, {"attempt": 1, "decision": epoch}),
    ]
    for offset, (event, columns) in enumerate(events, start=1):
        yield StateRow(
            pipeline=pipeline.name, seq=head.seq + offset, epoch=epoch, event=event, **{"attempt": 0} | columns
        )
