"""The last records of a topic, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from onceonly.errors import NotCommitted
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.patient_consumer import PatientConsumer
from onceonly.kafka.topic import EARLIEST, LATEST, TIMEOUT, TopicClient


def values(topic: str, kafka: KafkaConnection, most: int) -> Iterator[bytes | None]:
    """Yield the values of at most about `most` committed records, the last ones of each partition.

    Raises:
        InvalidPipeline: no such topic, or the brokers refuse the credentials.
        NotCommitted: the brokers do not answer.
    """
    from confluent_kafka import KafkaError, TopicPartition

    client = TopicClient(topic, kafka)
    _, partitions = client.describe()
    starts, ends = client.offsets(partitions, EARLIEST), client.offsets(partitions, LATEST)
    share = -(-most // len(partitions))  # rounded up
    first_offsets = {p: max(starts[p].offset, ends[p].offset - share) for p in partitions}
    unfinished = {p for p in partitions if first_offsets[p] < ends[p].offset}
    settings = {"group.id": "onceonly", "enable.auto.commit": False, "enable.partition.eof": True}  # never joined
    settings = {**client.client_config(), **settings, "isolation.level": "read_committed"}
    with closing(PatientConsumer(settings, TIMEOUT)) as reader:
        reader.consumer.assign([TopicPartition(topic, p, first_offsets[p]) for p in unfinished])
        while unfinished:
            message = reader.poll()
            if message is None:
                raise NotCommitted(
                    f"topic '{topic}': no record, no progress and no end of the log within {TIMEOUT:.0f} s.",
                    f"The Kafka broker at {kafka.describe()} did not answer.",
                    "This is safe to retry. Nothing was written.",
                )
            partition = int(message.partition() or 0)
            error = message.error()
            if error and error.code() != KafkaError._PARTITION_EOF:
                raise NotCommitted(
                    f"topic '{topic}': {error.str()}.", "", "This is safe to retry. Nothing was written."
                )
            offset = ends[partition].offset if error else int(message.offset() or 0)
            if offset < ends[partition].offset:
                yield message.value()
            if offset >= ends[partition].offset - 1:
                unfinished.discard(partition)
