"""How fast a topic grows: seen from the broker, by whoever writes it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

EVERY = 0.1  # seconds between two looks


@dataclass
class Growth:
    """Samples of (time, records written, records committed) of one topic, from the start of the watch on."""

    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def rate(self) -> float | None:
        """Records per second from the first commit until all is written; None: it was all written before."""
        (_, begin, visible), last = self.samples[0], self.samples[-1][1]
        first = next((sample for sample in self.samples if sample[2] > visible), None)
        end = next(sample for sample in self.samples if sample[1] == last)
        if first is None or end[0] - first[0] < 1 or last == begin:
            return None
        return (end[1] - first[1]) / (end[0] - first[0])


@contextmanager
def watched(bootstrap: str, topic: str, partitions: int) -> Iterator[Growth]:
    """A new topic, while something writes into it."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    growth, done = Growth(), threading.Event()
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def watch() -> None:
        while not done.is_set():
            with suppress(KafkaException):  # a broker that is busy with leaders: the next look tells
                growth.samples.append((time.perf_counter(), *_ends(admin, topic, partitions)))
            done.wait(EVERY)

    growth.samples.append((time.perf_counter(), 0, 0))  # the topic is new
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield growth
    finally:
        done.set()
        thread.join()


def _ends(admin: Any, topic: str, partitions: int) -> tuple[int, int]:
    """High watermarks and last stable offsets, each summed."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    found = []
    for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED):
        answers = admin.list_offsets(wanted, isolation_level=level)
        found.append(sum(answer.result(30).offset for answer in answers.values()))
    return found[0], found[1]
