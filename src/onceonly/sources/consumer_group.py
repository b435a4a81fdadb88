"""The consumer group of a pipeline: how far it has read, for lag tools, and by which decision of which state table.

The offsets decide nothing. What is written beside them is how a state table that was restored, or begun anew in another
folder, is told from the one that has published: see `onceonly.coordinator.lineage`.
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

SLICE = 1.0  # seconds that one look waits; longer ones would hide a refusal
T = TypeVar("T")


@dataclass(frozen=True)
class Mark:
    """The metadata of one partition's offset.

    Args:
        end: where the pipeline goes on; the group's own offset stays ahead of it after a rewind.
    """

    state_id: str
    decision: int
    epoch: int
    end: int

    def to_text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> Mark | None:
        """None for what was not written by this module."""
        try:
            return cls(**json.loads(text or ""))
        except (ValueError, TypeError):
            return None

    def follows(self, known: Mark | None) -> bool:
        """Checkpoints of intervals may be reported in any order; the last decision stays."""
        return known is None or known.state_id != self.state_id or known.decision < self.decision


@dataclass(frozen=True)
class Group:
    """One pipeline's group, for one topic.

    Args:
        client: librdkafka's settings.
        patience: seconds, for one request.
    """

    client: Mapping[str, Any]
    pipeline: str
    topic: str
    patience: float

    @property
    def name(self) -> str:
        return f"onceonly-{self.pipeline}"

    def report(self, marks: Mapping[int, Mark]) -> None:
        """Move offsets and marks forward, never back.

        Raises:
            OutcomeUnknown: the brokers refuse, or do not answer.
        """
        with self._consumer("the checkpoint is committed, but {group} does not show it.") as consumer:
            _patiently(consumer, lambda: self._move(consumer, marks), self.patience)

    def traces(self, partitions: Sequence[int]) -> list[Trace]:
        """By state table, the last decision; what has offsets and no mark is of an unknown one.

        Raises:
            OutcomeUnknown: as `report`.
        """
        with self._consumer("{group} cannot be read: whether it is ahead of the state table is not known.") as consumer:
            known = _patiently(consumer, lambda: self._known(consumer, partitions), self.patience)
        marks = {at.partition: mark for at in known if (mark := Mark.parse(at.metadata))}
        where = f"consumer group '{self.name}' of topic '{self.topic}'"
        if not marks and any(at.offset >= 0 for at in known):
            return [Trace("", 0, where)]
        return [self._trace(state_id, marks, where) for state_id in sorted({m.state_id for m in marks.values()})]

    def _trace(self, state_id: str, marks: Mapping[int, Mark], where: str) -> Trace:
        decision = max(mark.decision for mark in marks.values() if mark.state_id == state_id)
        ends = {p: m.end for p, m in marks.items() if (m.state_id, m.decision) == (state_id, decision)}
        return Trace(state_id, decision, where, {self.topic: ends})

    def _known(self, consumer: Any, partitions: Sequence[int]) -> Any:
        """By a consumer: where the broker has not made its group coordinator yet, confluent-kafka 2.16.1's
        AdminClient.list_consumer_group_offsets ends the process (a segmentation fault).
        """
        from confluent_kafka import TopicPartition

        return _sound(consumer.committed([TopicPartition(self.topic, p) for p in partitions], timeout=SLICE))

    def _move(self, consumer: Any, marks: Mapping[int, Mark]) -> None:
        from confluent_kafka import TopicPartition

        moved = []
        for at in self._known(consumer, list(marks)):
            mark, known = marks[at.partition], Mark.parse(at.metadata)
            last = mark if known is None or mark.follows(known) else known
            if at.offset < mark.end or last is mark:
                moved.append(TopicPartition(self.topic, at.partition, max(at.offset, mark.end), last.to_text()))
        if moved:
            _sound(consumer.commit(offsets=moved, asynchronous=False))

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
                "Nothing stops for it. Is the group in use by others, or forbidden? (Grant Read on it.)",
            ) from error


def _sound(answer: Any) -> Any:
    """An answer may hold an error for each partition."""
    from confluent_kafka import KafkaException

    for at in answer:
        if at.error:
            raise KafkaException(at.error)
    return answer


def _patiently(consumer: Any, ask: Callable[[], T], patience: float) -> T:
    """A coordinator that is just being made, or moved, is waited for."""
    from confluent_kafka import KafkaError, KafkaException

    moving = (
        KafkaError._TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
    limit = monotonic() + patience
    while True:
        try:
            return ask()
        except KafkaException as error:
            _raise_denied(consumer)
            if error.args[0].code() not in moving or monotonic() > limit:
                raise
        sleep(0.05)


def _raise_denied(consumer: Any) -> None:
    """Where the group is forbidden, librdkafka goes on asking and says why among the messages only."""
    from confluent_kafka import KafkaException

    message = consumer.poll(0)
    if message is not None and message.error() and message.error().code() in DENIED:
        raise KafkaException(message.error())
