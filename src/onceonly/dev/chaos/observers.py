"""Who sends numbers and who reads targets while a chaos run lasts, and the history that they note."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count as count_up
from threading import Event, Lock, Thread

from onceonly.counts import count
from onceonly.dev.chaos.project import COLUMN, COPY, FILES, PARTITION_COUNT, PIPELINE, SOURCE, TABLE, ChaosProject
from onceonly.statetable.table import StateTable
from onceonly.testing.history import History, Target
from onceonly.testing.history.recorders import (
    DecisionRecorder,
    FolderReader,
    ProducerRecorder,
    TableReader,
    TopicReader,
)

ROWS_PER_SECOND = 400  # of whole targets that are noted: they grow, and the history is kept in memory
BATCH, BATCH_SECONDS = 20, 0.5  # numbers, and how often they come
TRANSACTION_MS = "10000"  # an open transaction of a producer that has died holds readers up for so long


class _Loop(Thread):
    """A thread that does something regularly, and counts how often that has failed."""

    def __init__(self, name: str, work: Callable[[], None], seconds: float) -> None:
        super().__init__(name=name, daemon=True)
        self._work, self._seconds, self._ended = work, seconds, Event()
        self._failures, self._error = 0, ""

    def run(self) -> None:
        while not self._ended.wait(self._seconds):
            try:
                self._work()
            except Exception as error:  # the broker is down, for instance: it is tried again, and told in the end
                self._failures, self._error = self._failures + 1, f"{type(error).__name__}: {error}"

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def describe_failures(self) -> list[str]:
        """Return a sentence on what has failed; none: nothing has."""
        if not self._failures:
            return []
        return [f"{self.name} failed {count(self._failures, 'time')}, last by {self._error}"]


class Sender:
    """A producer of numbers, and one with transactions of which it aborts every second."""

    def __init__(self, history: History, bootstrap: str) -> None:
        self._history, self._bootstrap = history, bootstrap
        self._numbers = count_up()
        self._turns = count_up(1)
        self._plain = ProducerRecorder(history, bootstrap, SOURCE)
        self._transactional: ProducerRecorder | None = None
        self._loop = _Loop("chaos-sender", self._send, BATCH_SECONDS)

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        """Stop, and wait for all answers."""
        self._loop.stop()
        self._plain.flush()

    def describe_failures(self) -> list[str]:
        return self._loop.describe_failures()

    def _send(self) -> None:
        turn = next(self._turns)
        self._plain.send(self._draw(), PARTITION_COUNT, int(time.time() * 1000))
        if turn % 10 == 0:
            self._send_together(is_committed=turn % 20 == 0)

    def _send_together(self, is_committed: bool) -> None:
        if self._transactional is None:
            settings = {"transactional.id": "chaos-sender", "transaction.timeout.ms": TRANSACTION_MS}
            self._transactional = ProducerRecorder(self._history, self._bootstrap, SOURCE, settings)
        producer, self._transactional = self._transactional, None  # one that failed is not used again
        if producer.send_together(self._draw(), PARTITION_COUNT, is_committed):
            self._transactional = producer

    def _draw(self) -> list[int]:
        return [next(self._numbers) for _ in range(BATCH)]


class Observer:
    """Readers of all targets, who look all the time."""

    def __init__(self, project: ChaosProject, history: History, bootstrap: str) -> None:
        self.targets = {
            TABLE: Target(TABLE, is_atomic=True),
            FILES: Target(FILES),
            COPY: Target(COPY, is_ordered=True),
        }
        self._history = history
        state = StateTable(project.settings(bootstrap).state)
        self.decisions = DecisionRecorder(history, state, PIPELINE, self.targets)
        self.table = TableReader(history, str(project.table), TABLE, COLUMN)
        self.files = FolderReader(history, project.files, FILES, COLUMN)
        self.topic = TopicReader(history, bootstrap, COPY)
        self.lock = Lock()  # held while a target is not what it should be
        self._loop = _Loop("chaos-observer", self._look, 0.5)
        self._next_whole_read = 0.0

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def describe_failures(self) -> list[str]:
        return self._loop.describe_failures()

    def finish(self) -> None:
        """Read everything once more, when every run has ended, and complete the history."""
        self.table.read(is_final=True)
        self.files.read(is_final=True)
        self.topic.read_to_end(is_final=True)
        self.topic.close()
        self.decisions.finish()

    def _look(self) -> None:
        with self.lock:
            self.topic.poll()
            if time.monotonic() > self._next_whole_read:
                rows = self._read_whole_targets()
                self._next_whole_read = time.monotonic() + rows / ROWS_PER_SECOND
            self.decisions.look()

    def _read_whole_targets(self) -> int:
        """Read table and files, and return how many rows they had."""
        before = len(self._history.reads)
        for reader in (self.table, self.files):
            with suppress(OSError):  # a file that has gone meanwhile: the next look tells
                reader.read()
        return sum(len(read.records) for read in self._history.reads[before:])
