"""What is wrong with a history, by the names that Jepsen's workload for Kafka has for it (`jepsen.tests.kafka`).

No clock of another machine, no log and no state table is asked: the history alone decides. So a history in which
nothing was read tells nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from operator import attrgetter

from onceonly.testing.history.model import Batch, Fate, History, Read, Record, Send, Target, Value

MAX_VALUES_SHOWN = 10

ANOMALIES = {
    "lost-write": "acknowledged, and missing although later values are there, or no longer there",
    "unseen": "acknowledged, and not there in the end, nor anything later",
    "duplicate": "there more than once",
    "unexpected": "there, and nobody sent it",
    "G1a": "an aborted read: there, although its producer or its batch was aborted",
    "G1b": "an intermediate read: one read shows some values of a batch and not the others",
    "precommitted-read": "there before it was decided, as a row that is only staged",
    "inconsistent-offsets": "one offset has several values",
    "int-poll-skip": "one read passes over a value of the log",
    "poll-skip": "the next read of a reader passes over a value of the log",
    "int-nonmonotonic-poll": "one read goes back in the log",
    "nonmonotonic-poll": "the next read of a reader goes back in the log",
    "int-nonmonotonic-send": "in another order than they were sent, within a batch",
    "nonmonotonic-send": "in another order than they were sent",
}


@dataclass(frozen=True)
class Anomaly:
    """Something that must not be.

    Args:
        name: one of `ANOMALIES`.
        why: how it shows, with readers, batches and offsets.
    """

    name: str
    target: str
    values: tuple[Value, ...]
    why: str

    def __str__(self) -> str:
        values = ", ".join(map(str, self.values[:MAX_VALUES_SHOWN]))
        rest = len(self.values) - MAX_VALUES_SHOWN
        if rest > 0:
            values += f" and {rest} more"
        return f"{self.name} in {self.target}: {values}: {self.why}"


def find_anomalies(history: History) -> list[Anomaly]:
    """Return all that is wrong with it.

    Raises:
        ValueError: a value was sent twice, so that nothing can be told from it.
    """
    counts = Counter(map(attrgetter("value"), history.sends))
    repeated = [value for value, count in counts.items() if count > 1]
    if repeated:
        raise ValueError(f"each value has to be sent once, but not so: {repeated[:MAX_VALUES_SHOWN]}")
    anomalies: list[Anomaly] = []
    for target in history.list_targets():
        anomalies += _TargetCheck(history, target).find_anomalies()
    return anomalies


def _collect_values(records: Iterable[Record]) -> set[Value]:
    return set(map(attrgetter("value"), records))


class _TargetCheck:
    """One target, and what was read of it."""

    def __init__(self, history: History, target: Target) -> None:
        self.target = target
        self.history = history
        self.sends = {send.value: send for send in history.sends}
        self.reads = sorted((read for read in history.reads if read.target == target.name), key=lambda read: read.ended)
        self.batches = [batch for batch in history.batches if batch.target == target.name]

    def find_anomalies(self) -> Iterator[Anomaly]:
        checks: tuple[Callable[[], Iterator[Anomaly]], ...] = (
            *(self._find_lost, self._find_duplicates, self._find_strangers, self._find_aborted),
            *(self._find_torn, self._find_early, self._find_inconsistent, self._find_poll_faults),
        )
        for check in checks:
            yield from check()
        if self.target.is_ordered:
            yield from self._find_reordered()

    def _anomaly(self, name: str, values: Iterable[Value], why: str) -> Anomaly:
        return Anomaly(name, self.target.name, tuple(sorted(values, key=str)), why)

    # ---- what is known

    def read_fate(self, value: Value) -> Fate | None:
        """Return what was to become of a value here; None: nobody sent it."""
        send = self.sends.get(value)
        if send is None:
            return None
        return self.target.fates.get(value, send.fate)

    @cached_property
    def acknowledged_values(self) -> set[Value]:
        return set(filter(lambda value: self.read_fate(value) is Fate.OK, self.sends))

    @cached_property
    def positions(self) -> dict[Value, tuple[int, int]]:
        """Of each value: its partition at the source, and its place there."""
        by_partition: dict[int, list[Send]] = defaultdict(list)
        for send in self.history.sends:
            by_partition[send.partition].append(send)
        positions = {}
        for partition, sends in by_partition.items():
            has_offsets = all(send.offset is not None or send.fate is not Fate.OK for send in sends)
            for place, send in enumerate(sends):
                if not has_offsets:
                    positions[send.value] = (partition, place)
                elif send.offset is not None:
                    positions[send.value] = (partition, send.offset)
        return positions

    @cached_property
    def log(self) -> dict[int, dict[int, set[Value]]]:
        """By partition and offset: the values that were seen there. Empty: the target is no log."""
        log: dict[int, dict[int, set[Value]]] = defaultdict(lambda: defaultdict(set))
        for read in self.reads:
            for record in read.records:
                if record.offset is not None:
                    log[record.partition][record.offset].add(record.value)
        return log

    @cached_property
    def offsets(self) -> dict[int, list[int]]:
        return {partition: sorted(by_offset) for partition, by_offset in self.log.items()}

    @cached_property
    def batches_by_value(self) -> dict[Value, list[Batch]]:
        batches: dict[Value, list[Batch]] = defaultdict(list)
        for batch in self.batches:
            for value in batch.values:
                batches[value].append(batch)
        return batches

    def _values_of(self, read: Read) -> set[Value]:
        """Return what its reader had seen by then: the read itself if it is whole."""
        values = _collect_values(read.records)
        if not read.is_whole:
            for earlier in self.reads:
                if earlier.reader == read.reader and earlier.ended <= read.ended:
                    values |= _collect_values(earlier.records)
        return values

    # ---- what is missing

    def _find_lost(self) -> Iterator[Anomaly]:
        yield from self._find_vanished()
        seen_by_anybody: set[Value] = set()
        for read in self.reads:
            seen_by_anybody |= _collect_values(read.records)
        for read in self.reads:
            if not read.is_final:
                continue
            values = self._values_of(read)
            missing = self.acknowledged_values - values
            ends = self._last_positions(values)
            lost = {value for value in missing if value in seen_by_anybody or self._is_passed(value, ends)}
            if lost:
                yield self._anomaly("lost-write", lost, f"{read.reader} does not find them in the end")
            if missing - lost:
                yield self._anomaly("unseen", missing - lost, f"{read.reader} does not find them in the end")

    def _find_vanished(self) -> Iterator[Anomaly]:
        """What one whole read shows and a later one does not."""
        earlier_values: dict[Value, Read] = {}
        for read in filter(lambda read: read.is_whole, self.reads):
            values = self._values_of(read)
            gone = set()
            for value, earlier in earlier_values.items():
                if value not in values and earlier.ended <= read.began and self.read_fate(value) is Fate.OK:
                    gone.add(value)
            if gone:
                yield self._anomaly("lost-write", gone, f"{read.reader} does not find what was there before")
            for value in values:
                earlier_values.setdefault(value, read)

    def _last_positions(self, values: Iterable[Value]) -> dict[int, int]:
        """Return by partition of the source: the last place of which a value is there."""
        ends: dict[int, int] = {}
        for value in values:
            if value in self.positions:
                partition, place = self.positions[value]
                ends[partition] = max(place, ends.get(partition, place))
        return ends

    def _is_passed(self, value: Value, ends: dict[int, int]) -> bool:
        if value not in self.positions:
            return False
        partition, place = self.positions[value]
        return partition in ends and place < ends[partition]

    # ---- what should not be there

    def _find_duplicates(self) -> Iterator[Anomaly]:
        places: dict[Value, set[tuple[int, int]]] = defaultdict(set)
        for partition, offsets in self.log.items():
            for offset, values in offsets.items():
                for value in values:
                    places[value].add((partition, offset))
        for value, offsets_of_value in places.items():
            if len(offsets_of_value) > 1:
                yield self._anomaly("duplicate", [value], f"at {sorted(offsets_of_value)} (partition, offset)")
        for read in self.reads:
            counts = Counter[Value]()
            for record in read.records:
                if record.offset is None:
                    counts[record.value] += 1
            repeated = counts - Counter(dict.fromkeys(counts, 1))
            if repeated:
                most = 1 + max(repeated.values())
                yield self._anomaly("duplicate", repeated, f"{read.reader} finds up to {most} of one")

    def _find_strangers(self) -> Iterator[Anomaly]:
        for read in self.reads:
            strangers = _collect_values(read.records) - self.sends.keys()
            if strangers:
                yield self._anomaly("unexpected", strangers, f"seen by {read.reader}")

    def _find_aborted(self) -> Iterator[Anomaly]:
        names = {batch.name for batch in self.batches if batch.fate is not Fate.FAIL}
        for read in self.reads:
            aborted = _collect_values(record for record in read.records if self._is_aborted(record, names))
            if aborted:
                yield self._anomaly("G1a", aborted, f"seen by {read.reader}")

    def _is_aborted(self, record: Record, names: set[str]) -> bool:
        if self.read_fate(record.value) is Fate.FAIL:
            return True
        if record.batch is not None and self.batches:
            return record.batch not in names
        batches = self.batches_by_value.get(record.value, [])
        return bool(batches) and all(batch.fate is Fate.FAIL for batch in batches)

    def _find_torn(self) -> Iterator[Anomaly]:
        if not self.target.is_atomic:
            return
        for read in self.reads:
            if not read.is_whole:
                continue
            values = self._values_of(read)
            for batch in self.batches:
                whole_batch = batch.values & self.acknowledged_values
                part = whole_batch & values
                if part and part != whole_batch and batch.fate is not Fate.FAIL:
                    missing = whole_batch - part
                    why = f"{read.reader} finds {len(part)} values of {batch.name}, and not these"
                    yield self._anomaly("G1b", missing, why)

    def _find_early(self) -> Iterator[Anomaly]:
        if not self.batches:
            return
        for read in self.reads:
            early = set(filter(partial(self._is_early, read), _collect_values(read.records)))
            if early:
                yield self._anomaly("precommitted-read", early, f"seen by {read.reader}")

    def _is_early(self, read: Read, value: Value) -> bool:
        batches, fate = self.batches_by_value.get(value, []), self.read_fate(value)
        if fate in (None, Fate.FAIL) or (fate is Fate.INFO and not batches):
            return False  # of what has no known offset, nobody can say to which batch it belongs
        return all(batch.fate is Fate.FAIL or read.ended < batch.undecided_until for batch in batches)

    # ---- logs

    def _find_inconsistent(self) -> Iterator[Anomaly]:
        for send in self.history.sends:
            if send.topic == self.target.name and send.offset in self.log.get(send.partition, {}):
                self.log[send.partition][send.offset].add(send.value)
        for partition, offsets in self.log.items():
            for offset, values in offsets.items():
                if len(values) > 1:
                    yield self._anomaly("inconsistent-offsets", values, f"at partition {partition}, offset {offset}")

    def _find_poll_faults(self) -> Iterator[Anomaly]:
        ends: dict[tuple[str, int], int] = {}  # by reader and partition: where it is
        for read in self.reads:
            inner: dict[int, int] = {}  # by partition: where this read is
            for record in read.records:
                if record.offset is None:
                    continue
                partition = record.partition
                prefix, before = "int-", inner.get(partition)
                if before is None:
                    prefix, before = "", ends.get((read.reader, partition))
                if read.is_whole and not prefix:
                    before = -1
                inner[partition] = record.offset
                if before is not None:
                    yield from self._compare(prefix, before, record, self.offsets[partition], read)
            for partition, offset in inner.items():
                ends[read.reader, partition] = offset

    def _compare(self, prefix: str, before: int, record: Record, offsets: list[int], read: Read) -> Iterator[Anomaly]:
        """Compare the offset of a record with that of the record before it."""
        assert record.offset is not None
        place = f"{read.reader}, partition {record.partition}, from offset {before} to {record.offset}"
        if record.offset <= before:
            yield self._anomaly(f"{prefix}nonmonotonic-poll", [record.value], place)
            return
        skipped: set[Value] = set()
        for offset in offsets[bisect_right(offsets, before) : bisect_right(offsets, record.offset) - 1]:
            skipped |= self.log[record.partition][offset]
        if skipped:
            yield self._anomaly(f"{prefix}poll-skip", skipped, place)

    def _find_reordered(self) -> Iterator[Anomaly]:
        for partition, by_offset in self.log.items():
            last: dict[int, Value] = {}  # by partition of the source
            for offset in sorted(by_offset):
                for value in by_offset[offset] & self.positions.keys():
                    source, place = self.positions[value]
                    before = last.get(source)
                    if before is not None and place < self.positions[before][1]:
                        name = ("nonmonotonic-send", "int-nonmonotonic-send")[self._share_a_batch(value, before)]
                        why = f"behind {before} in partition {partition}, at offset {offset}"
                        yield self._anomaly(name, [value], why)
                    last[source] = value

    def _share_a_batch(self, value: Value, other: Value) -> bool:
        return any(other in batch.values for batch in self.batches_by_value.get(value, []))
