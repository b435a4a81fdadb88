"""What tasks tell Airflow's metrics: StatsD, Datadog or OpenTelemetry, as `[metrics]` of its configuration says.

    onceonly.<event>              counters of what was recorded: planned, staged, verdict, committed, republished …
    onceonly.rows                 counter of committed rows, by sink
    onceonly.checkpoint.duration  from plan to commit
    onceonly.<metric>             gauges, at each run of the recovery DAG: those of `views.metrics`, times as ages

They are tagged with `pipeline`, and `sink`, `state` or `outcome`. Plain StatsD has no tags: there the tags' values are
the end of the name (onceonly.committed.flights).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from onceonly.airflow.versions import conf, stats
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.views.metrics import Kind, Metric, Sample

if TYPE_CHECKING:
    from onceonly.runtime.factory import LiveParts
    from onceonly.statetable.table import StateTable
    from onceonly.views.summary import Lag, Summary

log = logging.getLogger(__name__)
# What a task's own process records of a checkpoint. CLAIMED and STAGED are counted by the stage task: see `staged`.
COUNTED = {
    **{each: each.value for each in (Event.PLANNED, Event.REWOUND, Event.EMPTY, Event.VERDICT, Event.APPROVED)},
    **{each: each.value for each in (Event.COMMITTING, Event.IN_DOUBT, Event.PUBLISHED, Event.GIVEN_UP)},
    **{each: each.value for each in (Event.COMMITTED, Event.ABORTED)},
    Event.REPLACED: "republished",  # its transaction was lost: the rows are written again
}
AT_ONCE = 4  # sources that are asked
WAIT = 20.0  # seconds for their answers; each is asked again by the next run


STATSD, OTEL, DATADOG, TAGGED = "statsd_on", "otel_on", "statsd_datadog_enabled", "statsd_influxdb_enabled"


def on() -> bool:
    return _is(STATSD) or _is(OTEL) or _is(DATADOG)


@contextmanager
def harmless() -> Iterator[None]:
    """Nothing that is only told to others makes a task fail."""
    try:
        yield
    except Exception as error:
        log.warning("metrics or lineage could not be sent: %r", error)


def recorded(checkpoint: Checkpoint, row: Row) -> None:
    """Count a transition that this process has recorded."""
    if row.event not in COUNTED or not on():
        return
    outcome = {"outcome": row.body["outcome"]} if row.event is Event.VERDICT else {}
    sink = {"sink": row.sink} if row.sink else {}
    _send(stats().incr, COUNTED[row.event], 1, {"pipeline": checkpoint.pipeline, **sink, **outcome})
    if row.event is Event.COMMITTED:
        _committed(checkpoint)


def staged(checkpoint: Checkpoint) -> None:
    """Count an attempt that is staged: a process of Spark has recorded it."""
    if on():
        mine = {"pipeline": checkpoint.pipeline}
        _send(stats().incr, "staged", 1, mine)
        _send(stats().incr, "retries", checkpoint.attempt - 1, mine)
        if checkpoint.bad_records:
            _send(stats().incr, "bad_records", checkpoint.bad_records, mine)


def judged(checkpoint: Checkpoint) -> None:
    """Count a verdict that a driver on the cluster has recorded."""
    if on() and checkpoint.verdict:
        _send(stats().incr, "verdict", 1, {"pipeline": checkpoint.pipeline, "outcome": checkpoint.verdict["outcome"]})


def measure(state: StateTable, parts: LiveParts) -> None:
    """Set the gauges of all pipelines. Those whose sources do not answer in time have none of their lag."""
    from onceonly.views import metrics
    from onceonly.views.summary import summaries

    if not on():
        return
    found, damaged = summaries(state, state.pipelines())
    lags, now = _lags(parts, found.values()), datetime.now(UTC)
    for sample in metrics.of_all(found.values(), damaged, now, lags):
        if sample.metric.kind is not Kind.COUNTER:
            _send(stats().gauge, _name(sample.metric), _value(sample, now), sample.labels)


def _lags(parts: LiveParts, found: Iterable[Summary]) -> dict[str, Lag]:
    from onceonly.runtime.lag import behind

    pool = ThreadPoolExecutor(AT_ONCE)
    asked = {each.name: pool.submit(partial(behind, parts, each)) for each in found}
    wait(asked.values(), timeout=WAIT)
    pool.shutdown(wait=False, cancel_futures=True)
    return {name: each.result() for name, each in asked.items() if each.done() and not each.cancelled()}


def _committed(checkpoint: Checkpoint) -> None:
    from onceonly.views import queries

    mine = {"pipeline": checkpoint.pipeline}
    _send(stats().timing, "checkpoint.duration", checkpoint.updated_at - checkpoint.planned_at, mine)
    for sink, rows in queries.rows_by_sink(checkpoint).items():
        if rows:
            _send(stats().incr, "rows", rows, {**mine, "sink": sink})


def _name(metric: Metric) -> str:
    return f"{metric.name}_age" if metric.kind is Kind.TIME else metric.name


def _value(sample: Sample, now: datetime) -> float:
    return now.timestamp() - sample.value if sample.metric.kind is Kind.TIME else float(sample.value)


def _send(how: Callable[..., None], name: str, value: object, tags: Mapping[str, str]) -> None:
    with harmless():
        if _is(STATSD) and not _is(TAGGED) and not _is(DATADOG):
            how(".".join(("onceonly", name, *tags.values())), value)
        else:
            how(f"onceonly.{name}", value, tags=dict(tags))


def _is(option: str) -> bool:
    return bool(conf.getboolean("metrics", option, fallback=False))
