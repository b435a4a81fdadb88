"""Figures of rows that are found part by part: by the same code in this process and by the workers of Spark.

A judgement asks for reductions, gets their values, and may ask for more. Those that several judgements ask for at the
same time share one pass over the rows.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.gate.columns import Column, Kind, columns_of_arrow, columns_of_spark
from onceonly.gate.conditions import Condition

MAX_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class Reduction:
    """A figure of the rows that is found part by part.

    Args:
        columns: those that `fold_part` gets, as normalized arrays of one length.
        condition: only the rows that meet it are seen; None: all rows.
        fold_part: the value of a part of the rows, of any size: plain Python that can be pickled.
        merge: the value of two parts together. Neither their order nor how the rows were split may matter.
        by_value: the parts are of distinct rows, and `fold_part` gets how often each occurs as another array.
    """

    columns: tuple[Column, ...]
    condition: Condition | None
    fold_part: Callable[[list[pa.Array], int], Any]
    merge: Callable[[Any, Any], Any]
    by_value: bool = False


class ReducedRows(Protocol):
    """The rows of one sink."""

    columns: Sequence[Column]

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]: ...


Judgement = Generator[Reduction, Any, Any]  # yields reductions, is sent their values, and returns its result


def conclude(rows: ReducedRows, judgements: Sequence[Judgement]) -> list[Any]:
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
        requests, pending = pending, {}  # `advance` fills it again
        values = rows.reduce(list(requests.values()))
        for number, value in zip(requests, values, strict=True):
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
        for batch in self._table.to_batches(max_chunksize=MAX_BATCH_ROWS):
            yield _Part(columns, [batch.column(names.index(column.name)) for column in columns], batch.num_rows)

    def _by_value(self, reductions: Sequence[Reduction]) -> list[Any]:
        reduction = reductions[0]
        tables = [_empty_table(reduction)]
        for part in self._parts([reduction]):
            tables.append(part.selected_table(reduction))
        names = _position_names(reduction)
        distinct = pa.concat_tables(tables).group_by(names).aggregate([([], "count_all")]).combine_chunks()
        arrays = [distinct.column(name).combine_chunks() for name in [*names, "count_all"]]
        return [reduction.fold_part(arrays, distinct.num_rows) for reduction in reductions]


class NoRows:
    """No rows, of columns that are not known."""

    columns: Sequence[Column] = ()

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]:
        return _fold_no_rows(reductions)


class SparkRows:
    """Rows of a Spark DataFrame, which the workers fold by this package."""

    def __init__(self, frame: Any) -> None:
        self.columns: Sequence[Column] = columns_of_spark(json.loads(frame.schema.json()))
        self._frame = frame

    def reduce(self, reductions: Sequence[Reduction]) -> list[Any]:
        return _reduce(reductions, self._fold_on_workers, self._by_value)

    def _fold_on_workers(self, reductions: Sequence[Reduction]) -> list[Any]:
        columns = needed_columns(reductions)

        def fold_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            parts = (_Part(columns, batch.columns, batch.num_rows) for batch in batches)
            yield _pickle(_fold_all(parts, reductions))

        return _merge_all(self._project(columns).mapInArrow(fold_part, "state binary").collect(), reductions)

    def _by_value(self, reductions: Sequence[Reduction]) -> list[Any]:
        reduction = reductions[0]
        columns = needed_columns([reduction])

        def select(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                table = _Part(columns, batch.columns, batch.num_rows).selected_table(reduction)
                yield from table.to_batches()

        def fold_part(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            values = _fold_no_rows(reductions)
            for batch in batches:
                arrays = list(batch.columns)
                for number, reduction in enumerate(reductions):
                    values[number] = reduction.merge(values[number], reduction.fold_part(arrays, batch.num_rows))
            yield _pickle(values)

        selected = self._project(columns).mapInArrow(select, _ddl_schema(reduction))
        distinct = selected.groupBy(*_position_names(reduction)).count()
        return _merge_all(distinct.mapInArrow(fold_part, "state binary").collect(), reductions)

    def _project(self, columns: Sequence[Column]) -> Any:
        """Select the columns by position: names may have dots and quotes, and Arrow does not have every type."""
        from pyspark.sql import functions as F

        expressions = []
        for number, column in enumerate(columns):
            expression = F.col(f"`{column.name.replace('`', '``')}`")
            if column.kind is Kind.OPAQUE:
                expression = F.when(expression.isNotNull(), F.lit(True))
            elif column.kind is Kind.TEXT:
                expression = expression.cast("string")
            expressions.append(expression.alias(f"c{number}"))
        return self._frame.select(*(expressions or [F.lit(True).alias("c0")]))


def _reduce(
    reductions: Sequence[Reduction],
    fold_part: Callable[[list[Reduction]], list[Any]],
    fold_by_value: Callable[[list[Reduction]], list[Any]],
) -> list[Any]:
    """Fold the rows once for all plain reductions, and once for all of the distinct values of the same columns."""
    groups: dict[Any, dict[int, Reduction]] = {}  # by the columns of the distinct values: reductions by their number
    for number, reduction in enumerate(reductions):
        key = None
        if reduction.by_value:
            key = (reduction.columns, reduction.condition)
        groups.setdefault(key, {})[number] = reduction
    values: list[Any] = [None] * len(reductions)
    for key, group in groups.items():
        fold_group = fold_by_value
        if key is None:
            fold_group = fold_part
        group_values = fold_group(list(group.values()))
        for number, value in zip(group, group_values, strict=True):
            values[number] = value
    return values


def needed_columns(reductions: Iterable[Reduction]) -> list[Column]:
    """Return the columns that are read for the reductions and their conditions, each once."""
    columns_by_name: dict[str, Column] = {}
    for reduction in reductions:
        columns = list(reduction.columns)
        if reduction.condition:
            columns += sorted(reduction.condition.columns, key=lambda column: column.name)
        for column in columns:
            columns_by_name.setdefault(column.name, column)
    return list(columns_by_name.values())


class _Part:
    """A batch of rows: its columns are normalized once, and each condition is evaluated once."""

    def __init__(self, columns: Sequence[Column], arrays: Sequence[pa.Array], length: int) -> None:
        names = [column.name for column in columns]
        self._raw = dict(zip(names, arrays, strict=False))
        self._columns = dict(zip(names, columns, strict=True))
        self._normalized: dict[str, pa.Array] = {}
        self._selected: dict[Condition, pa.Array] = {}
        self._length = length

    def fold_part(self, reduction: Reduction) -> Any:
        arrays, length = self._arrays(reduction)
        return reduction.fold_part(arrays, length)

    def selected_table(self, reduction: Reduction) -> pa.Table:
        arrays, _ = self._arrays(reduction)
        return pa.table(dict(zip(_position_names(reduction), arrays, strict=True)))

    def _arrays(self, reduction: Reduction) -> tuple[list[pa.Array], int]:
        arrays = [self._array(column.name) for column in reduction.columns]
        if reduction.condition is None:
            return arrays, self._length
        mask = self._mask(reduction.condition)
        return [array.filter(mask) for array in arrays], int(pc.sum(mask).as_py() or 0)

    def _array(self, name: str) -> pa.Array:
        if name not in self._normalized:
            self._normalized[name] = self._columns[name].normalize(self._raw[name])
        return self._normalized[name]

    def _mask(self, condition: Condition) -> pa.Array:
        if condition not in self._selected:
            arrays = _LazyArrays(self._array)
            self._selected[condition] = pc.fill_null(condition.select(arrays), False)
        return self._selected[condition]


class _LazyArrays(Mapping[str, pa.Array]):
    """Arrays by name, each made when it is read."""

    def __init__(self, get: Callable[[str], pa.Array]) -> None:
        self._get = get

    def __getitem__(self, name: str) -> pa.Array:
        return self._get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _fold_all(parts: Iterable[_Part], reductions: Sequence[Reduction]) -> list[Any]:
    """Return the value of each reduction over all parts."""
    values = _fold_no_rows(reductions)
    for part in parts:
        for number, reduction in enumerate(reductions):
            values[number] = reduction.merge(values[number], part.fold_part(reduction))
    return values


def _fold_no_rows(reductions: Sequence[Reduction]) -> list[Any]:
    """Return the value of each reduction for no rows, from which merging starts."""
    return list(map(_fold_nothing, reductions))


def _fold_nothing(reduction: Reduction) -> Any:
    arrays = _empty_arrays(reduction)
    if reduction.by_value:
        arrays.append(pa.array([], pa.int64()))
    return reduction.fold_part(arrays, 0)


def _merge_states(reduction: Reduction, states: Iterable[Any]) -> Any:
    merged, *further_states = states
    for state in further_states:
        merged = reduction.merge(merged, state)
    return merged


def _merge_all(rows: Iterable[Any], reductions: Sequence[Reduction]) -> list[Any]:
    """Merge what the workers have pickled, one row per part."""
    parts = [pickle.loads(bytes(row.state)) for row in rows]
    parts.append(_fold_no_rows(reductions))
    states_by_reduction = zip(*parts, strict=True)
    values = []
    for reduction, states in zip(reductions, states_by_reduction, strict=True):
        values.append(_merge_states(reduction, states))
    return values


def _pickle(values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(values)], pa.binary())], ["state"])


def _position_names(reduction: Reduction) -> list[str]:
    """Return names for the columns by position."""
    return [f"c{number}" for number in range(len(reduction.columns))]


def _empty_table(reduction: Reduction) -> pa.Table:
    return pa.table(dict(zip(_position_names(reduction), _empty_arrays(reduction), strict=True)))


def _empty_arrays(reduction: Reduction) -> list[pa.Array]:
    return [pa.array([], column.form) for column in reduction.columns]


def _ddl_schema(reduction: Reduction) -> str:
    """Return the columns of a reduction, by position, in Spark's DDL."""
    fields = []
    for name, column in zip(_position_names(reduction), reduction.columns, strict=True):
        fields.append(f"{name} {_ddl_type(column)}")
    return ", ".join(fields)


