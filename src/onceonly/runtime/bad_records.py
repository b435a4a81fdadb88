"""The bad records of one attempt: told apart, counted, bounded, and made into the rows of the dead-letter sink."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

from onceonly.checkpoint.model import Checkpoint
from onceonly.counts import count
from onceonly.errors import BadRecord, InvalidPipeline
from onceonly.pipeline.dead_letters import CHOSEN, COLUMNS, MaxBad, passed
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import DEAD_LETTER, FAIL, bad_records

Read = Callable[[str], Any]  # topic -> its records, not decoded; None: the rows of that source are no records
Once = Callable[[Any], Any]  # a DataFrame -> the same, computed once


class BadRecords:
    """Of one attempt of one pipeline. Both halves of a topic come from one DataFrame, which is computed once."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._policy = {source.called: bad_records(source) for source in pipeline.sources}
        self._judged: dict[str, Any] = {}
        self._all: dict[str, int] = {}
        self._bad: dict[str, int] = {}
        self._rejected = 0

    def judges(self, topic: str) -> bool:
        """Whether the topic's bad records are told apart, and do not fail the stage."""
        return self._policy[topic] != FAIL

    def good(self, topic: str, judged: Any) -> Any:
        """The records of the topic that could be decoded. `judged`: all of them, persisted."""
        from onceonly.spark import judged as sorting

        self._judged[topic] = judged
        self._all[topic], self._bad[topic] = sorting.counts(judged)
        return sorting.good(judged)

    def read(self, topic: str, rows: Any) -> None:
        """Records of a topic whose bad ones fail the stage."""
        self._all[topic] = rows.count()

    def check(self, checkpoint: Checkpoint) -> None:
        """Raises BadRecord if there are more than the pipeline allows. Called before a sink has written a row."""
        bad, records, most = self._count, sum(self._all.values()), self._pipeline.max_bad
        if most is not None and passed(most, bad, records):
            raise _too_many(checkpoint, bad, records, most, self._first())

    def letters(self, chosen: Any | None, read: Read, once: Once) -> Any:
        """The rows for the sink of dead letters.

        Args:
            chosen: those that the transform has named, if any.
        Raises:
            InvalidPipeline: it has named what is no good record of the batch.
        """
        from onceonly.spark import judged as sorting

        found = [sorting.bad(rows) for topic, rows in self._judged.items() if self._policy[topic] == DEAD_LETTER]
        if chosen is not None:
            found.append(self._named(chosen, _whole(self._policy, read), once))
        rows = _union(found or [_nothing(_whole(self._policy, read))])
        takes_records = self._pipeline.sink(str(self._pipeline.dead_letters)).takes_records
        return sorting.as_records(rows) if takes_records else rows

    def _named(self, chosen: Any, whole: Any, once: Once) -> Any:
        """Computed once, so that what is counted and checked here is what is written."""
        from onceonly.spark import judged as sorting

        _check_columns(self._pipeline, chosen)
        bad = [sorting.bad(rows) for rows in self._judged.values()] or [_nothing(whole)]
        named = once(sorting.chosen(chosen, whole, _union(bad)))
        if lost := sorting.lost(named):
            raise _no_record(self._pipeline, lost)
        self._rejected = named.count()
        return sorting.found(named)

    def tally(self) -> Mapping[str, Any]:
        """What the state table keeps of them; empty for a pipeline that cannot have any."""
        if not self._pipeline.counts_bad:
            return {}
        return {"records": sum(self._all.values()), "undecoded": dict(self._bad), "rejected": self._rejected}

    @property
    def _count(self) -> int:
        return sum(self._bad.values()) + self._rejected

    def _first(self) -> str:
        """One of them, for people."""
        from onceonly.spark import judged as sorting

        for rows in self._judged.values():
            if found := sorting.bad(rows).orderBy("topic", "partition", "offset").first():
                where = f"topic '{found['topic']}' partition {found['partition']} offset {found['offset']}"
                return f" The first one: {where}. {found['error']}"
        return ""


def _whole(topics: Iterable[str], read: Read) -> Any:
    return _union([rows for topic in topics if (rows := read(topic)) is not None])


def _union(found: list[Any]) -> Any:
    return reduce(lambda one, other: one.unionByName(other), found)


def _nothing(read: Any) -> Any:
    return read.limit(0).selectExpr(*COLUMNS[:-1], "CAST(NULL AS STRING) AS error")


def _check_columns(pipeline: Pipeline, chosen: Any) -> None:
    if set(chosen.columns) != set(CHOSEN):
        raise InvalidPipeline(
            f"the transform '{pipeline.transform}' returned no dead letters for '{pipeline.dead_letters}'.",
            f"Their columns are {', '.join(chosen.columns)}.",
            f"Select {', '.join(CHOSEN)}: which record, and why. The record itself is taken from the topic. "
            "Nothing was staged.",
        )


def _no_record(pipeline: Pipeline, lost: Any) -> InvalidPipeline:
    where = f"topic '{lost['topic']}' partition {lost['partition']} offset {lost['offset']}"
    return InvalidPipeline(
        f"the transform '{pipeline.transform}' named a record that cannot become a dead letter.",
        f"It named {where}, which was not read in this checkpoint, or could not be decoded.",
        "Select topic, partition and offset of the batch as they are. Nothing was staged.",
    )


def _too_many(checkpoint: Checkpoint, bad: int, records: int, most: MaxBad, first: str) -> BadRecord:
    return BadRecord(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: {bad:,} of {count(records, 'record')} are bad.",
        f"The pipeline allows max_bad={most}.{first}",
        "Fix the producer, the schema or the transform and run it again: it uses the same offsets. Or raise max_bad. "
        "Nothing was published.",
    )
