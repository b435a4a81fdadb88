"""Metrics of pipelines, for whoever collects them: Prometheus, in its text format, or Airflow's own metrics.

The labels are `pipeline`, and where it is named `state` or `sink`: their number is known, and no value is a secret.

Source: Prometheus' docs, "Exposition formats" (text format 0.0.4) and "Metric and label naming".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import formatting
from onceonly.views.summary import Lag, PendingSink, Summary, list_pending

if TYPE_CHECKING:
    from onceonly.verification.archive import LastResult


class Kind(Enum):
    GAUGE = "gauge"
    COUNTER = "counter"
    TIME = "time"  # when something happened, in seconds since 1970: how long ago that is, grows by itself


@dataclass(frozen=True)
class Metric:
    """A metric of pipelines. Each collector makes its own name of `name`, such as a prefix and a unit."""

    name: str
    kind: Kind
    meaning: str


@dataclass(frozen=True)
class Sample:
    """The value of a metric at one moment, for one set of labels."""

    metric: Metric
    labels: Mapping[str, str]
    value: float


PROMETHEUS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PROMETHEUS_SUFFIXES = {Kind.GAUGE: "", Kind.COUNTER: "_total", Kind.TIME: "_timestamp_seconds"}

NO_RESULTS: Mapping[str, LastResult] = MappingProxyType({})
IN_DOUBT = "in_doubt"
UNSETTLED = ("planned", "staged", formatting.HELD, formatting.REFUSED, "committing", IN_DOUBT, "aborting")

READABLE = Metric("pipeline_readable", Kind.GAUGE, "1, or 0 if the rows of the state table are damaged.")
EPOCHS = Metric("epochs", Kind.COUNTER, "Number of checkpoints ever planned.")
CHECKPOINTS = Metric("checkpoints", Kind.GAUGE, "Unsettled checkpoints by state.")
UNSETTLED_SINCE = Metric("oldest_unsettled", Kind.TIME, "When the oldest unsettled checkpoint was planned.")
ABORTED = Metric("last_checkpoint_aborted", Kind.GAUGE, "1 if the last checkpoint was aborted, else 0.")
UNFIT = Metric("to_be_staged_again", Kind.GAUGE, "Checkpoints that could not be published any more, and are missing.")
ATTEMPTS = Metric("last_checkpoint_attempts", Kind.GAUGE, "How many times staging the last checkpoint was started.")
COMMITTED_AT = Metric("last_commit", Kind.TIME, "When the last checkpoint was committed, repairs included.")
ROWS = Metric("last_commit_rows", Kind.GAUGE, "Rows of its records, as they are in force now, by sink.")
BAD = Metric("last_commit_bad_records", Kind.GAUGE, "Records of it that were dropped or became dead letters.")
PUBLISHED = Metric("published_until", Kind.TIME, "Up to when the published rows are complete.")
GAPS = Metric("gaps", Kind.GAUGE, "Number of intervals that are missing: neither published nor skipped.")
MISSING = Metric("missing_checkpoints", Kind.GAUGE, "Checkpoints that the target has lost, by sink.")
OPENED = Metric("oldest_transaction", Kind.TIME, "When the oldest open Kafka transaction was opened, by sink.")
USED = Metric("transaction_timeout_used_ratio", Kind.GAUGE, "The share of its time-out that has passed, by sink.")
VERIFIED_AT = Metric("last_verification", Kind.TIME, "When its last verification began.")
VERIFIED_UNTIL = Metric("verified_until", Kind.TIME, "Up to when all was right, or was so when last checked.")
FOUND_WRONG = Metric("verified_wrong", Kind.GAUGE, "1 if the last verification found something wrong, else 0.")
UNKNOWABLE = Metric("verified_unknown_checkpoints", Kind.GAUGE, "Checkpoints that can no longer be verified.")
SOURCE_UP = Metric("source_up", Kind.GAUGE, "1 if the source answered, else 0.")
LAG = Metric("lag_records", Kind.GAUGE, "Offsets of the topics that no committed checkpoint covers.")
LAG_HELD = Metric("lag_held_records", Kind.GAUGE, "Those of them that lie behind a producer's open transaction.")
LAG_VERSIONS = Metric("lag_versions", Kind.GAUGE, "Versions of tables, or decisions of folders, that none covers.")
METRICS = (
    READABLE,
    EPOCHS,
    CHECKPOINTS,
    UNSETTLED_SINCE,
    ABORTED,
    UNFIT,
    ATTEMPTS,
    COMMITTED_AT,
    ROWS,
    BAD,
    PUBLISHED,
    GAPS,
    MISSING,
    OPENED,
    USED,
    VERIFIED_AT,
    VERIFIED_UNTIL,
    FOUND_WRONG,
    UNKNOWABLE,
    SOURCE_UP,
    LAG,
    LAG_HELD,
    LAG_VERSIONS,
)


def list_samples(
    summaries: Iterable[Summary],
    damaged: Iterable[str],
    now: datetime,
    lags: Mapping[str, Lag | None],
    results: Mapping[str, LastResult] = NO_RESULTS,
) -> Iterator[Sample]:
    """Yield the samples of each pipeline.

    Args:
        damaged: names of the pipelines that cannot be read.
        lags: by name of the pipeline; None, or no such name, where it is not known.
        results: of the last verification, by name of the pipeline.
    """
    for summary in summaries:
        yield from sample_pipeline(summary, now, lags.get(summary.name))
        if summary.name in results:
            yield from _sample_verification(results[summary.name])
    for name in sorted(damaged):
        yield Sample(READABLE, {"pipeline": name}, 0)


def sample_pipeline(summary: Summary, now: datetime, lag: Lag | None = None) -> Iterator[Sample]:
    """Yield the samples of one pipeline at that moment, without its lag where it is not known."""
    labels = {"pipeline": summary.name}
    yield Sample(READABLE, labels, 1)
    yield Sample(EPOCHS, labels, summary.latest.epoch)
    yield Sample(ABORTED, labels, summary.latest.state is State.ABORTED)
    yield Sample(UNFIT, labels, len(summary.unfit))
    yield Sample(ATTEMPTS, labels, summary.latest.attempt)
    yield Sample(GAPS, labels, len(summary.gaps))
    for sink in sorted({*summary.latest.sinks, *summary.missing}):  # each of them, always: an alert needs the 0, too
        yield Sample(MISSING, {**labels, "sink": sink}, summary.missing.get(sink, 0))
    yield from _sample_unsettled(summary, labels, now)
    if summary.last_commit:
        yield from _sample_commit(summary.last_commit, summary.rows_by_sink, labels)
    if summary.complete_until:
        yield Sample(PUBLISHED, labels, summary.complete_until.timestamp())
    if lag:
        yield from _sample_lag(lag, labels)


def _sample_verification(result: LastResult) -> Iterator[Sample]:
    labels = {"pipeline": result.pipeline}
    yield Sample(VERIFIED_AT, labels, result.at.timestamp())
    if result.right_until:
        yield Sample(VERIFIED_UNTIL, labels, result.right_until.timestamp())
    yield Sample(FOUND_WRONG, labels, result.judgement == "wrong")
    yield Sample(UNKNOWABLE, labels, result.unknown_count)


def _sample_unsettled(summary: Summary, labels: Mapping[str, str], now: datetime) -> Iterator[Sample]:
    states = [_state_label(checkpoint) for checkpoint in summary.open]
    for state in UNSETTLED:  # each of them, always: an alert needs the 0, too
        yield Sample(CHECKPOINTS, {**labels, "state": state}, states.count(state))
    if summary.open:
        yield Sample(UNSETTLED_SINCE, labels, summary.open[0].planned_at.timestamp())
    oldest_by_sink: dict[str, PendingSink] = {}
    for pending_sink in reversed(list_pending(summary.open, now)):  # the oldest comes last, and stays
        oldest_by_sink[pending_sink.sink] = pending_sink
    for sink, oldest in oldest_by_sink.items():
        yield Sample(OPENED, {**labels, "sink": sink}, (now - oldest.age).timestamp())
        yield Sample(USED, {**labels, "sink": sink}, oldest.used)


def _state_label(checkpoint: Checkpoint) -> str:
    if checkpoint.in_doubt:
        return IN_DOUBT
    return formatting.state(checkpoint)


def _sample_commit(
    checkpoint: Checkpoint, rows_by_sink: Mapping[str, int | None], labels: Mapping[str, str]
) -> Iterator[Sample]:
    yield Sample(COMMITTED_AT, labels, checkpoint.updated_at.timestamp())
    for sink, rows in rows_by_sink.items():
        if rows is not None:
            yield Sample(ROWS, {**labels, "sink": sink}, rows)
    if checkpoint.bad_records is not None:
        yield Sample(BAD, labels, checkpoint.bad_records)


def _sample_lag(lag: Lag, labels: Mapping[str, str]) -> Iterator[Sample]:
    yield Sample(SOURCE_UP, labels, lag.error is None)
    if lag.records is not None:
        yield Sample(LAG, labels, lag.records)
        yield Sample(LAG_HELD, labels, lag.blocked_records)
        yield Sample(LAG_VERSIONS, labels, lag.versions)


def format_for_prometheus(samples: Iterable[Sample]) -> str:
    """Return the samples in Prometheus' text format: grouped by metric, each below its HELP and TYPE."""
    by_metric: dict[Metric, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_metric[sample.metric].append(sample)
    lines: list[str] = []
    for metric in METRICS:
        if metric in by_metric:
            lines += _format_metric(metric, by_metric[metric])
    return "".join(lines)


def prometheus_name(metric: Metric) -> str:
    """Return the name under which Prometheus knows a metric."""
    return f"onceonly_{metric.name}{PROMETHEUS_SUFFIXES[metric.kind]}"


def _format_metric(metric: Metric, samples: list[Sample]) -> Iterator[str]:
    """Yield the lines of one metric, each with its line end."""
    kind = "counter" if metric.kind is Kind.COUNTER else "gauge"
    yield f"# HELP {prometheus_name(metric)} {metric.meaning}\n"
    yield f"# TYPE {prometheus_name(metric)} {kind}\n"
    for sample in samples:
        yield f"{prometheus_name(metric)}{{{_format_labels(sample.labels)}}} {_format_number(sample.value)}\n"


def _format_labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{label}="{_escape(value)}"' for label, value in labels.items())


def _escape(value: str) -> str:
    """Escape what would end a label's value or its line."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _format_number(value: float) -> str:
    """Return whole numbers in full, times to the millisecond."""
    if value == int(value):
        return str(int(value))
    return f"{value:.3f}"
