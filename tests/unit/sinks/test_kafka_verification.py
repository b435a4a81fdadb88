"""What a verification of topics finds, in logs of record batches. The integration tests have a real broker."""

from __future__ import annotations

import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from codes import raises
from unit.kafka_log import Log
from unit.lightdelta import transaction
from xxhash64 import xxhash64

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Publication
from onceonly.checkpoint.verification import Depth, Judgement, Published
from onceonly.errors import NotCommitted
from onceonly.kafka import log_transactions, markers
from onceonly.kafka.log_transactions import LogContent
from onceonly.kafka.markers import Page, PartitionLog
from onceonly.sinks.kafka import digest, verification
from onceonly.testing.ledger import FIRST_TIME, list_codes

COMMIT, ABORT = 1, 0
PLAIN = (-1, -1)  # a producer without id


def make_builder(producer: tuple[int, int], sequence: int, is_transactional: bool, is_control: bool = False) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # kafka-python reads its version by a deprecated call
        from kafka.record.default_records import DefaultRecordBatchBuilder

    class Builder(DefaultRecordBatchBuilder):  # type: ignore[misc]
        def _get_attributes(self, include_compression_type: bool = True) -> int:
            attributes: int = super()._get_attributes(include_compression_type)
            return attributes | self.CONTROL_MASK if is_control else attributes

    return Builder(2, 0, is_transactional, *producer, sequence, 1 << 20)


@dataclass
class Topic(Log):
    """A cluster with one topic of two partitions, whose logs hold record batches."""

    content: dict[int, bytes] = field(default_factory=lambda: {0: b"", 1: b""})
    starts: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    next: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    committed_ids: list[str] = field(default_factory=list)
    _client: Any = None

    def __post_init__(self) -> None:
        super().__init__()

    def add(self, partition: int, producer: tuple[int, int], *values: bytes, transactional: bool = True) -> int:
        """Append a batch; returns its first offset."""
        is_transactional = transactional and producer != PLAIN
        sequence = 0 if producer != PLAIN else -1
        builder = make_builder(producer, sequence, is_transactional)
        for number, value in enumerate(values):
            builder.append(number, 1, None, value, [])
        return self._append(partition, builder, len(values))

    def mark(self, partition: int, producer: tuple[int, int], type: int) -> None:
        builder = make_builder(producer, -1, True, is_control=True)
        builder.append(0, 1, struct.pack(">hh", 0, type), struct.pack(">hi", 0, 0), [])
        self._append(partition, builder, 1)

    def _append(self, partition: int, builder: Any, count: int) -> int:
        first = self.next[partition]
        self.content[partition] += struct.pack(">q", first) + bytes(builder.build())[8:]
        self.next[partition] += count
        return first

    def skip(self, partition: int, offsets: int) -> None:
        """Compaction has removed what was there."""
        self.next[partition] += offsets

    def list_committed(self, pattern: str) -> list[str]:
        return [id for id in self.committed_ids if re.fullmatch(pattern, id)]

    def read_ends(self, partitions: Any) -> dict[tuple[str, int], int]:
        return {(name, number): self.next[number] for name, number in partitions}

    def read_log_starts(self, partitions: Any) -> dict[tuple[str, int], int]:
        return {(name, number): self.starts[number] for name, number in partitions}

    def read_content(self, log: PartitionLog, start: int, end: int) -> LogContent:
        return log_transactions.read_content(self._client, log, start, end)

    def fetch_page(self, _: Any, log: PartitionLog, offset: int) -> Page:
        """All batches, from the one with this offset on, as a broker returns them."""
        content, place = self.content[log.number], 0
        while place < len(content):
            base, length = struct.unpack_from(">qi", content, place)
            (delta,) = struct.unpack_from(">i", content, place + 23)
            if base + delta >= offset:
                break
            place += 12 + length
        return Page(log, offset, self.next[log.number], True, content[place:])


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    topic = Topic()
    monkeypatch.setattr(markers, "fetch_page", topic.fetch_page)
    return topic


