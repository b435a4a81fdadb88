"""The bad records of one attempt: set apart, counted, bounded, and made into the rows of the dead-letter sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from onceonly.checkpoint.commands import how_to_run
from onceonly.checkpoint.model import Checkpoint
from onceonly.counts import count
from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.pipeline.dead_letters import LETTER_COLUMNS, REJECTION_COLUMNS, MaxBad, can_lack_records, is_beyond
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import DEAD_LETTER, DROP, FAIL, bad_records

Read = Callable[[str], Any]  # topic -> its records, not decoded; None: the rows of that source are no records
TopicPartition = tuple[str, int]
Once = Callable[[Any], Any]  # a DataFrame -> the same, computed once


class BadRecords:
    """The bad records of one attempt of one pipeline.

    Both halves of a topic, good and bad, come from one DataFrame, which is computed once.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._policy = {source.input_name: bad_records(source) for source in pipeline.sources}
        self._rows_by_topic: dict[str, Any] = {}  # by topic: a DataFrame of all records, persisted
        self._record_counts: dict[str, int] = {}  # by topic
        self._undecoded_counts: dict[str, int] = {}  # by topic
        self._partition_counts: dict[TopicPartition, tuple[int, int]] = {}  # all records, and those not decoded
        self._dropping_topics: set[str] = set()
        self._counted_sources: set[str] = set()  # by partition
        self._rejected_count = 0  # by the transform

    def sets_apart(self, topic: str) -> bool:
        """Return whether the topic's bad records are set apart, and do not fail the stage."""
        return self._policy[topic] != FAIL

    def select_decoded(self, topic: str, rows_with_errors: Any) -> Any:
        """Count the records of the topic, and return those that could be decoded.

        Args:
            rows_with_errors: all of them, persisted: see `decode_results`.
        """
        from onceonly.spark import decode_results

        self._rows_by_topic[topic] = rows_with_errors
        counts = decode_results.count_failures(rows_with_errors)
        self._record_counts[topic] = sum(records for records, _ in counts.values())
        self._undecoded_counts[topic] = sum(bad for _, bad in counts.values())
        self._partition_counts |= counts
        self._counted_sources.add(topic)
        if self._policy[topic] == DROP:
            self._dropping_topics.update(name for name, _ in counts)
        return decode_results.select_decoded(rows_with_errors)

    def count_records(self, topic: str, rows: Any, has_partitions: bool = False) -> None:
        """Count the records of a source whose bad ones fail the stage.

        Args:
            has_partitions: they are records of topics.
        """
        from onceonly.spark import decode_results

        if not has_partitions:
            self._record_counts[topic] = rows.count()
            return
        counts = decode_results.count_decoded(rows)
        self._record_counts[topic] = sum(records for records, _ in counts.values())
        self._partition_counts |= counts
        self._counted_sources.add(topic)

    def count_partition(self, topic: str, partition: int) -> list[int]:
        """Return how many records of a partition were read, decoded, not decoded, and of those dropped."""
        records, bad = self._partition_counts.get((topic, partition), (0, 0))
        dropped = bad if topic in self._dropping_topics else 0
        return [records, records - bad, bad, dropped]

    def has_counted(self, source: str) -> bool:
        """Return whether the records of a source were counted by partition."""
        return source in self._counted_sources

    def check(self, checkpoint: Checkpoint) -> None:
        """Raise BadRecord if there are more than the pipeline allows. Called before a sink has written a row."""
        bad = sum(self._undecoded_counts.values()) + self._rejected_count
        records, max_bad = sum(self._record_counts.values()), self._pipeline.max_bad
        if max_bad is not None and is_beyond(max_bad, bad, records):
            raise _too_many(checkpoint, bad, records, max_bad, self._describe_first())

    def make_dead_letters(self, chosen: Any | None, read: Read, once: Once) -> Any:
        """Return the rows for the sink of dead letters.

        Args:
            chosen: those that the transform has named, if any.
        Raises:
            InvalidPipeline: it has named what is no good record of the batch.
        """
        from onceonly.spark import decode_results

        parts = []
        for topic, rows_with_errors in self._rows_by_topic.items():
            if self._policy[topic] == DEAD_LETTER:
                parts.append(decode_results.select_failed(rows_with_errors))
        if chosen is not None:
            parts.append(self._look_up_chosen(chosen, _union_of_topics(self._policy, read), once))
        if not parts:
            parts.append(_without_rows(_union_of_topics(self._policy, read)))
        rows = _union(parts)
        takes_records = self._pipeline.sink(str(self._pipeline.dead_letters)).takes_records
        if takes_records:
            return decode_results.to_records(rows)
        return rows

    def _look_up_chosen(self, chosen: Any, records: Any, once: Once) -> Any:
        """Return the records that the transform has named.

        They are computed once, so that what is counted and checked here is what is written.
        """
        from onceonly.spark import decode_results

        _check_columns(self._pipeline, chosen)
        bad_rows = [decode_results.select_failed(rows_with_errors) for rows_with_errors in self._rows_by_topic.values()]
        if not bad_rows:
            bad_rows = [_without_rows(records)]
        rejected_rows = once(decode_results.find_rejected_records(chosen, records, _union(bad_rows)))
        lost = decode_results.find_unknown_record(rejected_rows)
        if lost:
            raise _no_record_error(self._pipeline, lost)
        self._rejected_count = rejected_rows.count()
        return decode_results.to_letters(rejected_rows)

    def tally(self) -> Mapping[str, Any]:
        """Return what the state table keeps of them; empty for a pipeline that cannot have any."""
        if not can_lack_records(self._pipeline.sources, self._pipeline.dead_letters):
            return {}
        records = sum(self._record_counts.values())
        return {"records": records, "undecoded": dict(self._undecoded_counts), "rejected": self._rejected_count}

    def _describe_first(self) -> str:
        """Return a sentence about one of them, for people; empty if all were decoded."""
        from onceonly.spark import decode_results

        for rows_with_errors in self._rows_by_topic.values():
            bad_row = decode_results.select_failed(rows_with_errors).orderBy("topic", "partition", "offset").first()
            if bad_row:
                where = f"topic '{bad_row['topic']}' partition {bad_row['partition']} offset {bad_row['offset']}"
                return f" The first one: {where}. {bad_row['error']}"
        return ""


