"""Recorders of a history: of a producer, of readers of topics, Delta tables and folders, and of what was decided."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.statetable.table import StateTable
from onceonly.testing.history.model import BEGINNING, Batch, Fate, History, Read, Record, Send, Target, Value

PATIENCE_SECONDS = 120.0  # for a broker that does not answer
DECIDED = (State.COMMITTING, State.COMMITTED)


def parse_number(data: bytes | None) -> Value:
    """Return the value of a record whose bytes are a decimal number."""
    return int(data or b"")


class ProducerRecorder:
    """A producer of numbers, whose history says what became of each.

    Args:
        settings: librdkafka's, beyond those of an idempotent producer. With a `transactional.id` only `send_together`
            can be used.
    """

    def __init__(self, history: History, bootstrap: str, topic: str, settings: Mapping[str, Any] | None = None) -> None:
        from confluent_kafka import Producer

        self.history, self.topic = history, topic
        idempotent = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
        self._producer = Producer({**idempotent, **(settings or {})})
        self._pending: dict[Value, int] = {}  # value -> partition
        if "transactional.id" in (settings or {}):
            self._producer.init_transactions(PATIENCE_SECONDS)

    def send(self, values: Iterable[Value], partitions: int, timestamp: int = 0) -> None:
        """Send each number to the partition of its remainder, and note its fate when the broker answers."""
        for value in values:
            self._produce(value, partitions, timestamp, self._note)
            self._producer.poll(0)

    def send_together(self, values: Iterable[Value], partitions: int, is_committed: bool = True) -> bool:
        """Send them in one transaction, and commit or abort it. Returns False: their fate is unknown, and it failed."""
        from confluent_kafka import KafkaException

        offsets: dict[Value, tuple[int, int | None]] = {}
        fate = Fate.FAIL

        def note(error: Any, message: Any) -> None:
            if error is None:
                offsets[parse_number(message.value())] = (message.partition(), message.offset())

        is_done = False
        try:
            self._producer.begin_transaction()
            for value in values:
                offsets[value] = (int(value) % partitions, None)
                self._produce(value, partitions, 0, note)
            if is_committed:
                fate = Fate.INFO  # until the broker says that it is committed
                self._producer.commit_transaction(PATIENCE_SECONDS)
                fate = Fate.OK
            else:
                self._producer.abort_transaction(PATIENCE_SECONDS)
            is_done = True
        except KafkaException:
            pass  # what was not to be committed never will be: a producer of the same id, or the time, aborts it
        for value, (partition, offset) in offsets.items():
            self._pending.pop(value, None)
            self.history.sends.append(Send(value, partition, offset, fate, self.topic))
        return is_done

    def flush(self) -> None:
        """Wait until the broker has answered for all; what it does not answer for has an unknown fate."""
        self._producer.flush(PATIENCE_SECONDS)
        for value, partition in self._pending.items():
            self.history.sends.append(Send(value, partition, None, Fate.INFO, self.topic))
        self._pending.clear()

    def _produce(self, value: Value, partitions: int, timestamp: int, note: Callable[[Any, Any], None]) -> None:
        partition = int(value) % partitions
        self._pending[value] = partition  # first: an answer may come at once
        data = str(value).encode()
        self._producer.produce(self.topic, data, partition=partition, timestamp=timestamp, on_delivery=note)

    def _note(self, error: Any, message: Any) -> None:
        value = parse_number(message.value())
        partition = self._pending.pop(value)
        fate, offset = (Fate.INFO, None) if error else (Fate.OK, message.offset())
        self.history.sends.append(Send(value, partition, offset, fate, self.topic))


class TopicReader:
    """A read_committed reader of a topic, from its beginning on."""

    def __init__(
        self,
        history: History,
        bootstrap: str,
        topic: str,
        reader: str = "reader",
        parse: Callable[[bytes | None], Value] = parse_number,
    ) -> None:
        from confluent_kafka import OFFSET_BEGINNING, Consumer

        self.history, self.topic, self.reader, self._parse = history, topic, reader, parse
        settings = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "log_level": 0}
        settings |= {"isolation.level": "read_committed", "enable.partition.eof": True, "enable.auto.commit": False}
        self._consumer = Consumer(settings)
        self._partitions = set(self._consumer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic].partitions)
        self._positions = dict.fromkeys(self._partitions, OFFSET_BEGINNING)
        self._at_end: set[int] = set()
        self._assign()

    def close(self) -> None:
        self._consumer.close()

    def poll(self, seconds: float = 0.0) -> None:
        """Note what comes within this time."""
        began = monotonic()
        records = list(self._take(self._consumer.consume(10_000, seconds)))
        if records:
            self.history.reads.append(Read(self.topic, self.reader, tuple(records), began, monotonic()))

    def read_to_end(self, is_final: bool = False) -> None:
        """Go on until each partition has ended, and note it as one read.

        Raises:
            TimeoutError: the broker does not answer.
        """
        began, records = monotonic(), list[Record]()
        self._assign()  # a partition tells its end once in an assignment
        while self._at_end != self._partitions:
            if monotonic() - began > PATIENCE_SECONDS:
                raise TimeoutError(f"topic '{self.topic}' does not answer")
            records += self._take(self._consumer.consume(10_000, 0.2))
        read = Read(self.topic, self.reader, tuple(records), began, monotonic(), is_final=is_final)
        self.history.reads.append(read)

    def _assign(self) -> None:
        from confluent_kafka import TopicPartition

        self._at_end.clear()
        positions = self._positions.items()
        self._consumer.assign([TopicPartition(self.topic, partition, offset) for partition, offset in positions])

    def _take(self, messages: Iterable[Any]) -> Iterator[Record]:
        from confluent_kafka import KafkaError

        for message in messages:
            error = message.error()
            if error is None:
                self._positions[message.partition()] = message.offset() + 1
                yield Record(self._parse(message.value()), message.partition(), message.offset())
            elif error.code() == KafkaError._PARTITION_EOF:
                self._at_end.add(message.partition())


@dataclass
class TableReader:
    """A reader of a Delta table, by delta-rs.

    Args:
        column: has the value.
        batch_column: has the name of the batch; None: no column does.
    """

    history: History
    path: str
    target: str
    column: str
    reader: str = "reader"
    batch_column: str | None = None

    def read(self, is_final: bool = False) -> None:
        """Note all that the table shows now; a table that is not there yet shows nothing."""
        began = monotonic()
        records = tuple(self._read_records())
        read = Read(self.target, self.reader, records, began, monotonic(), is_whole=True, is_final=is_final)
        self.history.reads.append(read)

    def _read_records(self) -> Iterator[Record]:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder

        if not DeltaTable.is_deltatable(self.path):
            return
        names = [self.column] + ([self.batch_column] if self.batch_column else [])
        columns = ", ".join(f'"{name}"' for name in names)
        query = QueryBuilder().register("target", DeltaTable(self.path)).execute(f"SELECT {columns} FROM target")
        for row in pa.table(query.read_all()).to_pylist():
            batch = str(row[self.batch_column]) if self.batch_column else None
            yield Record(row[self.column], batch=batch)


@dataclass
class FolderReader:
    """A reader of files of JSON lines or Parquet in a local folder, who takes what is not hidden."""

    history: History
    folder: Path
    target: str
    column: str
    reader: str = "reader"

    def read(self, is_final: bool = False) -> None:
        """Note all that the folder shows now."""
        while True:
            began = monotonic()
            with suppress(FileNotFoundError):  # taken back since it was listed: look again
                records = tuple(self._read_records())
                break
        read = Read(self.target, self.reader, records, began, monotonic(), is_whole=True, is_final=is_final)
        self.history.reads.append(read)

    def _read_records(self) -> Iterator[Record]:
        for path in sorted(self.folder.rglob("*")):
            parts = path.relative_to(self.folder).parts
            if path.suffix in (".json", ".jsonl", ".parquet") and not any(part[0] in "._" for part in parts):
                for row in _read_rows(path):
                    yield Record(row[self.column])


def _read_rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        rows: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        return rows
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@dataclass
class DecisionRecorder:
    """A reader of the state table, who notes what a pipeline has decided: no row may show before.

    It looks at a checkpoint's offsets, so it is for pipelines whose transforms make one row of each record.

    Args:
        targets: by sink: the target to which it publishes.
    """

    history: History
    state_table: StateTable
    pipeline: str
    targets: Mapping[str, Target]
    _undecided_until: dict[int, float] = field(default_factory=dict)
    _last_look: float = BEGINNING

    def look(self) -> None:
        """Note what is decided now. To be called after each read whose rows may be staged only."""
        began = monotonic()
        for checkpoint in self._list_decided():
            self._undecided_until.setdefault(checkpoint.epoch, self._last_look)
        self._last_look = began

    def finish(self) -> None:
        """Add the batches, and what people have given up, to the history: when all pipelines have ended."""
        self.look()
        values = self._values_by_offset()
        fates: dict[str, dict[Value, Fate]] = defaultdict(dict)
        for checkpoint in self._list_decided():
            covered = frozenset(_select_values(checkpoint, values))
            for sink, target in self.targets.items():
                if sink not in checkpoint.sinks:
                    continue
                fate = _fate_of(checkpoint, sink)
                if fate is not Fate.OK:
                    fates[sink].update(dict.fromkeys(covered, fate))
                until = self._undecided_until[checkpoint.epoch]
                self.history.batches.append(Batch(target.name, f"epoch {checkpoint.epoch}", covered, Fate.OK, until))
        for sink, target in self.targets.items():
            merged = {**target.fates, **fates[sink]}
            self.history.targets.append(Target(target.name, target.is_ordered, target.is_atomic, merged))

    def _list_decided(self) -> Iterator[Checkpoint]:
        view = self.state_table.view(self.pipeline)
        for epoch in range(1, view.head.epoch + 1):
            checkpoint = view.checkpoint(epoch)
            if checkpoint is not None and checkpoint.state in DECIDED:
                yield checkpoint

    def _values_by_offset(self) -> dict[tuple[str, int, int], Value]:
        values = {}
        for send in self.history.sends:
            if send.offset is not None:
                values[send.topic, send.partition, send.offset] = send.value
        return values


def _select_values(checkpoint: Checkpoint, values: Mapping[tuple[str, int, int], Value]) -> Iterator[Value]:
    """Yield the values of the records that a checkpoint covers; markers of transactions have none."""
    for pinned in checkpoint.ranges:
        for partition, (start, end) in pinned.partitions.items():
            for offset in range(start, end):
                value = values.get((pinned.topic, partition, offset))
                if value is not None:
                    yield value


def _fate_of(checkpoint: Checkpoint, sink: str) -> Fate:
    """Return what was to become of its rows there: people may have accepted a loss, or given up a sink."""
    if sink in checkpoint.missing:
        return Fate.FAIL
    if sink in checkpoint.given_up:
        return Fate.INFO
    return Fate.OK
