"""From the measured slopes to sizes that this machine cannot hold: a table for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks import results
from benchmarks.figures import plain

BILLION, PARTITIONS, PIPELINES = 1_000_000_000, 10_000, 1_000
HOUR, DAY = 3600.0, 24 * 3600.0
TIMEOUT = 900.0  # seconds: the default of KafkaSink(transaction_timeout=…)
KINDS = ("Kafka → Kafka", "Kafka → Delta")
STEPS = ("plan", "stage", "commit")
HEAD = "| | rests on | makes | breaks |\n| --- | --- | --- | --- |\n"
Line = tuple[float, float]  # seconds that every checkpoint takes, and those of each further record or partition


def table() -> str:
    rows = [*_records(), *_partitions(), *_pipelines(), *_together()]
    return HEAD + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def line(points: Mapping[float, float]) -> Line | None:
    """Through the last two points: what is fixed, and the slope."""
    if len(points) < 2:
        return None
    (near, low), (far, high) = sorted(points.items())[-2:]
    slope = max((high - low) / (far - near), 0.0)
    return max(high - slope * far, 0.0), slope


def _points(name: str, measure: str, series: str = "") -> dict[float, float]:
    found: list[dict[str, Any]] = (results.read(name) or {"rows": []})["rows"]
    chosen = [row for row in found if row["measure"] == measure and row.get("series", "") == series and "x" in row]
    return {row["x"]: row["median"] for row in chosen}


def _records() -> Iterator[tuple[str, ...]]:
    for kind in KINDS:
        found = line(_points("growth", "one checkpoint", kind))
        what = f"a billion records a day, {kind}, in 24 checkpoints"
        if not found or not found[1]:
            yield what, "`growth`", "not measured", ""
            continue
        fixed, slope = found
        minutes, most = (fixed + slope * BILLION / 24) / 60, (HOUR - fixed) / slope * 24 / BILLION
        broken = f"{plain(most)} billion a day keep one such machine busy all the time"
        yield what, f"{plain(1e6 * slope)} µs a record, {plain(fixed)} s a checkpoint", _share(minutes), broken


def _share(minutes: float) -> str:
    return f"{plain(minutes)} min of each hour"


def _partitions() -> Iterator[tuple[str, ...]]:
    found = {step: line(_points("partitions", "one checkpoint", step)) for step in STEPS}
    what = f"{PARTITIONS:,} partitions, and as many transactions"
    known = {step: each for step, each in found.items() if each}
    if len(known) < len(STEPS):
        yield what, "`partitions`", "not measured", ""
        return
    slopes = ", ".join(f"{step} {plain(1000 * slope)} ms" for step, (_, slope) in known.items())
    took = {step: fixed + slope * PARTITIONS for step, (fixed, slope) in known.items()}
    made = ", ".join(f"{step} {plain(seconds)} s" for step, seconds in took.items())
    yield what, f"for each further one: {slopes}", made, _outlives(known)


def _outlives(known: Mapping[str, Line]) -> str:
    """A transaction begins with its task and has to be open until the commit has ended it."""
    fixed, slope = (sum(known[step][at] for step in ("stage", "commit")) for at in (0, 1))
    if not slope:
        return "nothing before the memory of the driver"
    most = (TIMEOUT - fixed) / slope
    return (
        f"transactions time out (default of {TIMEOUT:,.0f} s) from {plain(round(most))} on; what timed out is written "
        "again at commit, so from there on mode='late' costs less"
    )


def _pipelines() -> Iterator[tuple[str, ...]]:
    at_once = _points("pipelines", "throughput")
    speed = at_once.get(64)
    what = f"{PIPELINES:,} pipelines, a checkpoint of each every hour: the state table alone"
    if not speed:
        yield what, "`pipelines`", "not measured", ""
        return
    most = plain(round(speed * HOUR))
    yield (
        what,
        f"{plain(speed)} checkpoints a second, 64 at once",
        f"{plain(PIPELINES / speed)} s of each hour",
        f"{most} pipelines on one state table; what looks at all of them, sooner: status "
        f"{_all('status of all pipelines')}, recovery with nothing to do {_all('recovery, nothing to do')} for 1,000",
    )


def _all(measure: str) -> str:
    found = _points("many_pipelines", measure).get(PIPELINES)
    return "not measured" if found is None else f"{plain(found)} s"


def _together() -> Iterator[tuple[str, ...]]:
    """A billion records a day, spread over all pipelines: what every checkpoint takes weighs more than its records."""
    what = f"both: {PIPELINES:,} pipelines share a billion records a day, a checkpoint of each every hour"
    found = line(_points("growth", "one checkpoint", KINDS[0]))
    if not found:
        yield what, "`growth`", "not measured", ""
        return
    fixed, slope = found
    rows, times = BILLION / 24 / PIPELINES, 24 * PIPELINES
    busy = times * (fixed + slope * rows) / DAY
    yield (
        what,
        f"{plain(fixed)} s and {plain(round(rows))} records a checkpoint, one after the other in a warm session",
        f"{plain(busy)} such machines",
        "the fixed part, first: "
        + (f"{plain(fixed / (fixed + slope * rows) * 100)} % of it" if fixed else "none seen"),
    )
