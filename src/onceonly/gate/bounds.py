"""Row counts and freshness: checked from handles and one column, without Great Expectations and without Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.sink import Sink, require_inspectable
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.gate import Fresh, Gate

Check = dict[str, Any]  # {"what", "ok", "severity", "observed"}, and "column" where it is about one


def check(gate: Gate, checkpoint: Checkpoint, sink: Sink) -> list[Check]:
    """Return the results of the bounds for one sink's rows."""
    handle = checkpoint.handles[sink.name]
    rows = handle["rows"]
    checks: list[Check] = []
    min_rows = _option_of(gate.min_rows, sink.name)
    if min_rows is not None:
        checks.append(make_critical_check(f"at least {count(min_rows, 'row')}", rows >= min_rows, f"{rows:,}"))
    max_rows = _option_of(gate.max_rows, sink.name)
    if max_rows is not None:
        checks.append(make_critical_check(f"at most {count(max_rows, 'row')}", rows <= max_rows, f"{rows:,}"))
    fresh: Fresh | None = _option_of(gate.fresh, sink.name)
    is_of_the_past = checkpoint.is_repair and checkpoint.interval is None  # records of a chain that were covered before
    if fresh and rows and not is_of_the_past:
        latest = find_newest(require_inspectable(sink).read_staged(handle), sink.name, fresh.column)
        checks.append(_check_freshness(fresh, checkpoint, latest))
    return checks


def make_critical_check(what: str, ok: bool, observed: str, **column: str) -> Check:
    """Return the result of a check whose failure fails the gate."""
    return {"what": what, "ok": ok, "severity": "critical", "observed": observed, **column}


def find_newest(rows: Any, sink: str, column: str) -> datetime | None:
    """Return the latest time in a column of a RecordBatchReader, in UTC; None if it has only nulls.

    Args:
        rows: None if only Spark can read them.
    Raises:
        InvalidPipeline: no such column, or it has no times, or only Spark can read it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if rows is None:
        raise _column_error(sink, column, "Only Spark can read its rows: a column has a type that only Spark has.")
    if column not in rows.schema.names:
        raise _column_error(sink, column, f"The rows have the columns {', '.join(rows.schema.names)}.")
    kind = rows.schema.field(column).type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise _column_error(sink, column, f"Its type is {kind}.")
    latest: datetime | None = None
    for batch in rows:
        value = pc.max(batch.column(column)).as_py()
        if value is None:
            continue
        moment = _with_zone(value)
        if latest is None or moment > latest:
            latest = moment
    return latest


def _check_freshness(fresh: Fresh, checkpoint: Checkpoint, latest: datetime | None) -> Check:
    """Compare the newest row with the end of the checkpoint's interval, or with the time of its last change."""
    until = checkpoint.interval.end if checkpoint.interval else checkpoint.updated_at
    ok = latest is not None and (until - latest).total_seconds() <= fresh.within
    observed = f"{latest:%Y-%m-%dT%H:%M:%SZ}" if latest else "only nulls"
    what = f"newest '{fresh.column}' at most {fresh.within:g} s before {until:%Y-%m-%dT%H:%M:%SZ}"
    return make_critical_check(what, ok, observed, column=fresh.column)


def _option_of(option: Any, sink: str) -> Any:
    """Return an option of the gate for one sink; None if it is not set."""
    return option.get(sink)


def _with_zone(value: date | datetime) -> datetime:
    """Return a time with a zone. A date counts as the end of its day; a time without a zone is UTC."""
    if not isinstance(value, datetime):
        return datetime.combine(value, time.max, UTC)
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


def _column_error(sink: str, column: str, why: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"gate: freshness cannot be checked: sink '{sink}' has no date or time column '{column}'.",
        why,
        "Correct Gate(fresh=…). Nothing was published.",
        code="no-such-column",
    )
