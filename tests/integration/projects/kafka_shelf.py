"""A topic on a real broker, written without Spark, with what is recorded of it: for tests of verifications."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from integration.readers.kafka_reader import committed, create_topic, new_topic, until
from patience import PATIENCE
from unit.lightdelta import transaction
from unit.lightkafka import LightKafka
from unit.shelves import Shelf

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.kafka.connection import KafkaConnection
from onceonly.pipeline.sinks import KafkaSink


class KafkaShelf(Shelf):
    """A topic, and what is recorded of it."""

    def __init__(self, folder: Path, bootstrap: str, **config: Any) -> None:
        super().__init__(folder, folder / "receipts")
        (folder / "receipts").mkdir(parents=True)
        self.bootstrap, self.topic, self.config = bootstrap, new_topic(bootstrap, partitions=2), config
        self.state_id = uuid.uuid4().hex  # brokers remember the transactions of other tests

    def sink(self) -> Sink:
        config = KafkaSink(name="lake", topic=self.topic, bootstrap=self.bootstrap, **self.config)
        connection = KafkaConnection.plaintext(self.bootstrap)
        return LightKafka(config, connection, False, str(self.folder / "spool"), self.folder)

    def published(self) -> list[int]:
        return sorted(int(record.value or b"") for record in committed(self.bootstrap, self.topic))

    def stage(self, epoch: int, *values: int) -> dict[str, Any]:
        rows = [{"value": value} for value in values]
        return dict(json.loads(json.dumps(self.sink().stage(self.txn(epoch), rows))))

    def publish(self, epoch: int, *values: int) -> None:
        self.ledger.publish(epoch, self.stage(epoch, *values))
        self.sink().release(self.txn(epoch))

    def txn(self, epoch: int) -> Transaction:
        return transaction(epoch, state=self.state_id)

    def records_of(self, epoch: int) -> list[tuple[int, bytes]]:
        """(partition, value) of the records in the spans of an epoch's transactions."""
        spans = [span for part in self.handle_of(epoch)["parts"] if part["tx"] for span in part["tx"]["partitions"]]
        return [
            (record.partition, record.value or b"")
            for record in committed(self.bootstrap, self.topic)
            if any(number == record.partition and start <= record.offset < end for _, number, start, end in spans)
        ]


def produce(shelf: KafkaShelf, records: list[tuple[int, bytes]], transactional_id: str = "") -> None:
    settings: dict[str, Any] = {"bootstrap.servers": shelf.bootstrap}
    if transactional_id:
        settings["transactional.id"] = f"{transactional_id}-{shelf.topic}"
    producer = Producer(settings)
    if transactional_id:
        producer.init_transactions()
        producer.begin_transaction()
    for partition, value in records:
        producer.produce(shelf.topic, value=value, partition=partition)
    producer.flush()
    if transactional_id:
        producer.commit_transaction()


def abort(shelf: KafkaShelf, records: list[tuple[int, bytes]]) -> None:
    producer = Producer({"bootstrap.servers": shelf.bootstrap, "transactional.id": f"abort-{shelf.topic}"})
    producer.init_transactions()
    producer.begin_transaction()
    for partition, value in records:
        producer.produce(shelf.topic, value=value, partition=partition)
    producer.flush()
    producer.abort_transaction()


def delete_topic(shelf: KafkaShelf) -> None:
    admin = AdminClient({"bootstrap.servers": shelf.bootstrap})
    admin.delete_topics([shelf.topic])[shelf.topic].result(PATIENCE)
    until(lambda: shelf.topic not in admin.list_topics(timeout=10).topics, what="the topic to be gone")


def recreate_topic(shelf: KafkaShelf) -> None:
    delete_topic(shelf)
    create_topic(shelf.bootstrap, shelf.topic, 2)


def delete_records(shelf: KafkaShelf, epoch: int) -> None:
    """Delete what lies before the end of an epoch's records."""
    ends = {0: 0, 1: 0}
    for part in shelf.handle_of(epoch)["parts"]:
        for _, number, _, end in part["tx"]["partitions"]:
            ends[number] = max(ends[number], end)
    offsets = [TopicPartition(shelf.topic, number, end) for number, end in ends.items()]
    admin = AdminClient({"bootstrap.servers": shelf.bootstrap})
    for deleted in admin.delete_records(offsets).values():
        deleted.result(PATIENCE)
