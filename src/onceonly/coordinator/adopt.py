"""Taking over from another job: a pipeline that has not begun yet begins where that job has ended.

One row that is settled from its beginning (event `empty`), as of a start with nothing to read, has the place as empty
ranges; the first checkpoint that reads something begins at their ends. A batch that a query has planned and not
recorded as committed counts as published if the target's log has it, and as not published if that log ends with the
batch before it. If neither is shown, nobody can tell, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from shlex import quote
from typing import Any

from onceonly.checkpoint.commands import PIPELINE_FILE
from onceonly.checkpoint.earlier_job import (
    BatchOutcome,
    ConsumerGroup,
    OffsetsByTopic,
    PlannedBatch,
    StreamingProgress,
    TableEvidence,
)
from onceonly.checkpoint.interfaces import GroupOffsets, Source
from onceonly.checkpoint.model import Checkpoint, Event, Row
from onceonly.checkpoint.offsets import Offsets, Ranges, TopicRange, empty_spans
from onceonly.coordinator.boundaries import TopicPlanner
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline, find_source
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Takeover:
    """The place at which a pipeline begins that takes over from another job.

    Args:
        ranges: by topic, empty ones at that place.
        origin: what the state table records of the other job.
        planned: the batch that it had planned and not recorded as committed.
        outcome: what became of that batch; None: there is none.
        before: by topic, the offsets up to which the job had read before that batch.
        unread: topics that the other job has read, and this pipeline does not read.
    """

    ranges: Ranges
    origin: Mapping[str, Any]
    planned: PlannedBatch | None = None
    outcome: BatchOutcome | None = None
    before: OffsetsByTopic = field(default_factory=dict)
    unread: tuple[str, ...] = ()

    @property
    def starts(self) -> dict[str, dict[int, int]]:
        """The offsets at which the first checkpoint begins, by topic and partition."""
        return {range_.topic: range_.starts for range_ in self.ranges}


# ---- where the other job has ended


def plan_takeover(
    pipeline: Pipeline,
    sources: Mapping[str, Source],
    job: StreamingProgress | ConsumerGroup,
    tables: Sequence[TableEvidence] = (),
) -> Takeover:
    """Return where the pipeline begins. Nothing is written.

    Args:
        tables: what the tables show to which the query may have written.
    Raises:
        InvalidPipeline: the pipeline cannot take over from it, or what the job has published is not known.
    """
    if pipeline.mode != "chained":
        raise _adoption_error(
            pipeline,
            "It runs by intervals, which begin at times and not where a job has ended.",
            "Let the job go on up to the start of an interval, and begin with that one; or use mode='chained'.",
            code="mode-mismatch",
        )
    if isinstance(job, ConsumerGroup):
        return Takeover(_locate_group(pipeline, sources, job), job.origin)
    outcome = judge_batch(job, tables)
    if outcome is BatchOutcome.UNKNOWN:
        raise _unknown_batch_error(pipeline, job, tables)
    ends, published = job.ends, job.committed
    if job.planned and outcome is BatchOutcome.PUBLISHED:
        ends, published = job.planned.ends, job.planned.number
    ranges = _locate_offsets(pipeline, sources, job, ends)
    unread = sorted(_topics_of(job) - {range_.topic for range_ in ranges})
    origin = {**job.origin, "published": published}
    return Takeover(ranges, origin, job.planned, outcome, job.ends, tuple(unread))


def _topics_of(job: StreamingProgress) -> set[str]:
    """Return the topics that a query reads, as far as its logs name them."""
    if job.planned is None:
        return set(job.ends)
    return {*job.ends, *job.planned.ends}


def judge_batch(job: StreamingProgress, tables: Sequence[TableEvidence]) -> BatchOutcome | None:
    """Return what became of the planned batch; None: there is none, and no table contradicts that.

    A table to which a person has said that the query writes stands for all others.
    """
    named_tables = [table for table in tables if table.is_named]
    batches = [table.batch for table in named_tables or tables if table.is_named or table.batch is not None]
    if job.planned is None:
        is_ahead = any(batch is not None and batch > (job.committed or 0) for batch in batches)
        return BatchOutcome.UNKNOWN if is_ahead else None
    if not batches or any(batch != batches[0] for batch in batches):
        return BatchOutcome.UNKNOWN
    if batches[0] == job.planned.number:
        return BatchOutcome.PUBLISHED
    if batches[0] == job.committed:  # None: no batch is recorded as committed, and the table has none of the query
        return BatchOutcome.NOT_PUBLISHED
    return BatchOutcome.UNKNOWN


def _locate_group(pipeline: Pipeline, sources: Mapping[str, Source], group: ConsumerGroup) -> Ranges:
    """Return empty ranges at the offsets of a consumer group, in every topic of the pipeline."""
    ranges = []
    for topic, source in sources.items():
        planner = _make_planner(pipeline, source, topic)
        ranges.append(_make_position(planner, planner.read_group(group.name)))
    return tuple(ranges)


def _locate_offsets(
    pipeline: Pipeline, sources: Mapping[str, Source], job: StreamingProgress, ends: OffsetsByTopic
) -> Ranges:
    """Return empty ranges at the offsets up to which a query has read, in every topic of the pipeline.

    A partition, or a topic of a pattern, that the query has not seen yet begins at its log's start, as it would have
    for the query.
    """
    ranges = []
    for topic, source in sources.items():
        planner = _make_planner(pipeline, source, topic)
        if topic not in ends and planner.config.topic_pattern is None and topic not in _topics_of(job):
            raise _unread_topic_error(pipeline, job, topic)
        starts = planner.require_starts_in_log(
            ends.get(topic, {}), f"The query with the id {job.query_id} has read up to"
        )
        ranges.append(_make_position(planner, starts))
    return tuple(ranges)


def _make_planner(pipeline: Pipeline, source: Source, topic: str) -> TopicPlanner:
    config = find_source(pipeline, topic)
    assert config is not None  # the sources are those of the pipeline
    if not isinstance(source, GroupOffsets):
        raise _adoption_error(
            pipeline,
            f"It reads {topic}, which is no topic.",
            "Name where it begins: start=… of its source.",
            code="nothing-to-adopt",
        )
    return TopicPlanner(pipeline, source, config)


def _make_position(planner: TopicPlanner, starts: Offsets) -> TopicRange:
    """Return an empty range at these offsets; in partitions without one, at the log's start."""
    log = planner.log
    positions = {}
    for partition, (first, _) in sorted(log.partitions.items()):
        positions[partition] = starts.get(partition, first)
    return TopicRange(log.topic, log.topic_id, empty_spans(positions), log.kind)


