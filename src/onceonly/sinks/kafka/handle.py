"""A Kafka sink's handle: parts, each with a spool file and, after it was written to Kafka, a transaction with an id.

Transactional ids are unique, with the transaction's name in them, or pooled, with a leased slot in them. A pooled id is
reused by later attempts, and by parallel attempts of a task: each fences the one before. The owner is identified by
producer id and epoch, and by the lease of the slot.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.kafka.log_ends import Batch
from onceonly.sinks.staging.handles import check_file, check_folder

Partition = tuple[str, int]  # topic, partition
POOLED_ID = re.compile(r"[^-]+-[^-]+-[^-]+-[^-]+-pool-(\d+)-\d+")


@dataclass(frozen=True)
class Resolution:
    """How a transaction ended, recorded when a person has resolved a doubt. It counts where the log shows nothing.

    Args:
        by: "log": what the log showed then. "person": what the person said, because it showed nothing.
    """

    committed: bool
    by: Literal["log", "person"]

    @property
    def outcome(self) -> str:
        return "committed" if self.committed else "aborted"

    @property
    def words(self) -> str:
        """Words for people, after what the log shows."""
        source = "as the log showed then" if self.by == "log" else "as a person said"
        return f"; resolved as {self.outcome}, {source}"

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "by": self.by}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Resolution:
        return cls(data["outcome"] == "committed", data["by"])


@dataclass(frozen=True)
class Tx:
    """One transaction, as its coordinator described it after all of its rows were acknowledged."""

    id: str
    producer_id: int
    epoch: int
    partitions: Mapping[Partition, tuple[int | None, int]]  # first offset (if known), log end after the flush
    resolution: Resolution | None = None

    @property
    def producer(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    @property
    def name(self) -> tuple[str, int, int]:
        """What identifies the transaction: an id of a pool is not enough, because it is reused."""
        return self.id, *self.producer

    @property
    def has_pooled_id(self) -> bool:
        return slot_of(self.id) is not None

    def to_json(self) -> dict[str, Any]:
        spans = [[topic, number, *span] for (topic, number), span in sorted(self.partitions.items())]
        data: dict[str, Any] = {
            "id": self.id,
            "producer_id": self.producer_id,
            "epoch": self.epoch,
            "partitions": spans,
        }
        if self.resolution:
            data["resolution"] = self.resolution.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tx:
        spans = {(topic, number): (start, end) for topic, number, start, end in data["partitions"]}
        resolution = None
        if "resolution" in data:
            resolution = Resolution.from_json(data["resolution"])
        return cls(data["id"], data["producer_id"], data["epoch"], spans, resolution)


@dataclass(frozen=True)
class Part:
    """The rows of one Spark partition."""

    spool: str  # file name in the handle's folder
    rows: int
    tx: Tx | None = None  # None: not written to Kafka yet

    def to_json(self) -> dict[str, Any]:
        return {"spool": self.spool, "rows": self.rows, "tx": self.tx.to_json() if self.tx else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        return cls(data["spool"], data["rows"], Tx.from_json(data["tx"]) if data["tx"] else None)


def with_resolution(part: Part, resolution: Resolution) -> Part:
    """Return the part with a resolution of its transaction; unchanged if it has none."""
    if part.tx is None:
        return part
    return replace(part, tx=replace(part.tx, resolution=resolution))


@dataclass(frozen=True)
class LogEnd:
    """The end of one log, and the batch that held the last offset below it."""

    partition: Partition
    end: int
    batch: Batch

    @property
    def topic(self) -> str:
        return self.partition[0]

    @property
    def number(self) -> int:
        return self.partition[1]

    def to_json(self) -> list[Any]:
        return [*self.partition, self.end, *self.batch.to_json()]

    @classmethod
    def from_json(cls, data: list[Any]) -> LogEnd:
        topic, number, end, *batch = data
        return cls((topic, number), end, Batch(*batch))


@dataclass(frozen=True)
class KafkaHandle:
    """A parsed handle.

    Args:
        data: the handle as it is recorded. It may have more keys, which a newer version has added.
        txn: the transaction of the sink; its name is that of the folder with the spool.
        guarantee: of the sink, when it staged.
        cluster: id of the cluster for which the rows were staged.
        topics: ids of the topics for which they were staged, by name.
        slot: of the pool of transactional ids; None: they are unique.
        folder: of the spool, as it was recorded, for messages. The sink reads its rows in its own folder.
        log_ends: behind the rows of the transactions.
    """

    data: Handle
    txn: Transaction
    guarantee: str
    cluster: str
    topics: Mapping[str, str]
    slot: int | None
    folder: str
    rows: int
    parts: tuple[Part, ...]
    log_ends: tuple[LogEnd, ...]

    @classmethod
    def parse(cls, sink: str, handle: Handle) -> KafkaHandle:
        """Parse the handle of a sink.

        Raises:
            CannotPublish: it names a folder or a file that the sink does not write.
        """
        check_folder(sink, handle["txn"])
        txn = Transaction.parse(handle["txn"])
        assert txn is not None
        parts = tuple(Part.from_json(part) for part in handle["parts"])
        for part in parts:
            if part.spool or handle["guarantee"] != "none":  # without a guarantee, nothing is kept
                check_file(sink, part.spool)
        log_ends = tuple(LogEnd.from_json(log_end) for log_end in handle.get("log_ends", ()))
        return cls(
            data=handle,
            txn=txn,
            guarantee=handle["guarantee"],
            cluster=handle["cluster"],
            topics=dict(handle["topics"]),
            slot=handle["slot"],
            folder=handle["folder"],
            rows=handle["rows"],
            parts=parts,
            log_ends=log_ends,
        )

    @property
    def place(self) -> dict[str, Any]:
        """Where the rows go: the cluster's id and, by name, those of the topics."""
        return {"cluster": self.cluster, "topics": self.topics}

    def replace_parts(self, parts: Iterable[Part]) -> Handle:
        """Return the handle to record, with these parts."""
        return {**self.data, "parts": [part.to_json() for part in parts]}


