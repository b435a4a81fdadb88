"""Figures of rows that are found part by part: by the same code in this process and by the workers of Spark.

A judgement asks for reductions, gets their values, and may ask for more. Those that several judgements ask for at the
same time share one pass over the rows.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.columns import Column, Kind, columns_of_arrow, columns_of_spark
from onceonly.gate.conditions import Condition

BATCH_ROWS = 65_536
COUNT = "count"


@dataclass(frozen=True)
class Reduction:
    """What is asked of the rows.

    Args:
        columns: those that `fold` gets, as normalized arrays of one length.
        where: only the rows that meet it are seen.
        fold: the value of a part of the rows, of any size: plain Python that can be pickled.
        merge: the value of two parts together. Neither their order nor how the rows were split may matter.
        by_value: the parts are of distinct rows, and `fold` gets how often each occurs as another array.
    """

    columns: tuple[Column, ...]
    where: Condition | None
    fold: Callable[[list[pa.Array], int], Any]
    merge: Callable[[Any, Any], Any]
    by_value: bool = False


class Rows(Protocol):
    """The rows of one sink."""

    columns: Sequence[Column]

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]: ...


Judgement = Generator[Reduction, Any, Any]


def conclude(rows: Rows, judgements: Sequence[Judgement]) -> list[Any]:
    """Run all judgements to their ends, and return what they return."""
    results: list[Any] = [None] * len(judgements)
    pending: dict[int, Reduction] = {}

    def advance(number: int, value: Any) -> None:
        try:
            pending[number] = judgements[number].send(value)
        except StopIteration as end:
            results[number] = end.value

    for number in range(len(judgements)):
        advance(number, None)
    while pending:
        asked, pending = pending, {}
        for number, value in zip(asked, rows.reduce(list(asked.values())), strict=True):
            advance(number, value)
    return results


class LocalRows:
    """Rows in the memory of this process."""

    def __init__(self, table: pa.Table) -> None:
        self.columns: Sequence[Column] = columns_of_arrow(table.schema)
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]:
        return _reduce(reductions, lambda plain: _fold_all(self._parts(plain), plain), self._by_value)

    def _parts(self, reductions: Sequence[Reduction]) -> Iterator[_Part]:
        columns = needed_columns(reductions)
        names = [column.name for column in self.columns]
        for batch in self._table.to_batches(max_chunksize=BATCH_ROWS):
            yield _Part(columns, [batch.column(names.index(column.name)) for column in columns], batch.num_rows)

    def _by_value(self, reductions: Sequence[Reduction]) -> list[Any]:
        reduction = reductions[0]
        tables = [part.selected_table(reduction) for part in self._parts([reduction])]
        names = [f"c{number}" for number in range(len(reduction.columns))]
        whole = pa.concat_tables([_empty_table(reduction), *tables])
        counted = whole.group_by(names).aggregate([([], "count_all")]).combine_chunks()
        arrays = [counted.column(name).combine_chunks() for name in [*names, "count_all"]]
        return [each.fold(arrays, counted.num_rows) for each in reductions]


class NoRows:
    """No rows, of columns that are not known."""

    columns: Sequence[Column] = ()

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]:
        return [_fold_nothing(reduction) for reduction in reductions]


class SparkRows:
    """Rows of a Spark DataFrame, which the workers fold by this package."""

    def __init__(self, frame: Any) -> None:
        self.columns: Sequence[Column] = columns_of_spark(json.loads(frame.schema.json()))
        self._frame = frame

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]:
        return _reduce(reductions, self._fold, self._by_value)

    def _fold(self, reductions: Sequence[Reduction]) -> list[Any]:
        columns = needed_columns(reductions)

        def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parts = (_Part(columns, batch.columns, batch.num_rows) for batch in batches)
            yield _pickled(_fold_all(parts, reductions))

        return _merge_all(self._project(columns).mapInArrow(fold, "state binary").collect(), reductions)

    def _by_value(self, reductions: Sequence[Reduction]) -> list[Any]:
        reduction = reductions[0]
        columns = needed_columns([reduction])
        names = [f"c{number}" for number in range(len(reduction.columns))]

        def select(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                table = _Part(columns, batch.columns, batch.num_rows).selected_table(reduction)
                yield from table.to_batches()

        def fold(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            values = [_fold_nothing(each) for each in reductions]
            for batch in batches:
                folded = [each.fold(list(batch.columns), batch.num_rows) for each in reductions]
                merging = zip(reductions, values, folded, strict=True)
                values = [each.merge(value, more) for each, value, more in merging]
            yield _pickled(values)

        schema = ", ".join(f"{name} {_ddl(column)}" for name, column in zip(names, reduction.columns, strict=True))
        counted = self._project(columns).mapInArrow(select, schema).groupBy(*names).count()
        return _merge_all(counted.mapInArrow(fold, "state binary").collect(), reductions)

    def _project(self, columns: Sequence[Column]) -> Any:
        """The columns by position: names may have dots and quotes, and Arrow does not have every type."""
        from pyspark.sql import functions as F

        chosen = []
        for number, column in enumerate(columns):
            there = F.col(f"`{column.name.replace('`', '``')}`")
            if column.kind is Kind.OPAQUE:
                there = F.when(there.isNotNull(), F.lit(True))
            elif column.kind is Kind.TEXT:
                there = there.cast("string")
            chosen.append(there.alias(f"c{number}"))
        return self._frame.select(*(chosen or [F.lit(True).alias("c0")]))


def _reduce(
    reductions: Sequence[Reduction],
    fold: Callable[[list[Reduction]], list[Any]],
    fold_by_value: Callable[[list[Reduction]], list[Any]],
) -> list[Any]:
    """Fold the rows once for all plain reductions, and once for all of the distinct values of the same columns."""
    groups: dict[Any, list[int]] = {}
    for number, reduction in enumerate(reductions):
        key = (reduction.columns, reduction.where) if reduction.by_value else None
        groups.setdefault(key, []).append(number)
    values: dict[int, Any] = {}
    for key, numbers in groups.items():
        chosen = [reductions[number] for number in numbers]
        values.update(zip(numbers, fold(chosen) if key is None else fold_by_value(chosen), strict=True))
    return [values[number] for number in range(len(reductions))]


def needed_columns(reductions: Iterable[Reduction]) -> list[Column]:
    """Return the columns that are read for the reductions, each once."""
    names: dict[str, Column] = {}
    for reduction in reductions:
        conditional = sorted(reduction.where.columns, key=lambda each: each.name) if reduction.where else ()
        for column in (*reduction.columns, *conditional):
            names.setdefault(column.name, column)
    return list(names.values())


class _Part:
    """A batch of rows: its columns are normalized once, and each condition is evaluated once."""

    def __init__(self, columns: Sequence[Column], arrays: Sequence[pa.Array], length: int) -> None:
        self._raw = dict(zip((column.name for column in columns), arrays, strict=False))
        self._columns = {column.name: column for column in columns}
        self._normalized: dict[str, pa.Array] = {}
        self._selected: dict[Condition, pa.Array] = {}
        self._length = length

    def fold(self, reduction: Reduction) -> Any:
        arrays, length = self._arrays(reduction)
        return reduction.fold(arrays, length)

    def selected_table(self, reduction: Reduction) -> pa.Table:
        arrays, _ = self._arrays(reduction)
        return pa.table({f"c{number}": array for number, array in enumerate(arrays)})

    def _arrays(self, reduction: Reduction) -> tuple[list[pa.Array], int]:
        arrays = [self._array(column.name) for column in reduction.columns]
        if reduction.where is None:
            return arrays, self._length
        mask = self._mask(reduction.where)
        return [array.filter(mask) for array in arrays], int(pc.sum(mask).as_py() or 0)

    def _array(self, name: str) -> pa.Array:
        if name not in self._normalized:
            self._normalized[name] = self._columns[name].normalize(self._raw[name])
        return self._normalized[name]

    def _mask(self, where: Condition) -> pa.Array:
        if where not in self._selected:
            arrays = _Lazily(self._array)
            self._selected[where] = pc.fill_null(where.select(arrays), False)
        return self._selected[where]


class _Lazily(Mapping[str, pa.Array]):
    def __init__(self, get: Callable[[str], pa.Array]) -> None:
        self._get = get

    def __getitem__(self, name: str) -> pa.Array:
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _fold_all(parts: Iterable[_Part], reductions: Sequence[Reduction]) -> list[Any]:
    values = [_fold_nothing(reduction) for reduction in reductions]
    for part in parts:
        values = [each.merge(value, part.fold(each)) for each, value in zip(reductions, values, strict=True)]
    return values


def _fold_nothing(reduction: Reduction) -> Any:
    arrays = [pa.array([], column.form) for column in reduction.columns]
    return reduction.fold([*arrays, pa.array([], pa.int64())] if reduction.by_value else arrays, 0)


def _merged(reduction: Reduction, states: Iterable[Any]) -> Any:
    first, *others = states
    for other in others:
        first = reduction.merge(first, other)
    return first


def _merge_all(rows: Iterable[Any], reductions: Sequence[Reduction]) -> list[Any]:
    """Merge what the workers have pickled, one row per part."""
    parts = [pickle.loads(bytes(row.state)) for row in rows]
    parts.append([_fold_nothing(reduction) for reduction in reductions])
    return [_merged(reduction, states) for reduction, states in zip(reductions, zip(*parts, strict=True), strict=True)]


def _pickled(values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(values)], pa.binary())], ["state"])


def _empty_table(reduction: Reduction) -> pa.Table:
    return pa.table({f"c{number}": pa.array([], column.form) for number, column in enumerate(reduction.columns)})


def _ddl(column: Column) -> str:
    """The type of normalized values in Spark's DDL."""
    names = {pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string", pa.bool_(): "boolean"}
    return column.spark_type if column.kind is Kind.DECIMAL else names.get(column.form, "binary")
