"""How many records lie in parts of a log: those of committed transactions, of aborted ones, and markers.

The headers of record batches are enough for that, so no record is decompressed: a batch that a producer wrote has a
record at each of its offsets. How a transaction ended is in its marker, which may lie behind the part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from onceonly.errors import NotCommitted
from onceonly.kafka.admin import BrokerClient
from onceonly.kafka.log_ends import LENGTH_END, MAGIC, TRANSACTIONAL, Header, read_headers
from onceonly.kafka.markers import MarkerState, Page, PartitionLog, fetch_page, read_marker

NO_PRODUCER = -1
Span = tuple[int, int]  # of offsets: the start is included, the end is not


@dataclass
class SpanCount:
    """What lies in one part of a log.

    Args:
        committed: records that a read_committed reader finds.
        unresolved: records of transactions whose end the log does not show.
        has_gap: offsets are missing, or a batch was rewritten: compaction has removed some of the records.
        is_complete: the log was read up to the end of the part.
    """

    committed: int = 0
    aborted: int = 0
    markers: int = 0
    unresolved: int = 0
    has_gap: bool = False
    is_complete: bool = False


class LogCount:
    """Counts what lies in parts of one log, by reading it once, from the first part to behind the last.

    Args:
        spans: in the order of their starts; they do not overlap.
        passed: is told how many more offsets were passed.
    """

    def __init__(self, log: PartitionLog, spans: Sequence[Span], passed: Callable[[int], None]) -> None:
        self._log, self._spans, self._passed = log, list(spans), passed
        self._starts, self._last_end = list(map(itemgetter(0), spans)), max(map(itemgetter(1), spans))
        self._position = self._starts[0]
        self._counts: list[SpanCount] = []
        for _ in spans:
            self._counts.append(SpanCount())
        self._pending: dict[int, Counter[int]] = defaultdict(Counter)  # by producer: number of records, by span

    def read(self, client: BrokerClient) -> list[SpanCount]:
        """Read the log, and return what lies in each part.

        Raises:
            NotCommitted: the log does not answer, or is damaged.
        """
        end: int | None = None
        while self._position < self._last_end or (self._pending and self._position < (end or 0)):
            page = fetch_page(client, self._log, self._position)
            if page is None or not page.in_range:
                break
            end = page.high_watermark if end is None else end
            before = self._position
            self._read_page(page)
            self._passed(max(0, min(self._position, self._last_end) - before))
            if self._position == before:
                self._note_gap(before, min(end, self._last_end))  # nothing is left between here and the end
                self._position = max(self._position, end)
                break
        for pending in self._pending.values():
            for number, records in pending.items():
                self._counts[number].unresolved += records
        for (_, span_end), count in zip(self._spans, self._counts, strict=True):
            count.is_complete = self._position >= span_end
        return self._counts

    def _read_page(self, page: Page) -> None:
        start = 0
        for header in read_headers(page.records):
            length = LENGTH_END + _read_length(page.records, start)
            if header.magic != MAGIC:
                raise NotCommitted(
                    f"topic {self._log} cannot be counted at offset {header.base_offset}.",
                    "Its records are in the format of brokers before 0.11.",
                    "Nothing was changed.",
                    code="log-too-old",
                )
            if header.is_control and start + length > len(page.records):
                return  # cut short: it comes whole with the next page
            if header.last_offset >= self._position:
                self._note_gap(self._position, header.base_offset)
                self._pass_batch(header, page.records[start : start + length])
                self._position = header.last_offset + 1
            start += length

    def _pass_batch(self, header: Header, batch: bytes) -> None:
        if header.is_control:
            self._pass_marker(header, batch)
            return
        for number in self._find_spans(header.base_offset, header.last_offset + 1):
            records = self._count_in_span(header, number)
            if header.attributes & TRANSACTIONAL and header.producer_id != NO_PRODUCER:
                self._pending[header.producer_id][number] += records
            else:
                self._counts[number].committed += records

    def _count_in_span(self, header: Header, number: int) -> int:
        """Return how many records of a batch lie in a part; where compaction has rewritten it, all of them may."""
        start, end = self._spans[number]
        inside = min(end, header.last_offset + 1) - max(start, header.base_offset)
        if not header.is_compacted:
            return inside
        self._counts[number].has_gap = True
        return min(header.count, inside)

    def _pass_marker(self, header: Header, batch: bytes) -> None:
        for number in self._find_spans(header.base_offset, header.last_offset + 1):
            self._counts[number].markers += 1
        state = _read_state(batch)
        if state not in (MarkerState.COMMITTED, MarkerState.ABORTED):
            return
        for number, records in self._pending.pop(header.producer_id, Counter()).items():
            if state is MarkerState.COMMITTED:
                self._counts[number].committed += records
            else:
                self._counts[number].aborted += records

    def _note_gap(self, start: int, end: int) -> None:
        """Note that the offsets from `start` to `end` have no batch."""
        for number in self._find_spans(start, end):
            self._counts[number].has_gap = True

    def _find_spans(self, start: int, end: int) -> list[int]:
        """Return the numbers of the parts that have an offset from `start` to `end`."""
        numbers = []
        number = max(0, bisect_right(self._starts, start) - 1)
        while number < len(self._spans) and self._spans[number][0] < end:
            if self._spans[number][1] > start and start < end:
                numbers.append(number)
            number += 1
        return numbers


def _read_length(records: bytes, start: int) -> int:
    return int.from_bytes(records[start + 8 : start + LENGTH_END], "big", signed=True)


def _read_state(batch: bytes) -> MarkerState | None:
    from kafka.record.memory_records import MemoryRecords

    control_batch = next(iter(MemoryRecords(batch)), None)
    return read_marker(control_batch) if control_batch is not None else None
