"""How values are written for people: short, and the same on the command line and in Airflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval, TopicRange, has_data

GAPS = 5  # that are shown one by one, the newest


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def age(since: datetime) -> str:
    return span(datetime.now(UTC) - since)


def span(length: timedelta) -> str:
    """'42 s', '3 min', '5 h', '2 d'."""
    seconds = max(0, int(length.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def place(uri: str) -> str:
    """A path as one would type it here."""
    try:
        return str(Path(uri).relative_to(Path.cwd()))
    except ValueError:
        return uri


def owner(key: str) -> str:
    """An owner key without what only the machine needs."""
    kind, *process = key.split(":")
    return f"cli {process[0]}:{process[-2]}" if kind == "cli" and len(process) > 2 else key.replace(":", " ", 1)


def range_text(range_: TopicRange) -> str:
    """What a checkpoint covers, short: offsets have gaps, so this is not a number of records."""
    parts = len([p for p, (start, end) in range_.partitions.items() if end > start])
    return f"{range_.span:,} offsets of '{range_.topic}' in {parts} partition{'s' if parts != 1 else ''}"


def covers(checkpoint: Checkpoint) -> str:
    if checkpoint.skipped is not None:
        return f"nothing (skipped by {checkpoint.owner}: {checkpoint.skipped})"
    if not has_data(checkpoint.ranges):
        return "nothing (no records)"
    return ", ".join(range_text(range_) for range_ in checkpoint.ranges)


def gap(pipeline: str, found: Interval) -> str:
    """What is left out, why that may be, and what to do."""
    start, end = (f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (found.start, found.end))
    return (
        f"{pipeline}: no checkpoint covers {found}.\n"
        "Its runs are still to come; or there were none, because the scheduler was down or the DAG paused with "
        "catchup=False.\n"
        f"Run what is missing (airflow backfill create, or onceonly run FILE.py:NAME --interval {start} {end}); if it "
        f"is left out on purpose: onceonly skip {pipeline} --interval {start} {end} --reason …"
    )


def gaps(pipeline: str, found: Sequence[Interval]) -> list[str]:
    """The same, oldest first, and how many more there are."""
    told = [gap(pipeline, each) for each in found[-GAPS:]]
    more = len(found) - len(told)
    return (
        [f"{pipeline}: {number(more)} more before these (onceonly status {pipeline} --json)", *told] if more else told
    )


def staged(handle: Mapping[str, Any]) -> str:
    """'6,000 rows in 30 files', as far as the handle says it."""
    rows = f"{number(handle.get('rows'))} rows"
    for name, what in (("files", "file"), ("parts", "transaction" if handle.get("mode") == "staged" else "spool file")):
        if name in handle:
            count = handle[name] if isinstance(handle[name], int) else len(handle[name])
            return f"{rows} in {count} {what}{'s' if count != 1 else ''}"
    return rows


def target(handle: Mapping[str, Any]) -> str:
    """Where the rows go: a table's or folder's place, or topics."""
    if "topics" in handle:
        return ", ".join(handle["topics"])
    return place(str(handle.get("uri") or handle.get("target") or "?"))


def verdict(found: Mapping[str, Any] | None) -> list[str]:
    """'passed', 'sink delays: 3 checks on 40 rows in process', and each check that is not ok."""
    if found is None:
        return ["not asked"]
    sinks = [
        f"{sink}: {len(seen['checks'])} checks on {number(seen['rows'])} rows, {seen['path']}"
        for sink, seen in found["sinks"].items()
    ]
    bad = [
        f"{each['severity']}: {each['what']} ({each['observed']})"
        for seen in found["sinks"].values()
        for each in seen["checks"]
        if not each["ok"]
    ]
    return [found["outcome"], *sinks, *bad]
