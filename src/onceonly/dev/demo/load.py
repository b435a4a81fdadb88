"""Loading flights into a topic, in order of time and each once: flights that the topic has already are skipped.

Every partition gets its flights in order. So its number of records in a period is the number of flights loaded, also
after an interrupted load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import flights
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.pipeline.sources import KafkaSource
from onceonly.settings import Settings
from onceonly.sources.kafka import KafkaReader

PARTITIONS = 4
LATE_TOPIC = "late-flights"  # the example's output
DELIVERY_SECONDS = 30.0  # seconds for a request, or for a delivery
TOPIC_CONFIG = {  # retention uses record time, which is in 2013
    "retention.ms": "-1",
    "message.timestamp.type": "CreateTime",
}
Progress = Callable[[int, int], None]  # (records handed to the broker, records to load)


@dataclass(frozen=True)
class Loaded:
    """The result of a load.

    Args:
        skipped: number of flights that were in the topic before.
    """

    topic: str
    bootstrap: str
    created: bool
    partitions: int
    period: Interval
    loaded: int
    skipped: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        period = {"start": self.period.start.isoformat(), "end": self.period.end.isoformat()}
        return {**asdict(self), "period": period, "seconds": round(self.seconds, 3)}


def load(settings: Settings, topic: str, period: Interval, progress: Progress = lambda done, total: None) -> Loaded:
    """Load the period's flights into `topic`, which is created with 4 partitions if it does not exist.

    Raises:
        InvalidPipeline: the topic would delete old records, or has records that these flights cannot follow.
        NotCommitted: no broker answered.
        OutcomeUnknown: a delivery failed; loading again continues at the end of the topic.
    """
    started_at = time.monotonic()
    schema = flights.read_schema(settings.project)
    bootstrap = settings.brokers(None)
    reader = KafkaReader(KafkaSource(topic), bootstrap, settings.project)
    created = _ensure_topic(reader, bootstrap, topic)
    _ensure_topic(KafkaReader(KafkaSource(LATE_TOPIC), bootstrap, settings.project), bootstrap, LATE_TOPIC)
    table = flights.table(schema, period)
    present_counts = _count_present(reader, topic, period, _count_by_partition(table, len(reader.log().partitions)))
    total = table.num_rows - sum(present_counts.values())
    if total:
        _produce(_Sender(bootstrap, topic, schema), table, present_counts, lambda done: progress(done, total))
    seconds = time.monotonic() - started_at
    return Loaded(topic, bootstrap, created, len(present_counts), period, total, table.num_rows - total, seconds)


class _Sender:
    """A producer of flights. It stops at the first failed delivery, so that no partition has a gap."""

    def __init__(self, bootstrap: str, topic: str, schema: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self._topic, self._encode = topic, flights.encoder(schema)
        self._failures: list[str] = []
        self._producer = Producer(
            {**_client(bootstrap), "enable.idempotence": True, "enable.gapless.guarantee": True, "linger.ms": 50}
            | {"queue.buffering.max.messages": 200_000, "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000)}
        )

    def send(self, flight: flights.Record, partition: int) -> None:
        value, key, at = self._encode(flight), flight["carrier"].encode(), flight["time_hour"]
        while True:
            self._require_no_failure()
            try:
                self._producer.produce(self._topic, value, key, partition, self._record_failure, timestamp=at)
                self._producer.poll(0)
                return
            except BufferError:
                self._producer.poll(0.1)

    def finish(self) -> None:
        """Wait until every record is acknowledged."""
        unacknowledged = self._producer.flush(2 * DELIVERY_SECONDS)
        if unacknowledged:
            self._failures.append(f"{unacknowledged} records were not acknowledged within {2 * DELIVERY_SECONDS:.0f} s")
        self._require_no_failure()

    def _record_failure(self, error: Any, message: Any) -> None:
        """Record a failed delivery; called for every record."""
        if error is not None:
            self._failures.append(error.str())

    def _require_no_failure(self) -> None:
        if self._failures:
            raise OutcomeUnknown(
                f"loading topic '{self._topic}' was interrupted.",
                f"A delivery failed: {self._failures[0]}.",
                "Delivered records stay. Load the same period again: it continues at the end of the topic.",
                code="demo-load-interrupted",
            )


def _ensure_topic(reader: KafkaReader, bootstrap: str, topic: str) -> bool:
    """Create the topic if it does not exist; returns whether it was created. An existing one must keep old records."""
    try:
        reader.log()
    except InvalidPipeline:  # it does not exist
        _create_topic(bootstrap, topic)
        return True
    _check_config(bootstrap, topic)
    return False


def _create_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka import KafkaException, admin

    client = admin.AdminClient(_client(bootstrap))  # must exist until the response has arrived
    new_topic = admin.NewTopic(topic, PARTITIONS, config=TOPIC_CONFIG)  # type: ignore[attr-defined]
    try:
        client.create_topics([new_topic], operation_timeout=DELIVERY_SECONDS)[topic].result(DELIVERY_SECONDS)
    except KafkaException as failure:
        raise NotCommitted(
            f"topic '{topic}' cannot be created on {bootstrap}.",
            f"{failure.args[0].str()}.",
            f"Create it with {PARTITIONS} partitions and retention.ms=-1, or get the Create permission. "
            "Nothing was written.",
            code="topic-not-created",
        ) from failure


def _check_config(bootstrap: str, topic: str) -> None:
    """Refuse a topic that would delete old records, or change their time. Raises InvalidPipeline."""
    from confluent_kafka import admin

    client = admin.AdminClient(_client(bootstrap))
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)  # type: ignore[attr-defined]
    entries = client.describe_configs([resource])[resource].result(DELIVERY_SECONDS)
    config = {name: entries[name].value for name in TOPIC_CONFIG}
    if config != TOPIC_CONFIG:
        raise InvalidPipeline(
            f"topic '{topic}' would delete the flights, or change their time.",
            f"It has {_format_config(config)}, and the records have times in 2013.",
            f"Set {_format_config(TOPIC_CONFIG)}, or load with --topic another-name. Nothing was written.",
            code="demo-topic-unsuitable",
        )


def _format_config(config: Mapping[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in config.items())


def _count_by_partition(table: Any, partitions: int) -> dict[int, int]:
    """Count the period's flights by partition."""
    counts = dict.fromkeys(range(partitions), 0)
    for carrier in table["carrier"].value_counts().to_pylist():
        counts[flights.partition(carrier["values"], partitions)] += carrier["counts"]
    return counts