# ---- what is recorded


def find_adoption(view: View, pipeline: Pipeline, takeover: Takeover) -> Checkpoint | None:
    """Return the checkpoint that records this very takeover; None: the pipeline has not begun yet.

    Raises:
        InvalidPipeline: it has begun.
    """
    if not view.head.epoch:
        return None
    latest = view.latest
    if latest is not None and latest.adopted == takeover.origin and _positions(latest.ranges) == takeover.starts:
        return latest
    raise InvalidPipeline(
        f"{pipeline.name}: it has begun, and takes nothing over any more.",
        f"It is at epoch {view.head.epoch}. Each checkpoint begins where the last one ended.",
        f"See where it is: onceonly status {pipeline.name}. To begin elsewhere, give it a new name and new targets. "
        "Nothing was written.",
        code="pipeline-has-begun",
    )


def record_takeover(
    transitions: Transitions, pipeline: Pipeline, sources: Mapping[str, Source], takeover: Takeover, who: str
) -> Checkpoint:
    """Record where the pipeline begins, and return the checkpoint that says so. Repeated, it changes nothing."""
    ranges_json = []
    for range_ in takeover.ranges:
        ranges_json.append(sources[range_.topic].mark_left_out(range_, None).to_json())
    body = {"definition": pipeline.to_json(), "ranges": ranges_json, "adopted": dict(takeover.origin)}

    def decide(view: View) -> Row | None:
        if find_adoption(view, pipeline, takeover):
            return None
        return view.row(view.head.epoch + 1, Event.EMPTY, 0, owner=who, body=body)

    checkpoint = transitions.change(pipeline.name, decide).latest
    assert checkpoint is not None  # it was written, or was there before
    return checkpoint


def _positions(ranges: Ranges) -> dict[str, dict[int, int]]:
    return {range_.topic: range_.ends for range_ in ranges}


# ---- refusals


def _unread_topic_error(pipeline: Pipeline, job: StreamingProgress, topic: str) -> InvalidPipeline:
    topics = ", ".join(f"'{name}'" for name in sorted(_topics_of(job))) or "no topic"
    return _adoption_error(
        pipeline,
        f"It reads topic '{topic}', and the query with the checkpoint folder {job.folder} reads {topics}.",
        "Pass the folder of the query that has read it; or name where it begins: start=… of its source.",
        code="nothing-to-adopt",
    )


def _unknown_batch_error(
    pipeline: Pipeline, job: StreamingProgress, tables: Sequence[TableEvidence]
) -> InvalidPipeline:
    logs = []
    for table in tables:
        batch = "no batch of it" if table.batch is None else f"its batches up to {table.batch}"
        logs.append(f"the log of {table.table} has {batch}")
    last = "none" if job.committed is None else f"batch {job.committed}"
    state = f"the last one that it has recorded as committed is {last}"
    if job.planned:
        state = f"it has planned batch {job.planned.number}, and {state}"
    return InvalidPipeline(
        f"{pipeline.name}: it is not known whether the query with the id {job.query_id} has published its last batch.",
        f"By {job.folder} {state}; {'; '.join(logs) or 'no Delta table of this pipeline is there'}.",
        "Let the query finish that batch: start it once more with trigger(availableNow=True), wait for its end, and "
        f"repeat this command. If it writes to a Delta table with its own sink, name that: onceonly adopt "
        f"{PIPELINE_FILE} --checkpoint {quote(job.folder)} --table TABLE. Nothing was written.",
        code="streaming-batch-unknown",
    )


def _adoption_error(pipeline: Pipeline, why: str, todo: str, *, code: str) -> InvalidPipeline:
    what = f"{pipeline.name}: it cannot take over from another job."
    return InvalidPipeline(what, why, f"{todo} Nothing was written.", code=code)
