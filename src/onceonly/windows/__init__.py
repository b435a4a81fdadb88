"""Event-time windows over checkpoints: open windows are kept in the pipeline's state, and each is emitted once.

    hourly = Windows(time="at", key=["page"], by=Tumbling(HOUR), values={"views": count()}, lateness=10 * MINUTE)

    def transform(batch, state):
        seen = hourly.add(batch.select(…), state)
        return {"views": seen.closed, "late": seen.late}, seen.changes

The watermark is the latest time seen minus the lateness. It never goes back. A row that is dated too far ahead of its
checkpoint does not move it (`bound`): it closes nothing, and waits in its own window. A window is closed by the first
checkpoint at whose end the watermark has reached the window's end. A row is late if all its windows were closed by
earlier checkpoints, or if it has no time. Windows start at multiples of their step since 1970-01-01T00:00Z.
Source: Akidau et al., The Dataflow Model (2015); Flink's WindowOperator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Literal

from onceonly.errors import InvalidPipeline
from onceonly.unix_time import MICROSECOND, UNIX_EPOCH
from onceonly.windows import state as window_state

__all__ = [
    "Seen",
    "Sessions",
    "Sliding",
    "Tumbling",
    "Windows",
    "count",
    "least",
    "most",
    "state_key",
    "state_schema",
    "sum_of",
]

NOWHERE = "2262-01-01 00:00:00.000001"  # window_start of the state's row with the watermark; no window has it
MERGE_FUNCTIONS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def state_schema(key: str, values: str) -> str:
    """Return the schema for the `StateSink` from those of key and values.

    Such as state_schema("page STRING", "views BIGINT").
    """
    return f"{key}, window_start TIMESTAMP, window_end TIMESTAMP, {values}, watermark TIMESTAMP"


def state_key(*key: str) -> list[str]:
    """Return the key for the `StateSink`."""
    return [*key, "window_start"]


@dataclass(frozen=True)
class Value:
    """An aggregate that can be continued in a later checkpoint: see `count`, `sum_of`, `least`, `most`."""

    kind: Literal["count", "sum", "min", "max"]
    column: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} of {self.column or 'rows'}"


def count(column: str | None = None) -> Value:
    """Return the aggregate that counts rows, or those in which the column is not null."""
    return Value("count", column)


def sum_of(column: str) -> Value:
    return Value("sum", column)


def least(column: str) -> Value:
    return Value("min", column)


def most(column: str) -> Value:
    return Value("max", column)


@dataclass(frozen=True)
class Sliding:
    """Windows of `length`, one starting at every `step`."""

    length: timedelta
    step: timedelta

    def __post_init__(self) -> None:
        if not timedelta(0) < self.step <= self.length:
            raise InvalidPipeline(
                f"windows of {self.length} every {self.step} leave gaps, or have no length.",
                todo="Use a step above 0 and no longer than the length.",
                code="option-invalid",
            )

    def __str__(self) -> str:
        return f"windows of {self.length} every {self.step}"


def Tumbling(length: timedelta) -> Sliding:
    """Return windows of `length` that follow each other without overlap."""
    return Sliding(length, length)


@dataclass(frozen=True)
class Sessions:
    """Windows that end when no row has come for `gap`."""

    gap: timedelta

    def __post_init__(self) -> None:
        if self.gap <= timedelta(0):
            raise InvalidPipeline(
                f"sessions with a gap of {self.gap} have no length.", todo="Use a gap above 0.", code="option-invalid"
            )

    def __str__(self) -> str:
        return f"sessions with a gap of {self.gap}"


@dataclass(frozen=True)
class Seen:
    """The result of one checkpoint, as DataFrames.

    Args:
        closed: key, window_start, window_end and values of each window that this checkpoint closes.
        late: late rows, unchanged.
        changes: for the `StateSink`.
        ahead: number of rows that were dated too far ahead to move the watermark.
    """

    closed: Any
    late: Any
    changes: Any
    ahead: int = 0


@dataclass(frozen=True)
class Windows:
    """Aggregates by key and window.

    Args:
        time: a TIMESTAMP column.
        key: columns. The StateSink refuses a row with a null in one of them.
        values: name -> aggregate.
        lateness: how far behind the latest time a row may be. Allow for a source partition that is ahead of others.
        ahead: how far after the end of its interval, or after it was planned, rows of a checkpoint move the watermark.
    """

    time: str
    key: Sequence[str]
    by: Sliding | Sessions
    values: Mapping[str, Value]
    lateness: timedelta = timedelta(0)
    ahead: timedelta = timedelta(hours=1)

    def add(self, rows: Any, state: Any, watermark: datetime | None = None) -> Seen:
        """Add `rows` to the open windows in `state`.

        Args:
            watermark: timezone-aware; used instead of the one from the rows, however far ahead it is.
        Raises:
            InvalidPipeline: the watermark would go back, the open windows have another definition, or a value would
                not fit the state's type.
        """
        from pyspark.sql import functions as F

        window_state.check_types(rows.select(*self._stored_columns()), state)
        window_state.check_same(state, _open_windows(state), str(self))
        before = state.agg(F.max(F.unix_micros("watermark"))).first()[0]
        now, rows_ahead = self._watermark(rows, before, watermark, window_state.read_latest_time(state, self.ahead))
        pieces, late = self._split_rows(rows, state, before)
        windows = self._merge_pieces(pieces)
        closed = F.unix_micros("window_end") <= F.lit(now).cast("bigint")
        changes = self._changes(windows, closed, state, before, now)
        return Seen(
            closed=windows.where(closed).select(*self._columns),
            late=late,
            changes=window_state.mark_changes(changes, str(self), window_state.make_note(rows_ahead, self.ahead)),
            ahead=rows_ahead,
        )

    def __str__(self) -> str:
        """Their definition, without lateness and ahead, which may change at any time."""
        values = ", ".join(f"{name} = {value}" for name, value in sorted(self.values.items()))
        return f"{self.by} of '{self.time}' by {', '.join(self.key)}, with {values}"

    def _stored_columns(self) -> list[Any]:
        """Return the columns that are stored in the state, under their names there."""
        from pyspark.sql import functions as F

        columns = [F.col(name) for name in self.key]
        for name, value in self.values.items():
            columns.append(self._value(value).alias(name))
        return columns

    @property
    def _columns(self) -> list[str]:
        return [*self.key, "window_start", "window_end", *self.values]

    def _watermark(
        self, rows: Any, before: int | None, passed: datetime | None, limit: int | None
    ) -> tuple[int | None, int]:
        """Return the watermark in microseconds since 1970, and how many rows are dated after the limit.

        The watermark is None before the first row.
        """
        from pyspark.sql import functions as F

        if passed is not None:
            return _to_microseconds(passed, before), 0
        at = F.unix_micros(self.time)
        is_ahead = F.lit(False)
        if limit is not None:
            is_ahead = at > F.lit(limit)
        moving = F.max(F.when(~is_ahead, at))
        reached, rows_ahead = rows.agg(moving, F.count(F.when(is_ahead, True))).first()
        candidates = []
        if reached is not None:
            candidates.append(reached - self.lateness // MICROSECOND)
        if before is not None:
            candidates.append(before)
        return max(candidates, default=None), rows_ahead

    def _split_rows(self, rows: Any, state: Any, before: int | None) -> tuple[Any, Any]:
        """Return the rows by window together with the open windows; and the late rows."""
        open_windows = _open_windows(state)
        if isinstance(self.by, Sessions):
            return self._assign_to_sessions(rows, open_windows, before)
        return self._assign_to_windows(rows, open_windows, before)

    def _assign_to_windows(self, rows: Any, open_windows: Any, before: int | None) -> tuple[Any, Any]:
        from pyspark.sql import functions as F

        assert isinstance(self.by, Sliding)
        length, step = self.by.length // MICROSECOND, self.by.step // MICROSECOND
        at = F.unix_micros(self.time)
        last = at - F.pmod(at, F.lit(step))  # start of the last window that contains the row
        room = F.lit(length - 1) - (at - last)  # how much earlier than `last` a window that contains it may start
        starts = F.explode(F.sequence(last - (room - F.pmod(room, F.lit(step))), last, F.lit(step)))
        late = _is_late(last + F.lit(length), before)
        inside = rows.where(~late).select("*", starts.alias("_start"))
        start, end = F.col("_start"), F.col("_start") + F.lit(length)
        if before is not None:
            inside = inside.where(end > F.lit(before))
        new_pieces = self._to_single_windows(inside, open_windows, start, end)
        return new_pieces.unionByName(_mark_origin(open_windows)), rows.where(late)

    def _assign_to_sessions(self, rows: Any, open_windows: Any, before: int | None) -> tuple[Any, Any]:
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        assert isinstance(self.by, Sessions)
        at = F.unix_micros(self.time)
        timed = rows.where(F.col(self.time).isNotNull())
        end = at + F.lit(self.by.gap // MICROSECOND)
        new_pieces = self._to_single_windows(timed, open_windows, at, end, F.struct(*rows.columns))
        pieces = new_pieces.unionByName(_mark_origin(open_windows), allowMissingColumns=True)
        in_order = Window.partitionBy(*self.key).orderBy("window_start", "window_end")
        reached = F.max("window_end").over(in_order.rowsBetween(Window.unboundedPreceding, -1))
        begins = (reached.isNull() | (F.col("window_start") > reached)).cast("int")
        session = Window.partitionBy(*self.key, "_session")
        numbered = pieces.withColumn("_begins", begins).withColumn("_session", F.sum("_begins").over(in_order))
        with_end = numbered.withColumn("_end", F.max("window_end").over(session))
        with_start = with_end.withColumn("window_start", F.min("window_start").over(session))
        sessions = with_start.withColumn("window_end", F.col("_end"))
        late = F.lit(False)
        if before is not None:
            late = F.unix_micros("window_end") <= F.lit(before)
        untimed = rows.where(F.col(self.time).isNull())
        late_rows = sessions.where(late & F.col("_from").isNull()).select("_row.*").unionByName(untimed)
        return sessions.where(~late).drop("_row", "_begins", "_session", "_end"), late_rows

    def _to_single_windows(self, rows: Any, open_windows: Any, start: Any, end: Any, row: Any = None) -> Any:
        """Return each row as a window of its own, in the types of the state."""
        from pyspark.sql import functions as F

        kinds = _column_kinds(open_windows)
        columns = [F.col(name).cast(kinds[name]).alias(name) for name in self.key]
        columns.append(F.timestamp_micros(start).alias("window_start"))
        columns.append(F.timestamp_micros(end).alias("window_end"))
        for name, value in self.values.items():
            columns.append(self._value(value).cast(kinds[name]).alias(name))
        columns.append(F.lit(None).cast("timestamp").alias("_from"))
        if row is not None:
            columns.append(row.alias("_row"))
        return rows.select(*columns)

    def _value(self, value: Value) -> Any:
        from pyspark.sql import functions as F

        if value.kind != "count":
            return F.col(value.column or "")
        if value.column is None:
            return F.lit(1)
        return F.col(value.column).isNotNull().cast("int")

    def _merge_pieces(self, pieces: Any) -> Any:
        """Return one row per window.

        `_from`: starts under which the state has parts of it; `_new`: whether a row is new.
        """
        from pyspark.sql import functions as F

        kinds = _column_kinds(pieces)
        values = []
        for name, value in self.values.items():
            merge = getattr(F, MERGE_FUNCTIONS[value.kind])
            values.append(merge(name).cast(kinds[name]).alias(name))
        return pieces.groupBy(*self.key, "window_start", "window_end").agg(
            *values, F.collect_set("_from").alias("_from"), F.bool_or(F.col("_from").isNull()).alias("_new")
        )

    def _changes(self, windows: Any, closed: Any, state: Any, before: int | None, now: int | None) -> Any:
        """Return the changes of the state: open windows with new rows, windows to delete, and the new watermark.

        Args:
            before, now: the watermark before and after this checkpoint.
        """
        from pyspark.sql import functions as F

        def blank(name: str) -> Any:
            return F.lit(None).cast(state.schema[name].dataType).alias(name)

        is_open = F.coalesce(~closed, F.lit(True))
        updated = windows.where(is_open & F.col("_new")).select(
            *self._columns, blank("watermark"), F.lit(False).alias("deleted")
        )
        old = windows.select("*", F.explode("_from").alias("_old"))
        deleted = old.where(~is_open | (F.col("_old") != F.col("window_start"))).select(
            *self.key,
            F.col("_old").alias("window_start"),
            *(blank(name) for name in ("window_end", *self.values, "watermark")),
            F.lit(True).alias("deleted"),
        )
        parts = [updated, deleted]
        if now is not None and now != before:
            parts.append(_watermark_row(state, self.key, now))
        return reduce(lambda one, other: one.unionByName(other), parts)


def _to_microseconds(watermark: datetime, before: int | None) -> int:
    """Return a watermark that the transform has passed, in microseconds.

    Raises:
        InvalidPipeline: it would go back.
    """
    microseconds = (watermark - UNIX_EPOCH) // MICROSECOND
    if before is not None and microseconds < before:
        was = datetime.fromtimestamp(before / 1e6, UTC)
        raise InvalidPipeline(
            f"the watermark would go back from {was:%Y-%m-%dT%H:%M:%SZ} to {watermark:%Y-%m-%dT%H:%M:%SZ}.",
            "Windows before it are closed and their results published.",
            "Pass a watermark that never decreases. Nothing was staged.",
            code="watermark-decreased",
        )
    return microseconds


def _column_kinds(frame: Any) -> dict[str, Any]:
    """Return the Spark types of a DataFrame's columns by name."""
    return {field.name: field.dataType for field in frame.schema.fields}


