"""What a topic's mark says about the batches that the log holds now."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import pytest
from codes import raises

from onceonly.checkpoint.offsets import LOG_REPLACED, TopicRange
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.kafka import log_ends
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.log_ends import HEADER, Batch
from onceonly.sources.topic_marks import TopicMarks

MARK = Batch(4, 190, 77)


class Log:
    """Brokers whose answers are set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: dict[int, Batch | None] = {0: MARK}
        self.epoch_ends: dict[int, int | None] = {}
        self.asked: list[str] = []
        monkeypatch.setattr(log_ends, "read_end_batches", self._read_end_batches)
        monkeypatch.setattr(log_ends, "read_epoch_ends", self._read_epoch_ends)

    def _read_end_batches(self, _: Any, topic: Any, ends: Mapping[int, int]) -> dict[int, Batch | None]:
        self.asked += [f"batch {partition}<{end}" for partition, end in ends.items()]
        return {partition: self.batches[partition] for partition in ends}

    def _read_epoch_ends(self, _: Any, topic: Any, epochs: Mapping[int, int]) -> dict[int, int | None]:
        self.asked += [f"epoch {epoch}" for epoch in epochs.values()]
        return {partition: self.epoch_ends[partition] for partition in epochs}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


@pytest.fixture
def marks() -> TopicMarks:
    return TopicMarks(KafkaConnection.plaintext("nowhere:1"))


def pinned(marks: TopicMarks, **ends: int) -> TopicRange:
    partitions = {int(name[1:]): (0, end) for name, end in (ends or {"p0": 200}).items()}
    return marks.mark(TopicRange("flights", "id", partitions), None)


@pytest.mark.parametrize(
    ("now", "epoch_end", "replaced"),
    [
        (MARK, None, False),
        (Batch(5, 190, 77), 150, True),  # by another leader
        (Batch(4, 188, 77), 200, True),  # in another batch
        (Batch(4, 190, 78), 200, True),  # other records, by a leader of the same epoch
        (Batch(4, 190, 78, is_compacted=True), None, False),
        (Batch(5, 190, 78, is_compacted=True), 150, True),
        (None, 150, True),  # compacted away since, above the place where the log was cut
        (None, 200, False),
        (None, 350, False),
    ],
)
def test_batch_at_the_end_shows_a_replaced_log(
    log: Log, marks: TopicMarks, now: Batch | None, epoch_end: int | None, replaced: bool
) -> None:
    range_ = pinned(marks)
    log.batches[0], log.epoch_ends[0] = now, epoch_end
    if not replaced:
        marks.check(range_)
        return
    with raises(SourceLost, "source-log-replaced") as error:
        marks.check(range_)
    assert error.value.code == LOG_REPLACED
    if epoch_end == 150:
        assert "cut off at offset 150" in error.value.why


def test_unknown_log_is_told_by_plan_alone(log: Log, marks: TopicMarks) -> None:
    range_ = pinned(marks)
    log.batches[0] = log.epoch_ends[0] = None
    with pytest.warns(RuntimeWarning, match=r"topic 'flights'.*not known.*partition 0"):
        assert marks.mark_next(range_, range_) == range_
    marks.check(range_)  # without a note


def test_quiet_partition_keeps_its_first_mark(log: Log, marks: TopicMarks) -> None:
    log.batches[1] = Batch(1, 5, 6)
    first = pinned(marks, p0=200, p1=7)
    log.asked.clear()
    moved = TopicRange("flights", "id", {0: (200, 300), 1: (7, 7)})
    log.batches[0] = Batch(4, 290, 1)
    assert marks.mark(moved, first).mark == '{"0":[4,290,1],"1":[1,5,6]}'
    assert log.asked == ["batch 0<300"]


def test_same_log_costs_one_request(log: Log, marks: TopicMarks) -> None:
    range_ = pinned(marks)
    log.asked.clear()
    marks.mark_next(range_, range_)
    assert log.asked == ["batch 0<200"]


def test_brokers_that_tell_nothing_stop_no_pipeline(
    log: Log, marks: TopicMarks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise InvalidPipeline("the Kafka broker does not allow this.", "29")

    range_ = pinned(marks)
    monkeypatch.setattr(log_ends, "read_end_batches", refuse)
    with pytest.warns(RuntimeWarning, match="topic 'flights'.*29"):
        assert marks.mark_next(TopicRange("flights", "id", {0: (200, 300)}), range_).mark is None
    marks.check(range_)


def test_connection_without_translation_stops_no_pipeline(log: Log) -> None:
    settings = {"bootstrap.servers": "nowhere:1", "ssl.engine.location": "engine", "security.protocol": "SSL"}
    marks = TopicMarks(KafkaConnection(settings))
    with pytest.warns(RuntimeWarning, match=r"ssl\.engine\.location"):
        assert marks.mark_next(TopicRange("flights", "id", {0: (0, 200)}), None).mark is None


# --- batches


def header(base: int, records: int, delta: int, epoch: int = 4, crc: int = 7, attributes: int = 0) -> bytes:
    return HEADER.pack(base, HEADER.size - 12, epoch, 2, crc, attributes, delta, 0, 0, -1, -1, -1, records)


def test_batch_that_holds_the_offset_is_taken() -> None:
    records = header(180, 10, 9) + header(190, 10, 9, crc=8) + header(200, 1, 0)
    assert log_ends._batch_with(records, 199) == Batch(4, 190, 8)
    assert log_ends._batch_with(records, 190) == Batch(4, 190, 8)


def test_compaction_shows_in_a_batch() -> None:
    assert log_ends._batch_with(header(190, 3, 9), 199) == Batch(4, 190, 7, is_compacted=True)
    assert log_ends._batch_with(header(190, 10, 9, attributes=0x40), 199) == Batch(4, 190, 7, is_compacted=True)


def test_no_batch_holds_a_removed_offset() -> None:
    assert log_ends._batch_with(header(200, 1, 0), 199) is None
    assert log_ends._batch_with(struct.pack(">qi", 190, 40), 199) is None
