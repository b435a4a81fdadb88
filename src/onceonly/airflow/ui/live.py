"""What only the services themselves know: how far a pipeline is behind its topics, and what a sink shows.

Nothing here is waited for by a page: it is loaded by requests of its own, with a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from airflow.models import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from onceonly.airflow.ui import masking
from onceonly.airflow.ui.answers import Answers
from onceonly.airflow.ui.page_data import Summary, reach
from onceonly.checkpoint.offsets import KAFKA, Interval, TopicLog, range_of, same_topic
from onceonly.coordinator.coordinator import Coordinator
from onceonly.kafka import lookup
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import factory
from onceonly.runtime.factory import LiveParts

WAIT = 3.0  # seconds that a request waits for answers


@dataclass(frozen=True)
class Lag:
    """An upper bound of how far the pipeline is behind; `error` instead if the source does not answer.

    Args:
        records: offsets have gaps, so there may be fewer. What `gaps` hold comes on top.
        since: everything up to then is published.
        gaps: that no interval covers, oldest first.
        versions: of the tables that it reads.
    """

    records: int | None = None
    since: datetime | None = None
    gaps: tuple[Interval, ...] = ()
    error: str | None = None
    versions: int = 0


_lags: Answers[str, Lag] = Answers()
_shown: Answers[tuple[str, int, str], list[str]] = Answers()


def lags(summaries: list[Summary]) -> dict[str, Lag | None]:
    """By pipeline; None: no answer yet, ask again."""
    return _lags.ask({each.name: partial(_lag, each) for each in summaries}, WAIT)


def evidence(pipeline: str, epoch: int, sink: str) -> list[str] | None:
    """What the sink shows of a checkpoint, line by line; None: no answer yet, ask again."""
    key = pipeline, epoch, sink
    return _shown.ask({key: lambda: coordinator().evidence(pipeline, epoch, sink)}, 2 * WAIT)[key]


def coordinator() -> Coordinator:
    return factory.coordinator(parts())


def parts() -> LiveParts:
    return LiveParts(connections=from_server)


def from_server(conn_id: str) -> Mapping[str, Any]:
    """The extra of a connection, as the api-server finds it: in its secrets backends, environment and database."""
    try:
        extra: Mapping[str, Any] = Connection.get_connection_from_secrets(conn_id).extra_dejson
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error
    masking.remember(extra)
    return extra


def _lag(summary: Summary) -> Lag:
    try:
        sources = parts().sources(Pipeline.from_json(summary.latest.definition))
        logs = [source.log() for source in sources.values()]
        records = sum(_behind(log, summary) for log in logs if log.kind == KAFKA)
        versions = sum(_behind(log, summary) for log in logs if log.kind != KAFKA)
    except Exception as error:
        return Lag(error=str(error))
    ends = [reach(summary.committed)] if summary.committed else []
    since = min([gap.start for gap in summary.gaps[:1]] + ends, default=None)
    return Lag(records, since, summary.gaps, versions=versions)


def _behind(log: TopicLog, summary: Summary) -> int:
    """Offsets of the topic that no committed checkpoint covers."""
    done = range_of(summary.committed.ranges, log.topic) if summary.committed else None
    if done:
        same_topic(done.topic_id, log, "the last committed checkpoint")
    read = done.ends if done else {}
    return sum(max(0, stable - max(start, read.get(p, 0))) for p, (start, stable) in log.partitions.items())
