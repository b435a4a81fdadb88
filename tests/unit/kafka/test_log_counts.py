"""Counting what lies in parts of a log, from the headers of its batches."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from codes import raises

from onceonly.errors import NotCommitted
from onceonly.kafka import log_counts
from onceonly.kafka.log_counts import LogCount, SpanCount
from onceonly.kafka.log_ends import CONTROL, HEADER, LENGTH_END, TRANSACTIONAL
from onceonly.kafka.markers import MarkerState, Page, PartitionLog

LOG = PartitionLog("flights", 0, "id")
COMMIT, ABORT = 1, 2


def batch(base: int, records: int, producer: int = -1, *, span: int | None = None, magic: int = 2) -> bytes:
    """Return a batch of data; `span`: how many offsets it had before compaction."""
    attributes = TRANSACTIONAL if producer >= 0 else 0
    return _header(base, span or records, records, attributes, producer, magic)


def marker(base: int, producer: int, state: int) -> bytes:
    return _header(base, 1, 1, TRANSACTIONAL | CONTROL, producer, crc=state)


def _header(base: int, span: int, records: int, attributes: int, producer: int, magic: int = 2, crc: int = 0) -> bytes:
    fields = (base, HEADER.size - LENGTH_END, 0, magic, crc, attributes, span - 1, 0, 0, producer, 0, 0, records)
    return HEADER.pack(*fields)


@pytest.fixture(autouse=True)
def _states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The content of a marker is in place of its checksum here."""
    states = {COMMIT: MarkerState.COMMITTED, ABORT: MarkerState.ABORTED}
    monkeypatch.setattr(log_counts, "_read_state", lambda content: states[HEADER.unpack_from(content)[4]])


def counts(monkeypatch: pytest.MonkeyPatch, log: list[bytes], *spans: tuple[int, int], per_page: int = 2) -> Any:
    """Count in these parts of a log, of which each page has so many batches."""
    end = max(struct.unpack_from(">q", content)[0] + HEADER.unpack_from(content)[6] + 1 for content in log)

    def pages(client: Any, partition_log: PartitionLog, offset: int) -> Page:
        following = [content for content in log if _last(content) >= offset]
        return Page(partition_log, offset, end, True, b"".join(following[:per_page]))

    monkeypatch.setattr(log_counts, "fetch_page", pages)
    passed: list[int] = []
    counted = LogCount(LOG, spans, passed.append).read(None)  # type: ignore[arg-type]
    return counted, sum(passed)


def _last(content: bytes) -> int:
    fields = HEADER.unpack_from(content)
    return int(fields[0] + fields[6])


def test_records_of_each_span_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(0, 5), batch(5, 5), batch(10, 5)]
    (first, second), passed = counts(monkeypatch, log, (0, 7), (7, 15))
    assert (first, second) == (SpanCount(7, is_complete=True), SpanCount(8, is_complete=True))
    assert passed == 15


def test_aborted_records_and_markers_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(0, 3, 1), batch(3, 2, 2), marker(5, 1, ABORT), batch(6, 2), marker(8, 2, COMMIT), batch(9, 1)]
    (count,), _ = counts(monkeypatch, log, (0, 10))
    assert count == SpanCount(committed=5, aborted=3, markers=2, is_complete=True)


def test_marker_behind_the_last_span_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(0, 3, 1), batch(3, 2, 2), marker(5, 2, COMMIT), marker(6, 1, COMMIT)]
    (count,), passed = counts(monkeypatch, log, (0, 5))
    assert (count, passed) == (SpanCount(committed=5, is_complete=True), 5)


def test_transaction_without_an_end_is_unresolved(monkeypatch: pytest.MonkeyPatch) -> None:
    (count,), _ = counts(monkeypatch, [batch(0, 3, 1), batch(3, 2)], (0, 5))
    assert count == SpanCount(committed=2, unresolved=3, is_complete=True)


def test_compaction_leaves_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [batch(0, 2), batch(4, 2), batch(6, 2, span=4), batch(12, 2)]
    (first, second, third), _ = counts(monkeypatch, log, (0, 4), (4, 10), (12, 14))
    assert (first.committed, first.has_gap) == (2, True)
    assert (second.committed, second.has_gap) == (4, True)
    assert (third.committed, third.has_gap) == (2, False)


def test_log_that_ends_early_is_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second), _ = counts(monkeypatch, [batch(0, 5)], (0, 3), (3, 9))
    assert (first.is_complete, second.is_complete) == (True, False)


def test_logs_of_old_brokers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with raises(NotCommitted, "log-too-old"):
        counts(monkeypatch, [batch(0, 5, magic=1)], (0, 5))


def test_vanished_topic_leaves_all_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_counts, "fetch_page", lambda *_: None)
    (count,) = LogCount(LOG, [(0, 5)], lambda _: None).read(None)  # type: ignore[arg-type]
    assert not count.is_complete
