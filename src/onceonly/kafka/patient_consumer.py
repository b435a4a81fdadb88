"""A consumer that waits as long as it makes progress.

A read_committed reader hands out nothing while it fetches and drops the records of aborted transactions, however fast.
The position at which it fetches shows that it is not idle. Only librdkafka's statistics have that position, since
`Consumer.position` follows the last record that was handed out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import monotonic
from typing import Any

CHECKS_PER_TIMEOUT = 10


class PatientConsumer:
    """A confluent-kafka consumer.

    Args:
        settings: librdkafka's.
        timeout: seconds without a record and without progress, after which `poll` gives up.
    """

    def __init__(self, settings: Mapping[str, Any], timeout: float) -> None:
        from confluent_kafka import Consumer

        self._timeout, self._pause = timeout, timeout / CHECKS_PER_TIMEOUT
        self._positions: dict[tuple[str, str], int] = {}
        self._progress_at = monotonic()
        statistics = {"statistics.interval.ms": max(1, round(self._pause * 1000)), "stats_cb": self._note_positions}
        self.consumer = Consumer({**settings, **statistics})

    def close(self) -> None:
        self.consumer.close()

    def poll(self) -> Any:
        """Return the next message, or None if the broker was silent for the whole time-out."""
        message = self.consumer.poll(self._pause)
        if message is not None:  # nearly always: no clock is read for it
            return message
        silent_since = monotonic() - self._pause
        while True:
            message = self.consumer.poll(self._pause)
            if message is not None or monotonic() - max(silent_since, self._progress_at) > self._timeout:
                return message

    def _note_positions(self, statistics: str) -> None:
        """Note the positions in librdkafka's statistics, and that there was progress if one has changed."""
        positions: dict[tuple[str, str], int] = {}
        for name, topic in json.loads(statistics)["topics"].items():
            for number, partition in topic["partitions"].items():
                positions[name, number] = partition["next_offset"]
        if positions != self._positions:
            self._positions, self._progress_at = positions, monotonic()
