"""Rows of the state table in Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from onceonly.statetable import row_format

TIME = pa.timestamp("us", tz="UTC")
_TYPES = {"integer": pa.int32(), "long": pa.int64(), "string": pa.string(), "timestamp": TIME}
SCHEMA = pa.schema(
    [pa.field(name, _TYPES[type_], nullable=nullable) for name, (type_, nullable) in row_format.COLUMNS.items()]
)


def to_arrow(records: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table with the columns of `SCHEMA`; each is given as `row_format.record` returns it."""
    columns = []
    for field in SCHEMA:
        values = [record[field.name] for record in records]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=SCHEMA)  # from_pylist would import pandas