def _union_of_topics(topics: Iterable[str], read: Read) -> Any:
    """Return the records of all topics, not decoded; without those sources whose rows are no records."""
    parts = []
    for topic in topics:
        records = read(topic)
        if records is not None:
            parts.append(records)
    return _union(parts)


def _union(parts: list[Any]) -> Any:
    return reduce(lambda one, other: one.unionByName(other), parts)


def _without_rows(records: Any) -> Any:
    """Return an empty DataFrame with the columns of bad records."""
    return records.limit(0).selectExpr(*LETTER_COLUMNS[:-1], "CAST(NULL AS STRING) AS error")


def _check_columns(pipeline: Pipeline, chosen: Any) -> None:
    if set(chosen.columns) != set(REJECTION_COLUMNS):
        raise InvalidPipeline(
            f"the transform '{pipeline.transform}' returned no dead letters for '{pipeline.dead_letters}'.",
            f"Their columns are {', '.join(chosen.columns)}.",
            f"Select {', '.join(REJECTION_COLUMNS)}: which record, and why. The record itself is taken from the topic. "
            "Nothing was staged.",
            code="dead-letters-invalid",
        )


def _no_record_error(pipeline: Pipeline, lost: Any) -> InvalidPipeline:
    where = f"topic '{lost['topic']}' partition {lost['partition']} offset {lost['offset']}"
    return InvalidPipeline(
        f"the transform '{pipeline.transform}' named a record that cannot become a dead letter.",
        f"It named {where}, which was not read in this checkpoint, or could not be decoded.",
        "Select topic, partition and offset of the batch as they are. Nothing was staged.",
        code="dead-letters-invalid",
    )


def _too_many(checkpoint: Checkpoint, bad: int, records: int, max_bad: MaxBad, first: str) -> BadRecord:
    return BadRecord(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {bad:,} of {count(records, 'record')} are bad.",
        f"The pipeline allows max_bad={max_bad}.{first}",
        "Fix the producer, the schema or the transform, or raise max_bad. Then run it again, which uses the same "
        f"offsets: {how_to_run(checkpoint)}. Nothing was published.",
        code="too-many-bad-records",
    )