def _ddl_type(column: Column) -> str:
    """Return the type of normalized values in Spark's DDL."""
    if column.kind is Kind.DECIMAL:
        return column.spark_type
    names = {pa.int64(): "bigint", pa.float64(): "double", pa.string(): "string", pa.bool_(): "boolean"}
    return names.get(column.form, "binary")


MAX_SHOWN_VALUES = 20


@dataclass(frozen=True)
class ExpectationResult:
    """The result of one expectation.

    Args:
        observed: figures only: values of rows are not copied to where every user can see them.
        details: plain JSON, as Great Expectations' pages show it.
    """

    ok: bool
    observed: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """How many rows, or values, there are, and which are unexpected. `missing`: those that are not judged."""

    rows: int = 0
    missing: int = 0
    unexpected: int = 0
    samples: tuple[tuple[str, int], ...] = ()  # as people read them, and how often

    def plus(self, other: Tally) -> Tally:
        samples = Counter(dict(self.samples))
        samples.update(dict(other.samples))
        return Tally(
            self.rows + other.rows,
            self.missing + other.missing,
            self.unexpected + other.unexpected,
            limit_samples(samples),
        )

    def to_result(self, mostly: Fraction) -> ExpectationResult:
        judged_rows = self.rows - self.missing
        ok = not judged_rows or Fraction(judged_rows - self.unexpected, judged_rows) >= mostly
        values: list[str] = []
        value_counts: list[dict[str, Any]] = []
        for value, times in self.samples:
            values += [value] * min(times, MAX_SHOWN_VALUES)
            value_counts.append({"value": value, "count": times})
        details = {
            "element_count": self.rows,
            "unexpected_count": self.unexpected,
            "unexpected_percent": _percent(self.unexpected, judged_rows),
            "partial_unexpected_list": values[:MAX_SHOWN_VALUES],
            "missing_count": self.missing,
            "missing_percent": _percent(self.missing, self.rows),
            "unexpected_percent_total": _percent(self.unexpected, self.rows),
            "unexpected_percent_nonmissing": _percent(self.unexpected, judged_rows),
            "partial_unexpected_counts": value_counts,
        }
        return ExpectationResult(ok, f"{self.unexpected:,} of {count(self.rows, 'row')}", details)


def limit_samples(samples: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Return the samples that are shown: the first ones by their text, however the rows were split."""
    return tuple(sorted(samples.items())[:MAX_SHOWN_VALUES])


def figure_result(ok: bool, observed: Any, is_value: bool = False) -> ExpectationResult:
    """Return the result for one figure.

    Args:
        observed: as a person reads it; None: there are no rows of which it could be.
        is_value: it is the value of a row, and no number.
    """
    if observed is None:
        text = "none"
    elif is_value:
        text = "see Data Docs"
    else:
        text = str(observed)
    return ExpectationResult(ok, text, {"observed_value": observed})


def values_result(ok: bool, values: Sequence[str], summary: str) -> ExpectationResult:
    """Return the result for several values of rows."""
    return ExpectationResult(ok, summary, {"observed_value": list(values)})


def _percent(part: int, total: int) -> float | None:
    if not total:
        return None
    return part / total * 100