# ---- transactional ids


@dataclass(frozen=True)
class Ids:
    """The ids of one transaction of a sink.

    Args:
        prefix: the sink's id_prefix.
        slot: of the pool; None if there is no pool.
    """

    prefix: str
    txn: Transaction
    slot: int | None

    def first(self, part: str | int) -> str:
        """Return the id for the rows of one Spark partition."""
        if self.pooled_prefix is None:
            return self.unique(part)
        return f"{self.pooled_prefix}-{part}"

    def unique(self, part: str | int) -> str:
        """Return a new id for rows whose transaction was lost.

        With a pooled id, processes could fence each other forever.
        """
        return f"{self.unique_prefix}-{part}-{uuid.uuid4().hex[:8]}"

    @property
    def pooled_prefix(self) -> str | None:
        """How a pooled id begins, before the number of the Spark partition; None: there is no pool."""
        if self.slot is None:
            return None
        return f"{self.prefix}-{self.txn.prefix}-pool-{self.slot}"

    @property
    def unique_prefix(self) -> str:
        """How a unique id begins, before the part and eight random digits."""
        return f"{self.prefix}-{self.txn.name}"


def owner(id: str) -> Transaction | None:
    """Return the transaction to which a unique id belongs; None for any other id."""
    words = id.split("-")
    if len(words) < 9:
        return None
    return Transaction.parse("-".join(words[-8:-2]))


def unique_ids_pattern(name: str) -> str:
    """Return a pattern of the unique ids that contain this name or prefix."""
    return f".+-{re.escape(name)}-.+"


def pooled_ids_pattern(prefix: str) -> str:
    """Return a pattern of the pooled ids of one sink, with any id_prefix."""
    return f".+-{re.escape(prefix)}-pool-[0-9]+-[0-9]+"


def slot_of(id: str) -> int | None:
    """Return the slot of a pooled id; None for a unique one."""
    match = POOLED_ID.fullmatch(id)
    return int(match[1]) if match else None


def transaction_names(parts: Sequence[Part]) -> str:
    """Return the ids of the transactions that these parts have, for messages."""
    return ", ".join(part.tx.id for part in parts if part.tx)
