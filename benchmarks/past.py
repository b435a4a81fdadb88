"""A state table with a long past of many pipelines, written at once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction, write_deltalake

from benchmarks.history import life
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable import location, row_format
from onceonly.statetable.table import StateTable

HOW = "Each pipeline's past is one merged file, as compaction leaves it at best."


def write(state: StateTable, pipelines: Sequence[Pipeline], epochs: int) -> None:
    """Committed checkpoints of one offset each; the same for all pipelines, but for their names."""
    model = pipelines[0].name
    rows = row_format.to_arrow(life(state, pipelines[0], "an-id", epochs))
    for pipeline in pipelines:
        stamp = CommitProperties(app_transactions=[Transaction(pipeline.name, rows.num_rows)])
        table = location.open_(state.uri).table
        write_deltalake(table, _named(rows, model, pipeline.name), mode="append", commit_properties=stamp)


def _named(rows: pa.Table, model: str, name: str) -> pa.Table:
    """`model` is a whole word wherever it occurs."""
    columns = [pc.replace_substring(c, model, name) if pa.types.is_string(c.type) else c for c in rows.columns]
    return pa.table(columns, schema=rows.schema)
