"""The consumer group of a pipeline: how far it has read, for lag tools, and by which decision of which state table.

No decision depends on the offsets. Their metadata shows which state table has published, so that a restored or a new
one is detected: see `onceonly.coordinator.lineage`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any, TypeVar

from onceonly.checkpoint.sink import Trace
from onceonly.errors import OutcomeUnknown
from onceonly.kafka.connection import DENIED

SLICE = 1.0  # seconds per attempt; a longer one would hide a denied request
T = TypeVar("T")


@dataclass(frozen=True)
class OffsetMetadata:
    """The metadata of one partition's offset.

    Args:
        end: where the pipeline continues; after a rewind the group's own offset stays ahead of it.
    """

    state_id: str
    decision: int
    epoch: int
    end: int

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> OffsetMetadata | None:
        """The mark; None if this module did not write the text."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            return None

    def follows(self, known: OffsetMetadata | None) -> bool:
        """Whether this mark replaces `known`: intervals may be reported in any order, and the last decision stays."""
        return known is None or known.state_id != self.state_id or known.decision < self.decision


@dataclass(frozen=True)
class Group:
    """The group of one pipeline, for one topic.

    Args:
        client: librdkafka's settings.
        timeout: seconds, for one request with its retries.
    """

    client: Mapping[str, Any]
    pipeline: str
    topic: str
    timeout: float

    @property
    def name(self) -> str:
        return f"onceonly-{self.pipeline}"

    def report(self, marks: Mapping[int, OffsetMetadata]) -> None:
        """Move offsets and marks forward, never back.

        Raises:
            OutcomeUnknown: the brokers refuse, or do not answer.
        """
        with self._consumer("the checkpoint is committed, but {group} does not show it.") as consumer:
            _retried(consumer, lambda: self._move(consumer, marks), self.timeout)

    def traces(self, partitions: Sequence[int]) -> list[Trace]:
        """The last decision of each state table. Offsets without a mark belong to an unknown state table.

        Raises:
            OutcomeUnknown: as `report`.
        """
        with self._consumer("{group} cannot be read: whether it is ahead of the state table is not known.") as consumer:
            known = _retried(consumer, lambda: self._known(consumer, partitions), self.timeout)
        marks = {at.partition: mark for at in known if (mark := OffsetMetadata.parse(at.metadata))}
        where = f"consumer group '{self.name}' of topic '{self.topic}'"
        if not marks and any(at.offset >= 0 for at in known):
            return [Trace("", 0, where)]
        return [self._trace(state_id, marks, where) for state_id in sorted({m.state_id for m in marks.values()})]

    def _trace(self, state_id: str, marks: Mapping[int, OffsetMetadata], where: str) -> Trace:
        decision = max(mark.decision for mark in marks.values() if mark.state_id == state_id)
        ends = {p: m.end for p, m in marks.items() if (m.state_id, m.decision) == (state_id, decision)}
        return Trace(state_id, decision, where, {self.topic: ends})

    def _known(self, consumer: Any, partitions: Sequence[int]) -> Any:
        """The committed offsets with their metadata, from a consumer.

        Not from AdminClient.list_consumer_group_offsets: in confluent-kafka 2.16.1 it crashes the process (a
        segmentation fault) if the broker has not created the group's coordinator yet.
        """
        from confluent_kafka import TopicPartition

        return _checked(consumer.committed([TopicPartition(self.topic, p) for p in partitions], timeout=SLICE))

    def _move(self, consumer: Any, marks: Mapping[int, OffsetMetadata]) -> None:
        from confluent_kafka import TopicPartition

        moved = []
        for at in self._known(consumer, list(marks)):
            mark, known = marks[at.partition], OffsetMetadata.parse(at.metadata)
            last = mark if known is None or mark.follows(known) else known
            if at.offset < mark.end or last is mark:
                moved.append(TopicPartition(self.topic, at.partition, max(at.offset, mark.end), last.to_text()))
        if moved:
            _checked(consumer.commit(offsets=moved, asynchronous=False))

    @contextmanager
    def _consumer(self, what: str) -> Iterator[Any]:
        from confluent_kafka import Consumer, KafkaException

        settings = {"reconnect.backoff.ms": 10, **self.client, "group.id": self.name, "enable.auto.commit": False}
        try:
            with closing(Consumer(settings)) as consumer:
                yield consumer
        except KafkaException as error:
            raise OutcomeUnknown(
                what.format(group=f"consumer group '{self.name}'"),
                error.args[0].str(),
                "This stops no checkpoint. Check that no other consumer uses the group, and grant Read on it.",
            ) from error


def _checked(offsets: Any) -> Any:
    """Raise the error of any partition: a response may contain one for each."""
    from confluent_kafka import KafkaException

    for at in offsets:
        if at.error:
            raise KafkaException(at.error)
    return offsets


def _retried(consumer: Any, request: Callable[[], T], timeout: float) -> T:
    """The result of `request`, retried while the coordinator is being created or moved."""
    from confluent_kafka import KafkaError, KafkaException

    moving = (
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
    limit = monotonic() + timeout
    while True:
        try:
            return request()
        except KafkaException as error:
            _raise_denied(consumer)
            if error.args[0].code() not in moving or monotonic() > limit:
                raise
        sleep(0.05)


def _raise_denied(consumer: Any) -> None:
    """Raise an authorization error. librdkafka keeps retrying and reports it only among the consumer's messages."""
    from confluent_kafka import KafkaException

    message = consumer.poll(0)
    if message is not None and message.error() and message.error().code() in DENIED:
        raise KafkaException(message.error())