def _open_windows(state: Any) -> Any:
    """Return the state without the row of the watermark."""
    return state.where(f"window_start != TIMESTAMP '{NOWHERE}'").drop("watermark")


def _mark_origin(state: Any) -> Any:
    """Add the column `_from`: the start under which the state has the window."""
    from pyspark.sql import functions as F

    return state.withColumn("_from", F.col("window_start"))


def _is_late(last_end: Any, before: int | None) -> Any:
    from pyspark.sql import functions as F

    if before is None:
        return last_end.isNull()
    return F.coalesce(last_end <= F.lit(before), F.lit(True))


def _watermark_row(state: Any, key: Sequence[str], watermark: int) -> Any:
    """Return the state's row with the watermark. Every row of state needs a key, so it has the zero of each type."""
    from pyspark.sql import functions as F

    def column(field: Any) -> Any:
        name, kind = field.name, field.dataType
        if name in key:
            zero = {"string": "", "date": "1970-01-01", "timestamp": "1970-01-01", "boolean": "false"}
            return F.lit(zero.get(kind.typeName(), "0")).cast(kind).alias(name)
        if name == "window_start":
            return F.lit(NOWHERE).cast("timestamp").alias(name)
        if name == "watermark":
            return F.timestamp_micros(F.lit(watermark)).alias(name)
        return F.lit(None).cast(kind).alias(name)

    columns = list(map(column, state.schema.fields))
    return state.sparkSession.range(1).select(*columns, F.lit(False).alias("deleted"))
