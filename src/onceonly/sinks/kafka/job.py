"""What a writer of rows for Kafka needs, and what it returns. There are two: Spark's JVM, and its Python workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onceonly.kafka.connection import KafkaConnection
from onceonly.sinks.kafka.handle import Ids
from onceonly.sinks.kafka.producer import SendTarget


@dataclass(frozen=True)
class Job:
    """What a worker needs. It is part of the task, not of the query plan, which people can see.

    Args:
        connection: the target's, for the clients other than librdkafka.
        folder: of the transaction, for spool files and receipts.
    """

    target: SendTarget
    connection: KafkaConnection
    folder: str
    has_spool: bool
    ids: Ids | None  # None: no transaction
    write: bool  # to Kafka, now
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)  # variables by which the spool is reached

    @property
    def spool(self) -> str | None:
        """The folder of the spool files; None: there are none."""
        return self.folder if self.has_spool else None

    @property
    def has_pooled_ids(self) -> bool:
        return self.ids is not None and self.ids.slot is not None


@dataclass(frozen=True)
class Receipt:
    """What a successful task has written.

    Args:
        producer: id and epoch, where another producer can use the same transactional id.
        hashes: the sum of the records' hashes, modulo 2**64, where a task adds them up (`digest`).
    """

    spool: str
    rows: int
    bytes: int
    id: str | None
    producer: tuple[int, int] | None = None
    hashes: int = 0
