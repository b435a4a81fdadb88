"""Row counts and freshness: checked from handles and one column, without Great Expectations and without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.sink import Sink, inspectable
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.gate import Fresh, Gate

Check = dict[str, Any]  # {"what", "ok", "severity", "observed"}, and "column" where it is about one


def check(gate: Gate, checkpoint: Checkpoint, sink: Sink) -> list[Check]:
    """The results of the bounds for one sink's rows."""
    handle = checkpoint.handles[sink.name]
    rows, found = handle["rows"], []
    if (least := _of(gate.min_rows, sink.name)) is not None:
        found.append(critical(f"at least {count(least, 'row')}", rows >= least, f"{rows:,}"))
    if (most := _of(gate.max_rows, sink.name)) is not None:
        found.append(critical(f"at most {count(most, 'row')}", rows <= most, f"{rows:,}"))
    fresh: Fresh | None = _of(gate.fresh, sink.name)
    if fresh and rows:
        found.append(_fresh(fresh, checkpoint, newest(inspectable(sink).staged(handle), sink.name, fresh.column)))
    return found


def critical(what: str, ok: bool, observed: str, **column: str) -> Check:
    return {"what": what, "ok": ok, "severity": "critical", "observed": observed, **column}


def newest(rows: Any, sink: str, column: str) -> datetime | None:
    """The latest time in a column of a RecordBatchReader, in UTC; None if it has only nulls.

    Args:
        rows: None if only Spark can read them.
    Raises:
        InvalidPipeline: no such column, or it has no times, or only Spark can read it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows is None:
        raise _no_times(sink, column, "Only Spark can read its rows: a column has a type that only Spark has.")
    if column not in rows.schema.names:
        raise _no_times(sink, column, f"The rows have the columns {', '.join(rows.schema.names)}.")
    kind = rows.schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise _no_times(sink, column, f"Its type is {kind}.")
    found = (pc.max(batch.column(column)).as_py() for batch in rows)
    return max((_time(value) for value in found if value is not None), default=None)


def _fresh(fresh: Fresh, checkpoint: Checkpoint, latest: datetime | None) -> Check:
    until = checkpoint.interval.end if checkpoint.interval else checkpoint.updated_at
    ok = latest is not None and (until - latest).total_seconds() <= fresh.within
    observed = f"{latest:%Y-%m-%dT%H:%M:%SZ}" if latest else "only nulls"
    what = f"newest '{fresh.column}' at most {fresh.within:g} s before {until:%Y-%m-%dT%H:%M:%SZ}"
    return critical(what, ok, observed, column=fresh.column)


def _of(bounds: Any, sink: str) -> Any:
    return bounds.get(sink)


def _time(value: date | datetime) -> datetime:
    """A date counts as the end of its day; a time without a zone is UTC."""
    if not isinstance(value, datetime):
        return datetime.combine(value, time.max, UTC)
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _no_times(sink: str, column: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: freshness cannot be checked: sink '{sink}' has no date or time column '{column}'.",
        why,
        "Correct Gate(fresh=…). Nothing was published.",
    )