@dataclass
class Shelf:
    topic: Topic
    published: list[Published] = field(default_factory=list)
    open_epochs: frozenset[int] = frozenset()

    def publish(self, epoch: int, *values: bytes, end: int | None = COMMIT, marker_epoch: int = 1) -> Published:
        """Write a transaction, half of it in each partition, and record it."""
        producer, spans = (1000, epoch), []
        for partition in (0, 1):
            part = values[partition::2]
            if part:
                first = self.topic.add(partition, producer, *part)
                spans.append(["t", partition, first, first + len(part)])
        for _, partition, _, _ in spans:
            if end is not None:
                self.topic.mark(int(partition), (1000, epoch + marker_epoch), end)  # Kafka 4 adds one
        tx = {"id": f"id-{epoch}", "producer_id": 1000, "epoch": epoch, "partitions": spans}
        return self._record(epoch, values, [{"spool": "0.parquet", "rows": len(values), "tx": tx}] if values else [])

    def publish_by_several(self, epoch: int, *values: bytes) -> Published:
        """Write each row by a transaction of its own, all into one partition, and record them."""
        parts = list[dict[str, Any]]()
        for producer, value in enumerate(values, 2000):
            first = self.topic.add(0, (producer, 0), value)
            tx = {
                "id": f"id-{producer}",
                "producer_id": producer,
                "epoch": 0,
                "partitions": [["t", 0, first, first + 1]],
            }
            parts.append({"spool": f"{producer}.parquet", "rows": 1, "tx": tx})
        for part in parts:
            self.topic.mark(0, (part["tx"]["producer_id"], 1), COMMIT)
        return self._record(epoch, values, parts)

    def _record(self, epoch: int, values: Sequence[bytes], parts: Sequence[Mapping[str, Any]]) -> Published:
        total = sum(xxhash64(value, 42) for value in values)
        handle = {
            **{"kind": "kafka", "guarantee": "exactly-once", "mode": "staged", "cluster": "cluster"},
            **{"topics": {"t": "id"}, "txn": transaction(epoch).name.replace("lake", "late"), "slot": None},
            **{"folder": "x", "rows": len(values), "bytes": 1, "digest": digest.to_text(total), "parts": list(parts)},
        }
        published = Published(epoch, epoch, handle, Publication(epoch, epoch, {"bootstrap": "b:1"}), FIRST_TIME)
        self.published.append(published)
        return published

    def judged(self, judgement: Judgement, deep: bool = True) -> list[tuple[int | None, str]]:
        client: Any = self.topic
        depth = Depth(deep, open_epochs=self.open_epochs)
        found = verification.verify("late", client, "b:1", ["t"], self.published, depth)
        return list_codes(list(found), judgement)

    def wrong(self, deep: bool = True) -> list[tuple[int | None, str]]:
        return self.judged(Judgement.WRONG, deep)

    def change(self, epoch: int, **changes: Any) -> None:
        for number, one in enumerate(self.published):
            if one.epoch == epoch:
                self.published[number] = replace(one, handle={**one.handle, **changes})


@pytest.fixture
def shelf(topic: Topic) -> Shelf:
    shelf = Shelf(topic)
    shelf.publish(1, b"1", b"2")
    shelf.publish(2, b"3", b"4", b"5")
    shelf.publish(3, b"6")
    return shelf


ALL_RIGHT = [(1, "right"), (2, "right"), (3, "right")]


@pytest.mark.parametrize("deep", [False, True])
def test_published_records_are_right(shelf: Shelf, deep: bool) -> None:
    assert (shelf.judged(Judgement.RIGHT, deep), shelf.wrong(deep)) == (ALL_RIGHT, [])


def test_others_and_repetitions_are_not_accused(shelf: Shelf) -> None:
    shelf.publish(4)
    shelf.publish(5, b"3", b"4", b"5")  # as --again writes them
    shelf.topic.add(0, (7, 0), b"3", b"4", b"5")
    shelf.topic.mark(0, (7, 1), ABORT)
    shelf.topic.add(0, (8, 0), b"90", b"91")
    shelf.topic.mark(0, (8, 1), COMMIT)
    shelf.topic.add(1, PLAIN, b"92")
    assert shelf.judged(Judgement.RIGHT) == [*ALL_RIGHT, (4, "right"), (5, "right")]
    assert (shelf.wrong(), shelf.judged(Judgement.UNKNOWN)) == ([], [])


def test_same_records_in_another_transaction_are_found(shelf: Shelf) -> None:
    shelf.topic.add(0, (7, 0), b"5", b"3", b"4")  # in another order, in one partition
    shelf.topic.mark(0, (7, 1), COMMIT)
    assert shelf.wrong(deep=False) == []
    assert shelf.wrong() == [(2, "rows-twice")]


def test_same_records_without_a_transaction_are_found(shelf: Shelf) -> None:
    shelf.topic.add(0, PLAIN, b"3")
    shelf.topic.add(1, PLAIN, b"4")
    shelf.topic.add(1, PLAIN, b"5")
    assert shelf.wrong() == [(2, "rows-twice")]


def test_what_several_transactions_wrote_into_one_partition_is_found(shelf: Shelf) -> None:
    shelf.publish_by_several(4, b"7", b"8")
    shelf.topic.add(0, PLAIN, b"7", b"8")
    assert shelf.wrong() == [(4, "rows-twice")]


def test_aborted_transaction_is_named(shelf: Shelf) -> None:
    shelf.publish(4, b"7", b"8", end=ABORT)
    assert shelf.wrong(deep=False) == []
    assert shelf.wrong() == [(4, "transaction-aborted")]


def test_open_transaction_is_named(shelf: Shelf) -> None:
    shelf.publish(4, b"7", b"8", end=None)
    shelf.topic.add(0, PLAIN, b"98")
    shelf.topic.add(1, PLAIN, b"99")
    assert shelf.wrong() == [(4, "transaction-open")]


