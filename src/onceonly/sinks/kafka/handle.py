"""The parts of a Kafka sink's handle. Each has a spool file and, after it was written to Kafka, a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from onceonly.checkpoint.model import Handle
from onceonly.sinks.kafka.transactional_ids import slot_of

Partition = tuple[str, int]  # topic, partition


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


def parts_of(handle: Handle) -> list[Part]:
    return [Part.from_json(part) for part in handle["parts"]]


def with_parts(handle: Handle, parts: Iterable[Part]) -> Handle:
    return {**handle, "parts": [part.to_json() for part in parts]}


def with_resolution(part: Part, resolution: Resolution) -> Part:
    """Return the part with a resolution of its transaction; unchanged if it has none."""
    if part.tx is None:
        return part
    return replace(part, tx=replace(part.tx, resolution=resolution))
