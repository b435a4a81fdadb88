"""How far pipelines are behind their sources, which are asked for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from onceonly.checkpoint.offsets import KAFKA, TopicLog, range_of, same_topic
from onceonly.pipeline.definition import Pipeline
from onceonly.views.summary import Lag, Summary, data_end

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices


def measure_lag(services: LiveServices, summary: Summary) -> Lag:
    """Return how far a pipeline is behind. Asks the sources once; whatever they fail with is the answer."""
    try:
        sources = services.sources(Pipeline.from_json(summary.latest.definition))
        logs = [source.log() for source in sources.values()]
        readable, hidden = _count_uncovered([log for log in logs if log.kind == KAFKA], summary)
        versions = sum(_count_uncovered([log for log in logs if log.kind != KAFKA], summary))
    except Exception as error:
        return Lag(error=str(error))
    times = [gap.start for gap in summary.gaps[:1]]
    if summary.committed:
        times.append(data_end(summary.committed))
    since = min(times, default=None)
    return Lag(readable + hidden, since, summary.gaps, versions=versions, blocked_records=hidden)


def _count_uncovered(logs: Iterable[TopicLog], summary: Summary) -> tuple[int, int]:
    """Count the offsets that no committed checkpoint covers: what can be read, and what open transactions hide."""
    readable = hidden = 0
    for log in logs:
        ends: Mapping[int, int] = {}
        covered = None
        if summary.committed:
            covered = range_of(summary.committed.ranges, log.topic)
        if covered:
            same_topic(covered.topic_id, log, "the last committed checkpoint")
            ends = covered.ends
        for partition, (start, stable) in log.partitions.items():
            next_offset = max(start, ends.get(partition, 0))
            readable += max(0, stable - next_offset)
        hidden += sum(log.hidden_offsets.values())
    return readable, hidden
