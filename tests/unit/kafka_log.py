"""A cluster with one topic of two partitions, in memory, for the tests of the Kafka sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle
from onceonly.errors import NotCommitted
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.log_ends import Batch, LogComparison
from onceonly.kafka.transactions import Described, MarkerState
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.handle import Part, Resolution, Tx
from onceonly.sinks.kafka.sink import KafkaWriter

COMMITTED, ABORTED, NONE, UNKNOWN = MarkerState.COMMITTED, MarkerState.ABORTED, MarkerState.NONE, MarkerState.UNKNOWN
TXN = "0123456789ab-flights-late-1-1-nonce"
ID = f"onceonly-{TXN}-0-12345678"


class Log:
    """What two partitions show, look after look; the last look stays."""

    largest = 1 << 20  # max.message.bytes

    def __init__(self, *looks: tuple[MarkerState, MarkerState]) -> None:
        self.looks, self.done = list(looks), list[str]()
        self.cluster, self.topics, self.end_offsets = "cluster", {"t": "id"}, {("t", 0): 9, ("t", 1): 9}
        self.described: dict[str, Described] = {}
        self.batches = {0: Batch(4, 8, 77), 1: Batch(4, 8, 77)}
        self.comparison = LogComparison({}, ())

    def read_marker_states(
        self, since: Mapping[tuple[str, int], int], *_: Any, **__: Any
    ) -> dict[tuple[str, int], MarkerState]:
        self.done.append("look")
        found = self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
        return dict(zip(sorted(since), found, strict=True))

    def share_scans(self, *_: Any) -> None:
        pass

    def end(self, *_: Any, commit: bool) -> None:
        self.done.append("commit")

    def prefetch_pages(self, *_: Any) -> None:
        raise NotCommitted("what", "why", "todo")  # it only saves requests

    prefetch_coordinators = prefetch_pages

    def withdraw(self, *_: Any) -> None:
        self.done.append("withdraw")

    def fence(self, id: str) -> None:
        self.done.append("fence")

    def describe(self, ids: Any) -> dict[str, Described]:
        return {id: self.described[id] for id in ids if id in self.described}

    def read_topic_config(self, topic: str) -> dict[str, str]:
        return {"max.message.bytes": str(self.largest)}

    def read_max_request_bytes(self) -> int:
        return 100 << 20

    def list_refusing_partitions(self, topics: Any) -> list[str]:
        return []

    def read_max_transaction_timeout(self) -> float:
        return 3600.0

    def list_open(self, pattern: str) -> list[str]:
        return []

    def read_starts(self, producer_id: int, partitions: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(partitions, 17)

    def read_cluster_id(self) -> str:
        return self.cluster

    def read_topic_ids(self, topics: Any) -> dict[str, str]:
        return dict(self.topics)

    def count_partitions(self, topics: Any) -> dict[str, int]:
        return dict.fromkeys(self.topics, 2)

    def read_ends(self, partitions: Any) -> dict[tuple[str, int], int]:
        return {partition: self.end_offsets[partition] for partition in partitions}

    def read_end_batches(self, topic: Any, ends: Mapping[int, int]) -> dict[int, Batch]:
        return {number: self.batches[number] for number in ends if number in self.batches}

    def compare_ends(self, *_: Any) -> LogComparison:
        self.done.append("compare")
        return self.comparison

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def part(id: str = ID, resolution: Resolution | None = None) -> Part:
    return Part("0-spool.parquet", 2, Tx(id, 1, 0, {("t", 0): (0, 1), ("t", 1): (0, 1)}, resolution))


class Writer(KafkaWriter):
    """On one log that stands for the cluster."""

    def __init__(self, log: Any, guarantee: Any = "exactly-once", spool: Path = Path("/nowhere")) -> None:
        config = KafkaSink(name="late", topic="t", guarantee=guarantee)
        super().__init__(config, KafkaConnection.plaintext("nowhere:1"), True, str(spool), Path("/nowhere"))
        self._transactions = lambda: log  # type: ignore[method-assign]


LOG_ENDS = [["t", 0, 1, 4, 0, 77], ["t", 1, 1, 4, 0, 78]]  # the batches that ended the logs behind the rows of `part`


def handle(*parts: Part, guarantee: str = "exactly-once") -> Handle:
    place = {"cluster": "cluster", "topics": {"t": "id"}}
    plain = {
        "kind": "kafka",
        "mode": "late",
        "guarantee": guarantee,
        "txn": TXN,
        "folder": TXN,
        "slot": None,
        "bytes": 9,
    }
    return {**plain, **place, "rows": 2 * len(parts), "parts": [each.to_json() for each in parts]}
