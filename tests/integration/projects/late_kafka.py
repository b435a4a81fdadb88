"""A Kafka sink in late mode, staged without Spark: what a worker does with its rows, and what a commit does then."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka import python_writer
from onceonly.sinks.kafka.handle import KafkaHandle, Part
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA


@dataclass
class Late:
    """One transaction of a sink into one topic."""

    folder: Path
    bootstrap: str
    topic: str
    sink: dict[str, Any] = field(default_factory=dict)
    recorded: list[Handle] = field(default_factory=list)
    lock: Any = field(default_factory=Lock)
    txn: Transaction = field(
        default_factory=lambda: Transaction(uuid.uuid4().hex[:12], "flights", "late", 1, 1, uuid.uuid4().hex[:12])
    )

    @property
    def writer(self) -> KafkaWriter:
        """A new one each time, as another process has."""
        config = KafkaSink(name="late", topic=self.topic, **self.sink)
        return KafkaWriter(config, KafkaConnection.plaintext(self.bootstrap), True, str(self.folder), self.folder)

    def stage(self, *parts: Sequence[dict[str, Any]]) -> Handle:
        """Each part as one Spark task has it."""
        with self.known() as known:
            job = self.writer._job(self.txn, self.writer._target(known))
            receipts = [
                python_writer._stage_part(job, number, iter([self.batch(rows)])) for number, rows in enumerate(parts)
            ]
            handle: Handle = {
                "kind": "kafka",
                "guarantee": "exactly-once",
                "cluster": known.read_cluster_id(),
                "topics": known.read_topic_ids([self.topic]),
                "txn": self.txn.name,
                "slot": None,
                "folder": job.spool,
                "rows": sum(len(rows) for rows in parts),
                "parts": [{"spool": r.spool, "rows": r.rows, "tx": None} for r in receipts if r],
            }
        self.recorded.append(handle)
        return handle

    def batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        plain = {"topic": self.topic, "value": b"v", "headers": []}
        return pa.RecordBatch.from_pylist([{**plain, **row} for row in rows], SPOOL_SCHEMA)

    def replace(self, old: Handle, new: Handle) -> Handle:
        """As `Receipts`."""
        with self.lock:
            if old == self.recorded[-1]:
                self.recorded.append(new)
            return self.recorded[-1]

    def commit(self) -> Any:
        return self.writer.commit(self.recorded[-1], 1, self)

    def parts(self, handle: Handle | None = None) -> tuple[Part, ...]:
        """Of a handle, by default the last."""
        return KafkaHandle.parse("late", handle or self.recorded[-1]).parts

    def written(self, handle: Handle | None = None) -> dict[str, str]:
        """Spool file → transactional id, of the parts that a handle (by default the last) names one for."""
        return {part.spool: part.tx.id for part in self.parts(handle) if part.tx}

    def open(self) -> list[str]:
        with self.known() as known:
            return known.list_open(f".*{self.txn.name}.*")

    def known(self) -> Transactions:
        return Transactions({"bootstrap_servers": self.bootstrap})
