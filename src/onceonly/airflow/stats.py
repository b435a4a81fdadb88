"""Airflow's metrics of tasks: for StatsD, Datadog or OpenTelemetry, as `[metrics]` of its configuration says.

    onceonly.<event>              counters of what was recorded: planned, staged, verdict, committed, republished …
    onceonly.rows                 counter of committed rows, by sink
    onceonly.checkpoint.duration  from plan to commit
    onceonly.<metric>             gauges, at each run of the recovery DAG: those of `views.metrics`, times as ages

They are tagged with `pipeline`, and `sink`, `state` or `outcome`. Plain StatsD has no tags: there the tags' values are
the end of the name (onceonly.committed.flights).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from onceonly.airflow.versions import conf, stats
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.views.metrics import Kind, Metric, Sample

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices
    from onceonly.statetable.table import StateTable

log = logging.getLogger(__name__)
# What a task's own process records of a checkpoint. The stage task counts CLAIMED and STAGED: see `count_staged`.
COUNTERS = {
    Event.PLANNED: "planned",
    Event.REWOUND: "rewound",
    Event.EMPTY: "empty",
    Event.VERDICT: "verdict",
    Event.APPROVED: "approved",
    Event.COMMITTING: "committing",
    Event.IN_DOUBT: "in_doubt",
    Event.REPLACED: "republished",  # its transaction was lost: the rows are written again
    Event.PUBLISHED: "published",
    Event.GIVEN_UP: "given_up",
    Event.COMMITTED: "committed",
    Event.ABORTED: "aborted",
}
LAG_TIMEOUT_SECONDS = 20.0  # for the answers of all sources; each is asked again by the next run
STATSD, OTEL, DATADOG, TAGGED = "statsd_on", "otel_on", "statsd_datadog_enabled", "statsd_influxdb_enabled"


def is_enabled() -> bool:
    """Whether Airflow's configuration sends metrics anywhere."""
    return _is_on(STATSD) or _is_on(OTEL) or _is_on(DATADOG)


@contextmanager
def log_errors() -> Iterator[None]:
    """Log any error of the block: a task does not fail because metrics or lineage cannot be sent."""
    try:
        yield
    except Exception as error:
        log.warning("metrics or lineage could not be sent: %r", error)


def count_transition(checkpoint: Checkpoint, row: Row) -> None:
    """Count a transition that this process has recorded."""
    if row.event not in COUNTERS or not is_enabled():
        return
    tags = {"pipeline": checkpoint.pipeline}
    if row.sink:
        tags["sink"] = row.sink
    if row.event is Event.VERDICT:
        tags["outcome"] = row.body["outcome"]
    _send(stats().incr, COUNTERS[row.event], 1, tags)
    if row.event is Event.COMMITTED:
        _send_commit(checkpoint)


def count_staged(checkpoint: Checkpoint) -> None:
    """Count an attempt that is staged: a process of Spark has recorded it."""
    if not is_enabled():
        return
    tags = {"pipeline": checkpoint.pipeline}
    _send(stats().incr, "staged", 1, tags)
    _send(stats().incr, "retries", checkpoint.attempt - 1, tags)
    if checkpoint.bad_records:
        _send(stats().incr, "bad_records", checkpoint.bad_records, tags)


def count_verdict(checkpoint: Checkpoint) -> None:
    """Count a verdict that a driver on the cluster has recorded."""
    if is_enabled() and checkpoint.verdict:
        tags = {"pipeline": checkpoint.pipeline, "outcome": checkpoint.verdict["outcome"]}
        _send(stats().incr, "verdict", 1, tags)


def measure_pipelines(state_table: StateTable, services: LiveServices) -> None:
    """Set the gauges of all pipelines. Those whose sources do not answer in time have none of their lag."""
    from onceonly.runtime import live_services
    from onceonly.views import metrics
    from onceonly.views.summary import read_summaries
    from onceonly.views.verified import read_last_results

    if not is_enabled():
        return
    by_name, damaged = read_summaries(state_table, state_table.pipelines())
    lags = live_services.measure_lags(services, by_name.values(), LAG_TIMEOUT_SECONDS)
    now = datetime.now(UTC)
    results = read_last_results(state_table.uri)
    for sample in metrics.list_samples(by_name.values(), damaged, now, lags, results):
        if sample.metric.kind is not Kind.COUNTER:
            _send(stats().gauge, _gauge_name(sample.metric), _gauge_value(sample, now), sample.labels)


def _send_commit(checkpoint: Checkpoint) -> None:
    """Send how long a checkpoint has taken from plan to commit, and its rows."""
    from onceonly.views import queries

    tags = {"pipeline": checkpoint.pipeline}
    _send(stats().timing, "checkpoint.duration", checkpoint.updated_at - checkpoint.planned_at, tags)
    for sink, rows in queries.rows_by_sink(checkpoint).items():
        if rows:
            _send(stats().incr, "rows", rows, {**tags, "sink": sink})


def _gauge_name(metric: Metric) -> str:
    return f"{metric.name}_age" if metric.kind is Kind.TIME else metric.name


def _gauge_value(sample: Sample, now: datetime) -> float:
    """Return the value of a gauge; of a time its age, in seconds."""
    if sample.metric.kind is Kind.TIME:
        return now.timestamp() - sample.value
    return float(sample.value)


def _send(report: Callable[..., None], name: str, value: object, tags: Mapping[str, str]) -> None:
    """Send a value by one of the calls of Airflow's `Stats`; plain StatsD has no tags, so their values end the name."""
    with log_errors():
        if _is_on(STATSD) and not _is_on(TAGGED) and not _is_on(DATADOG):
            report(".".join(("onceonly", name, *tags.values())), value)
        else:
            report(f"onceonly.{name}", value, tags=dict(tags))


def _is_on(option: str) -> bool:
    return bool(conf.getboolean("metrics", option, fallback=False))