def test_transactions_of_one_producer_epoch_are_told_apart(topic: Topic) -> None:
    """Before Kafka 4 a producer keeps its epoch from one transaction to the next."""
    shelf = Shelf(topic)
    for epoch in (1, 2):
        published = shelf.publish(epoch, b"1%d" % epoch, b"2%d" % epoch, marker_epoch=0)
        assert published.handle["parts"]
    assert shelf.judged(Judgement.RIGHT) == [(1, "right"), (2, "right")]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"digest": "0" * 16}, "records-differ"),
        ({"cluster": "another"}, "target-replaced"),
        ({"topics": {"t": "another"}}, "target-replaced"),
        ({"txn": "../x"}, "record-damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_edited_state_row_is_named(shelf: Shelf, changes: Mapping[str, Any], code: str) -> None:
    shelf.change(2, **changes)
    assert (2, code) in shelf.wrong()


def test_another_number_of_rows_is_named(shelf: Shelf) -> None:
    (part,) = shelf.published[1].handle["parts"]
    shelf.change(2, parts=[{**part, "rows": 4}])
    assert shelf.wrong() == [(2, "row-count")]


def test_log_that_ends_too_early_is_named(shelf: Shelf) -> None:
    shelf.topic.next[0] = 4
    assert shelf.wrong(deep=False) == [(2, "target-went-back"), (3, "target-went-back")]


def test_missing_topic_is_named(shelf: Shelf) -> None:
    shelf.topic.topics = {}
    assert {code for _, code in shelf.wrong()} == {"target-missing"}


@pytest.mark.parametrize("deep", [False, True])
def test_deleted_records_are_no_longer_known(shelf: Shelf, deep: bool) -> None:
    shelf.topic.starts = {0: 5, 1: 4}
    assert shelf.judged(Judgement.UNKNOWN, deep) == [(1, "history-gone"), (2, "history-gone")]
    assert (shelf.judged(Judgement.RIGHT, deep), shelf.wrong(deep)) == ([(3, "right")], [])


def test_compacted_records_are_no_longer_known(topic: Topic) -> None:
    shelf = Shelf(topic)
    published = shelf.publish(1, b"1", b"2", b"3")
    (part,) = published.handle["parts"]
    spans = [["t", number, first + 10, end + 10] for _, number, first, end in part["tx"]["partitions"]]
    for partition in (0, 1):
        topic.skip(partition, 20)
        topic.add(partition, PLAIN, b"9")
    shelf.change(1, parts=[{**part, "tx": {**part["tx"], "partitions": spans}}])
    assert shelf.judged(Judgement.UNKNOWN) == [(1, "history-gone")]
    assert shelf.wrong() == []


def test_sink_without_transactions_leaves_no_evidence(shelf: Shelf) -> None:
    shelf.change(2, guarantee="at-least-once")
    assert shelf.judged(Judgement.UNKNOWN) == [(2, "no-evidence")]


@pytest.mark.parametrize(("epoch", "code"), [(2, "commit-unrecorded"), (4, "not-recorded-yet")])
def test_committed_transaction_that_is_not_recorded_is_named(shelf: Shelf, epoch: int, code: str) -> None:
    """A coordinator remembers it for a week."""
    txn = Transaction.parse(str(shelf.published[0].handle["txn"]))
    assert txn is not None
    mine, other = replace(txn, epoch=epoch, attempt=2), replace(txn, sink="later")
    shelf.topic.committed_ids = [f"onceonly-{other.name}-0-0123abcd", f"onceonly-{txn.prefix}-pool-0-1", "theirs"]
    assert (shelf.wrong(False), shelf.judged(Judgement.UNKNOWN, False)) == ([], [])
    shelf.topic.committed_ids.append(f"onceonly-{mine.name}-0-0123abcd")
    assert (None, code) in shelf.wrong(False) + shelf.judged(Judgement.UNKNOWN, False)


def test_transaction_of_a_checkpoint_that_is_being_published_is_awaited(shelf: Shelf) -> None:
    """Intervals are published in any order, so that a later one may be recorded already."""
    txn = Transaction.parse(str(shelf.published[1].handle["txn"]))
    assert txn is not None
    shelf.topic.committed_ids = [f"onceonly-{txn.name}-0-0123abcd"]
    shelf.published = [shelf.published[0], shelf.published[2]]
    shelf.open_epochs = frozenset({2})
    for deep in (False, True):
        assert (shelf.judged(Judgement.UNKNOWN, deep), shelf.wrong(deep)) == ([(None, "not-recorded-yet")], [])


def test_rows_that_came_once_more_are_not_accused_after_some_of_the_first_were_deleted(shelf: Shelf) -> None:
    shelf.publish(4, b"3", b"4", b"5")  # as --again writes them
    shelf.topic.starts = {0: 4, 1: 0}  # the part of the second one in partition 0 is gone
    assert shelf.wrong() == []
    assert (4, "right") in shelf.judged(Judgement.RIGHT)


def test_damaged_log_is_no_answer(shelf: Shelf) -> None:
    marker = make_builder((1000, 4), -1, True, is_control=True)
    marker.append(0, 1, struct.pack(">hh", 0, COMMIT), struct.pack(">hi", 0, 0), [])
    shelf.publish(4, b"7", end=None)
    shelf.topic._append(0, marker, 1)
    shelf.topic.content[0] = shelf.topic.content[0][:-1] + b"\xff"
    with raises(NotCommitted, "log-damaged"):
        shelf.wrong()
