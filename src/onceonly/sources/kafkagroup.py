"""The consumer group that shows how far a pipeline has read: for lag tools; nothing is decided by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from time import monotonic, sleep
from typing import Any

from onceonly.errors import OutcomeUnknown


def name_of(pipeline: str) -> str:
    return f"onceonly-{pipeline}"


def report(client: Mapping[str, Any], group: str, topic: str, ends: Mapping[int, int], patience: float) -> None:
    """Move the group's offsets forward to `ends`, never back: intervals may be committed in any order.

    Args:
        client: librdkafka's settings.
        patience: seconds.
    Raises:
        OutcomeUnknown: the brokers refuse, or do not answer.
    """
    from confluent_kafka import Consumer, KafkaException

    settings = {"reconnect.backoff.ms": 10, **client, "group.id": group, "enable.auto.commit": False}
    try:
        with closing(Consumer(settings)) as consumer:
            _patiently(lambda: _move(consumer, topic, ends, patience), patience)
    except KafkaException as error:
        raise OutcomeUnknown(
            f"the checkpoint is committed, but consumer group '{group}' does not show it.",
            error.args[0].str(),
            "Nothing else depends on it, and the next commit moves it. Is that group in use, or forbidden by an ACL?",
        ) from error


def _move(consumer: Any, topic: str, ends: Mapping[int, int], patience: float) -> None:
    from confluent_kafka import TopicPartition

    known = consumer.committed([TopicPartition(topic, partition) for partition in ends], timeout=patience)
    behind = [TopicPartition(topic, at.partition, ends[at.partition]) for at in known if at.offset < ends[at.partition]]
    if behind:
        consumer.commit(offsets=behind, asynchronous=False)


def _patiently(move: Callable[[], None], patience: float) -> None:
    """A coordinator that is just being made, or moved, is waited for."""
    from confluent_kafka import KafkaError, KafkaException

    moving = (
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
    )
    limit = monotonic() + patience
    while True:
        try:
            return move()
        except KafkaException as error:
            if error.args[0].code() not in moving or monotonic() > limit:
                raise
        sleep(0.05)
