"""Consumer groups. That of a pipeline shows how far it has read, for lag tools, and by which decision of which table.

No decision depends on the offsets. Their metadata shows which state table has published, so that a restored or a new
one is detected: see `onceonly.coordinator.restore_check`.
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
from onceonly.waits import wait_for

REQUEST_SECONDS = 1.0  # per attempt; a longer one would hide a denied request
RETRY_SECONDS = 0.05
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
        """Return the mark; None if this module did not write the text."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            return None

    def follows(self, other: OffsetMetadata | None) -> bool:
        """Return whether this mark replaces `other`.

        Intervals may be reported in any order, and the last decision stays.
        """
        return other is None or other.state_id != self.state_id or other.decision < self.decision


@dataclass(frozen=True)
class Group:
    """One group, for one topic.

    Args:
        client: librdkafka's settings.
        name: of a pipeline's own one, see `own_name`.
        timeout: seconds, for one request with its retries.
    """

    client: Mapping[str, Any]
    name: str
    topic: str
    timeout: float

    def report(self, marks: Mapping[int, OffsetMetadata]) -> None:
        """Move offsets and marks forward, never back.

        Raises:
            OutcomeUnknown: the brokers refuse, or do not answer.
        """
        with self._open_consumer("the checkpoint is committed, but {group} does not show it.") as consumer:
            _retry(consumer, lambda: self._move_forward(consumer, marks), self.timeout)

    def read_committed(self, partitions: Sequence[int]) -> dict[int, int]:
        """Return the offsets that it has committed, by partition; others are left out.

        Raises:
            OutcomeUnknown: as `report`.
        """
        with self._open_consumer("{group} cannot be read.") as consumer:
            offsets = _retry(consumer, lambda: self._read_offsets(consumer, partitions), self.timeout)
        return {offset.partition: offset.offset for offset in offsets if offset.offset >= 0}

    def traces(self, partitions: Sequence[int]) -> list[Trace]:
        """Read the last decision of each state table. Offsets without a mark belong to an unknown state table.

        Raises:
            OutcomeUnknown: as `report`.
        """
        what = "{group} cannot be read: whether it is ahead of the state table is not known."
        with self._open_consumer(what) as consumer:
            offsets = _retry(consumer, lambda: self._read_offsets(consumer, partitions), self.timeout)
        marks_by_state: dict[str, dict[int, OffsetMetadata]] = {}
        has_offsets = False
        for offset in offsets:
            has_offsets = has_offsets or offset.offset >= 0
            mark = OffsetMetadata.parse(offset.metadata)
            if mark:
                marks_by_state.setdefault(mark.state_id, {})[offset.partition] = mark
        origin = f"consumer group '{self.name}' of topic '{self.topic}'"
        if has_offsets and not marks_by_state:
            return [Trace("", 0, origin)]
        return [self._make_trace(state_id, marks_by_state[state_id], origin) for state_id in sorted(marks_by_state)]

    def _make_trace(self, state_id: str, marks: Mapping[int, OffsetMetadata], origin: str) -> Trace:
        """Return the trace of one state table, whose marks these are, by partition."""
        decision = max(mark.decision for mark in marks.values())
        ends = {partition: mark.end for partition, mark in marks.items() if mark.decision == decision}
        return Trace(state_id, decision, origin, {self.topic: ends})

    def _read_offsets(self, consumer: Any, partitions: Sequence[int]) -> Any:
        """Read the committed offsets with their metadata, from a consumer.

        Not from AdminClient.list_consumer_group_offsets: in confluent-kafka 2.16.1 it crashes the process (a
        segmentation fault) if the broker has not created the group's coordinator yet.
        """
        from confluent_kafka import TopicPartition

        request = [TopicPartition(self.topic, partition) for partition in partitions]
        return _require_no_errors(consumer.committed(request, timeout=REQUEST_SECONDS))

    def _move_forward(self, consumer: Any, marks: Mapping[int, OffsetMetadata]) -> None:
        from confluent_kafka import TopicPartition

        new_offsets = []
        for committed in self._read_offsets(consumer, list(marks)):
            mark, committed_mark = marks[committed.partition], OffsetMetadata.parse(committed.metadata)
            last_mark = mark
            if committed_mark is not None and not mark.follows(committed_mark):
                last_mark = committed_mark
            if committed.offset < mark.end or last_mark is mark:
                offset = max(committed.offset, mark.end)
                new_offsets.append(TopicPartition(self.topic, committed.partition, offset, last_mark.to_text()))
        if new_offsets:
            _require_no_errors(consumer.commit(offsets=new_offsets, asynchronous=False))

    @contextmanager
    def _open_consumer(self, what: str) -> Iterator[Any]:
        """Yield a consumer of the group that has joined nothing.

        Args:
            what: the first line of an error, with a place for {group}.
        Raises:
            OutcomeUnknown: the brokers refuse, or do not answer.
        """
        from confluent_kafka import Consumer, KafkaException

        settings = {"reconnect.backoff.ms": 10, **self.client, "group.id": self.name, "enable.auto.commit": False}
        try:
            with wait_for(f"consumer group '{self.name}' in Kafka"), closing(Consumer(settings)) as consumer:
                yield consumer
        except KafkaException as error:
            raise OutcomeUnknown(
                what.format(group=f"consumer group '{self.name}'"),
                error.args[0].str(),
                "This stops no checkpoint. Check that no other consumer uses the group, and grant Read on it.",
                code="group-inaccessible",
            ) from error


def own_name(pipeline: str) -> str:
    """Return the name of a pipeline's own group."""
    return f"onceonly-{pipeline}"


def _require_no_errors(offsets: Any) -> Any:
    """Return the offsets, or raise the error of any partition: a response may contain one for each."""
    from confluent_kafka import KafkaException

    for offset in offsets:
        if offset.error:
            raise KafkaException(offset.error)
    return offsets


def _retry(consumer: Any, request: Callable[[], T], timeout: float) -> T:
    """Return the result of `request`, retried while the coordinator is being created or moved."""
    from confluent_kafka import KafkaError, KafkaException

    moving_codes = (
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
            if error.args[0].code() not in moving_codes or monotonic() > limit:
                raise
        sleep(RETRY_SECONDS)


def _raise_denied(consumer: Any) -> None:
    """Raise an authorization error. librdkafka keeps retrying and reports it only among the consumer's messages."""
    from confluent_kafka import KafkaException

    message = consumer.poll(0)
    if message is not None and message.error() and message.error().code() in DENIED:
        raise KafkaException(message.error())