def _count_present(
    reader: KafkaReader, topic: str, period: Interval, expected_counts: Mapping[int, int]
) -> dict[int, int]:
    """Count the period's flights that each partition has already: always the first ones.

    Raises:
        InvalidPipeline: a partition has other or later records.
    """
    start, end = reader.offsets_at(period.start), reader.offsets_at(period.end)
    counts = {p: end[p].offset - start[p].offset for p in expected_counts}
    for partition, expected in expected_counts.items():
        later = end[partition].at
        if counts[partition] > expected or (counts[partition] < expected and later):
            why = f"it has later records from {later:%Y-%m-%d %H:%M} UTC on" if later else "it has other records"
            raise InvalidPipeline(
                f"the flights of {period} cannot be loaded into topic '{topic}'.",
                f"Partition {partition} has {counts[partition]:,} of {expected:,}, and {why}.",
                "Flights are loaded in order of time: load a later period, or another topic (--topic). "
                "Nothing was written.",
                code="demo-topic-unsuitable",
            )
    return counts


def _produce(sender: _Sender, table: Any, present_counts: Mapping[int, int], progress: Callable[[int], None]) -> None:
    """Send the flights that the topic does not have, in order."""
    counts_to_skip, done = dict(present_counts), 0
    for flight in flights.records(table):
        partition = flights.partition(flight["carrier"], len(present_counts))
        if counts_to_skip[partition]:
            counts_to_skip[partition] -= 1
            continue
        sender.send(flight, partition)
        done += 1
        if done % 1000 == 0:
            progress(done)
    sender.finish()
    progress(done)


def _client(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "client.id": "onceonly-demo", "log_level": 0}
