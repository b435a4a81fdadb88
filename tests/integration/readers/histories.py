"""What readers found, as a history that `onceonly.testing.history` checks: also while processes are being killed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from integration.readers.kafka_reader import Record as Found

from onceonly.statetable.table import StateTable
from onceonly.testing.history import Fate, History, Read, Record, Send, Target, Value, find_anomalies
from onceonly.testing.history.recorders import DecisionRecorder, TableReader, TopicReader


def check_values(
    target: str, sent: Iterable[Any], found: Iterable[Any], fates: Mapping[Value, Fate] | None = None, by: str = "it"
) -> None:
    """A target shows each of these as often as it was sent, and nothing else; or what its fate there allows."""
    history = History(targets=[Target(target, fates=fates or {})])
    wanted, numbers = _labelled(sent), Counter(found)
    history.sends += [Send(value) for value in wanted]
    values = _labelled(found) if any(isinstance(value, str) for value in wanted) else list(numbers.elements())
    history.reads.append(Read(target, by, tuple(map(Record, values)), is_whole=True, is_final=True))
    check(history)


def check_log(target: str, sent: Iterable[int], partitions: int, records: Iterable[Found]) -> None:
    """A topic has each number once, in the partition of its remainder, in the order in which they were sent."""
    history = History(targets=[Target(target, is_ordered=True)])
    history.sends += [Send(number, number % partitions) for number in sent]
    found = [Record(int(record.value or b""), record.partition, record.offset) for record in records]
    assert [record for record in found if int(record.value) % partitions != record.partition] == []
    history.reads.append(Read(target, "read_committed", tuple(found), is_whole=True, is_final=True))
    check(history)


def check(history: History) -> None:
    assert [str(anomaly) for anomaly in find_anomalies(history)] == []


def _labelled(values: Iterable[Any]) -> list[Any]:
    """Each value, and of one that comes more than once its second, its third as values of their own."""
    counts: Counter[Any] = Counter()
    labelled, values = [], list(values)
    if len(set(values)) == len(values):
        return values
    for value in values:
        counts[value] += 1
        labelled.append(f"{value} (number {counts[value]})")
    return labelled


class Watch:
    """A reader of a pipeline's target and of its decisions, who looks whenever a test says so.

    The numbers are in the source's topic in partitions of their remainders, and it holds nothing else.
    """

    def __init__(self, state: str, pipeline: str, source: str, sink: str, partitions: int = 4) -> None:
        self.history, self.partitions, self.source = History(), partitions, source
        self.target = Target(sink)
        self._state, self._pipeline, self._sink = state, pipeline, sink
        self._reader: TableReader | TopicReader | None = None
        self._decisions: DecisionRecorder | None = None

    def of_table(self, path: str, column: str = "n") -> Watch:
        self._reader = TableReader(self.history, path, self._sink, column)
        return self._with(Target(self._sink, is_atomic=True))

    def of_topic(self, bootstrap: str, topic: str) -> Watch:
        self._reader = TopicReader(self.history, bootstrap, topic)
        return self._with(Target(topic, is_ordered=True))

    def _with(self, target: Target) -> Watch:
        state = StateTable(self._state)
        self._decisions = DecisionRecorder(self.history, state, self._pipeline, {self._sink: target})
        return self

    def sent(self, numbers: Iterable[int]) -> Watch:
        offsets: dict[int, int] = defaultdict(int)
        for number in numbers:
            partition = number % self.partitions
            self.history.sends.append(Send(number, partition, offsets[partition], topic=self.source))
            offsets[partition] += 1
        return self

    def look(self, is_final: bool = False) -> None:
        assert self._reader is not None and self._decisions is not None
        if isinstance(self._reader, TableReader):
            self._reader.read(is_final)
        else:
            self._reader.read_to_end(is_final)
        self._decisions.look()

    def end(self) -> None:
        """Everything has ended: what all its looks have found is compared."""
        self.look(is_final=True)
        assert self._decisions is not None
        self._decisions.finish()
        if isinstance(self._reader, TopicReader):
            self._reader.close()
        check(self.history)
        assert sum(len(read.records) for read in self.history.reads) and self.history.batches
