"""How far pipelines are behind their sources, which are asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceonly.checkpoint.offsets import KAFKA, TopicLog, range_of, same_topic
from onceonly.pipeline.definition import Pipeline
from onceonly.views.summary import Lag, Summary, reach

if TYPE_CHECKING:
    from onceonly.runtime.factory import LiveParts


def behind(parts: LiveParts, summary: Summary) -> Lag:
    """Asks the sources once; whatever they fail with is the answer."""
    try:
        sources = parts.sources(Pipeline.from_json(summary.latest.definition))
        logs = [source.log() for source in sources.values()]
        by_topic = [_behind(log, summary) for log in logs if log.kind == KAFKA]
        versions = sum(sum(_behind(log, summary)) for log in logs if log.kind != KAFKA)
    except Exception as error:
        return Lag(error=str(error))
    ends = [reach(summary.committed)] if summary.committed else []
    since = min([gap.start for gap in summary.gaps[:1]] + ends, default=None)
    records, held = sum(map(sum, by_topic)), sum(held for _, held in by_topic)
    return Lag(records, since, summary.gaps, versions=versions, held=held)


def _behind(log: TopicLog, summary: Summary) -> tuple[int, int]:
    """Offsets of the topic that no committed checkpoint covers: what can be read, and what open transactions hide."""
    done = range_of(summary.committed.ranges, log.topic) if summary.committed else None
    if done:
        same_topic(done.topic_id, log, "the last committed checkpoint")
    read = done.ends if done else {}
    readable = sum(max(0, stable - max(start, read.get(p, 0))) for p, (start, stable) in log.partitions.items())
    return readable, sum(log.held.values())
