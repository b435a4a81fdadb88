"""A system that does what it promises, in memory, and the history that its readers note."""

from __future__ import annotations

from itertools import count
from random import Random

from onceonly.testing.history import Batch, Fate, History, Read, Record, Send, Target, Value

TOPIC, TABLE = "copy", "numbers"


class Simulation:
    """Producers, a chained pipeline into a topic and a table, and two readers of each, in random order."""

    def __init__(self, chance: Random, partitions: int = 2) -> None:
        self.chance, self.partitions = chance, partitions
        self.history = History(targets=[Target(TOPIC, is_ordered=True), Target(TABLE, is_atomic=True)])
        self.source: list[list[Value | None]] = [[] for _ in range(partitions)]  # None: aborted, or a marker
        self.planned = self.ends = [0] * partitions
        self.log: list[list[Value | None]] = [[] for _ in range(partitions)]
        self.table: list[Value] = []
        self.positions: dict[tuple[str, int], int] = {}
        self.ticks, self.numbers, self.epochs = count(1), count(), count(1)
        self.last_look, self.staged = float("-inf"), list[tuple[str, frozenset[Value], list[list[Value]]]]()

    def run(self, steps: int) -> History:
        actions = (self.send, self.send, self.stage, self.abort, self.publish, self.poll, self.read_table)
        for _ in range(steps):
            self.chance.choice(actions)()
        self.publish()
        self.stage()
        self.publish()
        for reader in ("a", "b"):
            self.poll(reader, is_final=True)
            self.read_table(reader, is_final=True)
        return self.history

    def send(self) -> None:
        value, partition = next(self.numbers), self.chance.randrange(self.partitions)
        fate = self.chance.choice((Fate.OK, Fate.OK, Fate.OK, Fate.FAIL, Fate.INFO))
        arrives = fate is Fate.OK or (fate is Fate.INFO and self.chance.random() < 0.5)
        offset = len(self.source[partition]) if fate is Fate.OK else None
        self.source[partition].append(value if arrives else None)
        self.history.sends.append(Send(value, partition, offset, fate, "numbers"))

    def stage(self) -> None:
        """Rows are in the log of the topic, where no reader sees them yet. One checkpoint at a time."""
        if self.staged:
            return
        rows, values = [], set[Value]()
        for partition in range(self.partitions):
            new = self.source[partition][self.planned[partition] :]
            rows.append([value for value in new if value is not None])
            values.update(rows[-1])
        self.ends = [len(log) for log in self.source]
        self.staged.append((f"epoch {next(self.epochs)}", frozenset(values), rows))

    def abort(self) -> None:
        """Its rows take their offsets with them."""
        for _, _, rows in self.staged:
            for partition, values in enumerate(rows):
                self.log[partition] += [None] * (len(values) + 1)
        self.staged.clear()

    def publish(self) -> None:
        for name, values, rows in self.staged:
            for target in (TOPIC, TABLE):
                self.history.batches.append(Batch(target, name, values, Fate.OK, self.last_look))
            for partition, new in enumerate(rows):
                self.log[partition] += [*new, None]
            self.planned = self.ends
            self.table += values
        self.staged.clear()

    def poll(self, reader: str = "", is_final: bool = False) -> None:
        reader, began, records = reader or self.chance.choice("ab"), float(next(self.ticks)), []
        for partition, log in enumerate(self.log):
            start = self.positions.get((reader, partition), 0)
            end = len(log) if is_final else self.chance.randint(start, len(log))
            self.positions[reader, partition] = end
            for offset in range(start, end):
                value = log[offset]
                if value is not None:
                    records.append(Record(value, partition, offset))
        read = Read(TOPIC, reader, tuple(records), began, float(next(self.ticks)), is_final=is_final)
        self.history.reads.append(read)
        self.last_look = float(next(self.ticks))

    def read_table(self, reader: str = "", is_final: bool = False) -> None:
        began, reader = float(next(self.ticks)), reader or self.chance.choice("ab")
        records = tuple(Record(value) for value in self.chance.sample(self.table, len(self.table)))
        read = Read(TABLE, reader, records, began, float(next(self.ticks)), is_whole=True, is_final=is_final)
        self.history.reads.append(read)
        self.last_look = float(next(self.ticks))
