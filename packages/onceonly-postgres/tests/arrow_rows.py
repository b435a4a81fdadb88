"""A DataFrame of this process: rows of Arrow with those methods of Spark's that the sink calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

SPARK_TYPES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", "UTC"): "timestamp",
}
Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class Schema:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def json(self) -> str:
        fields = []
        for field in self._schema:
            fields.append({"name": field.name, "type": spark_type(field.type), "nullable": True, "metadata": {}})
        return json.dumps({"type": "struct", "fields": fields})


def spark_type(arrow_type: pa.DataType) -> Any:
    if pa.types.is_list(arrow_type):
        return {"type": "array", "elementType": spark_type(arrow_type.value_type), "containsNull": True}
    if pa.types.is_decimal(arrow_type):
        return f"decimal({arrow_type.precision},{arrow_type.scale})"
    return SPARK_TYPES[arrow_type]


class Collected(list[dict[str, Any]]):
    def collect(self) -> list[dict[str, Any]]:
        return self


class ArrowRows:
    """Rows in partitions. An attempt of a task may come to nothing after it has written, as Spark's may.

    Args:
        lost_attempts: how often each task runs before the attempt that counts.
    """

    def __init__(self, *partitions: pa.Table, lost_attempts: int = 0) -> None:
        self.partitions, self._lost_attempts = partitions, lost_attempts

    @property
    def columns(self) -> list[str]:
        return list(self.partitions[0].schema.names)

    @property
    def schema(self) -> Schema:
        return Schema(self.partitions[0].schema)

    def mapInArrow(self, task: Task, schema: str) -> Collected:
        collected = Collected()
        for partition in self.partitions:
            for _ in range(self._lost_attempts):
                list(task(partition.to_batches()))
            for batch in task(partition.to_batches()):
                collected += batch.to_pylist()
        return collected

    def limit(self, rows: int) -> ArrowRows:
        return ArrowRows(pa.concat_tables(self.partitions).slice(0, rows))

    def toArrow(self) -> pa.Table:
        return pa.concat_tables(self.partitions)


def number_rows(*numbers: int) -> ArrowRows:
    """Return rows with a column n, in two partitions if there are several."""
    half = (len(numbers) + 1) // 2
    parts = [numbers[:half], numbers[half:]] if len(numbers) > 1 else [numbers]
    return ArrowRows(*(pa.table({"n": pa.array(part, pa.int32())}) for part in parts), lost_attempts=1)
