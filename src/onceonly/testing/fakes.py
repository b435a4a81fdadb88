"""A fake source and a fake sink without Spark, Kafka or Delta, for tests of pipelines.

Both store their data in JSON files, which are written atomically, so it survives a killed process. The fake sink passes
the same test suite as every sink (`onceonly.testing.contract`), and can be made to fail.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import BoundarySearch, FirstRecord
from onceonly.checkpoint.interfaces import Findings, Inspector, OpenTransaction
from onceonly.checkpoint.model import Checkpoint, Handle
from onceonly.checkpoint.offsets import TopicLog, TopicRange
from onceonly.checkpoint.sink import (
    Trace,
)
from onceonly.checkpoint.sources import Sources
from onceonly.checkpoint.verification import Depth, Finding, Judgement, ReadRange
from onceonly.coordinator.stage import Produced
from onceonly.errors import SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.testing.fake_rows import FakeRows
from onceonly.testing.fake_sink import Failure, FakeSink, lock_folder, read_json, write_json

__all__ = ["Failure", "FakeInspector", "FakeParts", "FakeReceipts", "FakeSink", "FakeSource"]

SUFFIX = ".topic.json"


class FakeSource:
    """A topic with partitions. Each has records with timestamps, a log start and a last stable offset."""

    def __init__(self, topic: str, folder: Path) -> None:
        self.topic, self._file = topic, folder / f"{topic}{SUFFIX}"

    # ---- for tests: what producers and administrators do

    def append(self, partition: int, *records: tuple[datetime, Any] | None) -> None:
        """Write records. None is an offset without a record, such as a control record or a compacted one."""
        with self._change_topic() as topic:
            log = topic["partitions"].setdefault(str(partition), _empty_partition())
            for record in records:
                log["records"].append(record and [record[0].isoformat(), record[1]])

    def expire(self, partition: int, start: int) -> None:
        """Remove everything below `start`, as retention does."""
        with self._change_topic() as topic:
            topic["partitions"][str(partition)]["start"] = start

    def hold(self, partition: int, stable: int | None, own: int = 1, overdue: bool = False) -> None:
        """Keep the last stable offset at `stable`, as a producer's open transaction does; None ends it.

        Args:
            own: how many records it has; what else comes behind it is of others.
        """
        with self._change_topic() as topic:
            topic["partitions"][str(partition)].update(stable=stable, own=own, overdue=overdue)

    def commit_group(self, group: str, offsets_by_partition: Mapping[int, int]) -> None:
        """Let a consumer group have committed these offsets."""
        with self._change_topic() as topic:
            topic.setdefault("groups", {})[group] = {str(p): offset for p, offset in offsets_by_partition.items()}

    def lose(self, partition: int, end: int) -> None:
        """Let a broker lead the partition that has nothing from `end` on, as after an unclean election."""
        with self._change_topic() as topic:
            log = topic["partitions"][str(partition)]
            log["records"] = log["records"][:end]
            log["leaders"] = [*log.get("leaders", []), end]

    def drop(self, partition: int) -> None:
        with self._change_topic() as topic:
            del topic["partitions"][str(partition)]

    def recreate(self) -> None:
        """Delete the topic and create it again, empty."""
        with self._change_topic() as topic:
            topic.update(id=uuid.uuid4().hex, partitions={p: _empty_partition() for p in topic["partitions"]})

    # ---- the Source protocol

    def check(self) -> list[str]:
        return []

    def log(self) -> TopicLog:
        topic = self._topic()
        spans: dict[int, tuple[int, int]] = {}
        written: dict[int, int] = {}
        for partition, log in topic["partitions"].items():
            spans[int(partition)] = log["start"], _stable_offset(log)
            written[int(partition)] = len(log["records"])
        return TopicLog(self.topic, topic["id"], spans, high_watermarks=written)

    def has_records(self, range_: TopicRange) -> bool:
        return bool(self.read(None, (range_,)))

    def first_offsets(self, range_: TopicRange) -> offsets.Offsets:
        """Return the offset of the first record of each partition in a range; its end if there is none."""
        first = dict(range_.ends)
        for row in self.read(None, (range_,)):
            first[row["partition"]] = min(first[row["partition"]], row["offset"])
        return first

    def read_group(self, group: str) -> offsets.Offsets:
        """Return the offsets that a consumer group has committed."""
        return offsets.by_partition(self._topic().get("groups", {}).get(group, {}))

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        topic, now = self._topic(), self.log()
        transactions = []
        for partition, hidden in now.hidden_offsets.items():  # how many records are behind the last stable offset
            partition_log = topic["partitions"][str(partition)]
            hides_others, overdue = hidden > partition_log.get("own", 1), partition_log.get("overdue", False)
            transaction = OpenTransaction(
                partition, partition_log["stable"], hidden, hides_others, overdue, None, "producer 1"
            )
            transactions.append(transaction)
        return now, transactions

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: offsets.Offsets = offsets.NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        first_records: dict[int, FirstRecord] = {}
        for name, log in self._topic()["partitions"].items():
            partition = int(name)
            first_records[partition] = _find_first_at(log, time, latest, floor.get(partition, 0))
        return first_records

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> list[dict[str, Any]]:
        """Return the records as a list of dicts; `spark` is not used."""
        logs = self._topic()["partitions"]
        rows: list[dict[str, Any]] = []
        for range_ in ranges:
            for partition, (start, end) in range_.partitions.items():
                for offset in range(start, end):
                    record = logs[str(partition)]["records"][offset]
                    if record:  # else the offset has none
                        row = {"partition": partition, "offset": offset, "timestamp": record[0], "value": record[1]}
                        rows.append(row)
        return rows

    def read_small_batch(self, ranges: tuple[TopicRange, ...]) -> None:
        """Keep nothing: `read` needs no Spark."""
        return

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        for range_ in ranges:
            offsets.require_in_log(range_, self.log())
            self._check_mark(range_)

    def add_mark(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        if previous:
            self._check_mark(previous)
        return self.mark_left_out(range_, previous)

    def mark_left_out(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        """Mark a range by the leader epochs before its ends, by partition, as JSON.

        A partition without new records keeps the epoch of the previous range.
        """
        logs = self._topic()["partitions"]
        epochs: dict[str, int] = {}
        for partition, end in range_.ends.items():
            if str(partition) in logs:
                epochs[str(partition)] = _leader_epoch(logs[str(partition)], end - 1)
        if previous:
            for name, epoch in json.loads(previous.mark or "{}").items():
                if previous.ends[int(name)] == range_.ends.get(int(name)):
                    epochs[name] = epoch
        return replace(range_, mark=json.dumps(epochs))

    def _check_mark(self, range_: TopicRange) -> None:
        """Check a range by its mark. Raises SourceLost: the records before one of its ends were replaced by others."""
        topic = self._topic()
        for partition, epoch in json.loads(range_.mark or "{}").items():
            log, end = topic["partitions"].get(partition), range_.ends[int(partition)]
            if topic["id"] == range_.topic_id and log and epoch != _leader_epoch(log, end - 1):
                raise SourceLost(
                    f"{range_.label} partition {partition}: the records before {end} were replaced by others.",
                    todo="Restore the topic.",
                    code=offsets.LOG_REPLACED,
                )

    def count_ranges(self, ranges: Sequence[ReadRange], depth: Depth) -> Iterator[Finding]:
        """Count the records of each range, as a topic does it."""
        log = self.log()
        for number, read in enumerate(ranges):
            yield self._compare_count(read, log)
            depth.show_progress(number + 1, len(ranges))

    def _compare_count(self, read: ReadRange, log: TopicLog) -> Finding:
        counts = dict.fromkeys(read.range_.partitions, 0)
        for partition, (start, end) in read.range_.partitions.items():
            if start < end and start < log.partitions[partition][0]:
                return Finding(Judgement.UNKNOWN, "source-expired", "Its records have expired.", read.epoch)
        for row in self.read(None, (read.range_,)):
            counts[row["partition"]] += 1
        for partition, recorded in read.records.items():
            if counts[partition] != recorded:
                why = f"Partition {partition} has {counts[partition]} records, and {recorded} were read."
                return Finding(Judgement.WRONG, "records-differ", why, read.epoch)
        return Finding(Judgement.RIGHT, "records-counted", f"{sum(counts.values())} records.", read.epoch)

    def report(self, done: Checkpoint, state_id: str) -> None:
        range_ = offsets.find_range(done.ranges, self.topic)
        ends: dict[str, int] = {}
        if range_:
            for number, end in range_.ends.items():
                ends[str(number)] = end
        with self._change_topic() as topic:
            reported = topic.setdefault("reported", {}).setdefault(done.pipeline, {})
            for partition, end in ends.items():
                reported[partition] = max(end, reported.get(partition, 0))
            trace = topic.setdefault("shown", {}).setdefault(done.pipeline, {})
            if trace.get("state_id") != state_id or trace["decision"] < (done.decision or 0):
                trace.update(state_id=state_id, decision=done.decision, ends=ends)

    def traces(self, pipeline: str) -> list[Trace]:
        trace = self._topic().get("shown", {}).get(pipeline)
        if trace is None:
            return []
        ends = {int(partition): end for partition, end in trace["ends"].items()}
        return [Trace(trace["state_id"], trace["decision"], f"the group of '{self.topic}'", {self.topic: ends})]

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        return error

    def _topic(self) -> dict[str, Any]:
        topic: dict[str, Any] = read_json(self._file, None) or {"id": f"{self.topic}-1", "partitions": {}}
        return topic

    @contextmanager
    def _change_topic(self) -> Iterator[dict[str, Any]]:
        """Yield the content of the topic's file, and write it back. The folder is locked meanwhile."""
        with lock_folder(self._file.parent):
            topic = self._topic()
            yield topic
            write_json(self._file, topic)


class FakeInspector(Inspector):
    """A gate with the results that a test has set; by default, all checks pass."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self._results = pipeline, folder / "gate.json"

    def find(self, *severities: str | None) -> None:
        """Set the next results: a failed check of that severity; None: no failed check; 'error': an error is raised."""
        with lock_folder(self._results.parent):
            write_json(self._results, [*read_json(self._results, []), *severities])

    def check(self) -> list[str]:
        return ["gate: a fake"]

    def examine(self, checkpoint: Checkpoint) -> Findings:
        severity = self._next_severity()
        if severity == "error":
            raise ConnectionError("gate: disconnected")
        is_ok = severity is None
        check = {"what": "a fake check", "ok": is_ok, "severity": severity or "critical", "observed": str(severity)}
        findings: dict[str, Any] = {}
        for name in checkpoint.sinks:
            rows = checkpoint.handles[name]["rows"]
            findings[name] = {"rows": rows, "path": "in process", "checks": [check]}
        return Findings(findings, docs=f"docs-{uuid.uuid4().hex}")

    def forget(self, examined: Findings) -> None:
        with lock_folder(self._results.parent):
            forgotten = self._results.with_name("forgotten.json")
            write_json(forgotten, [*read_json(forgotten, []), examined.docs])

    def _next_severity(self) -> str | None:
        """Return the next result that a test has set, and strike it off; None if there is none."""
        with lock_folder(self._results.parent):
            severities: list[str | None] = read_json(self._results, [])
            write_json(self._results, severities[1:])
        if not severities:
            return None
        return severities[0]


class FakeReceipts:
    """A sink's handle in a file, replaced by compare-and-set, for tests of sinks without a state table."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def current(self, first: Handle) -> Handle:
        """Return the present handle; `first` if it was never replaced."""
        current: Handle = read_json(self._file, dict(first))
        return current

    def replace(self, old: Handle, new: Handle) -> Handle:
        with lock_folder(self._file.parent):
            current: Handle = read_json(self._file, dict(old))
            if current == dict(old):
                write_json(self._file, dict(new))
                current = dict(new)
        return current


class FakeParts:
    """Fake parts for any pipeline: topics in `folder`, each sink in the folder of its path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def sink(self, pipeline: Pipeline, name: str) -> FakeSink:
        return FakeSink(name, self.folder / (getattr(pipeline.sink(name), "path", None) or name))

    def sources(self, pipeline: Pipeline) -> Mapping[str, FakeSource]:
        return Sources(pipeline, lambda source: FakeSource(source.input_name, self.folder), lambda _: self._topics())

    def _topics(self) -> list[str]:
        return [path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")]

    def inspector(self, pipeline: Pipeline) -> FakeInspector:
        return FakeInspector(pipeline, self.folder)

    def produce_counted(self, checkpoint: Checkpoint) -> Produced:
        """Return the same as `produce`, with the numbers of the records that were read."""
        counts: dict[str, dict[str, list[int | None]]] = {}
        sources = self.sources(checkpoint.definition.pipeline)
        for range_ in checkpoint.ranges:
            partitions = [row["partition"] for row in sources[range_.topic].read(None, (range_,))]
            counts[range_.topic] = {}
            for partition in range_.partitions:
                number = partitions.count(partition)
                counts[range_.topic][str(partition)] = [number, number, 0, 0]
        return Produced(self.produce(checkpoint), read=counts)

    def produce(self, checkpoint: Checkpoint) -> dict[str, FakeRows]:
        """Return every record of the checkpoint, for every sink, as `Coordinator.stage` takes it."""
        pipeline = checkpoint.definition.pipeline
        sources = self.sources(pipeline)
        rows = FakeRows()
        for range_ in checkpoint.ranges:
            rows += FakeRows(sources[range_.topic].read(None, (range_,)))
        return {sink.name: rows for sink in pipeline.sinks}


def _empty_partition() -> dict[str, Any]:
    return {"start": 0, "stable": None, "records": []}


def _leader_epoch(log: Mapping[str, Any], offset: int) -> int:
    """Return how often the log was cut off at or below this offset."""
    return sum(end <= offset for end in log.get("leaders", []))


def _stable_offset(log: Mapping[str, Any]) -> int:
    """Return the last stable offset of a partition: its end, unless an open transaction keeps it back."""
    end = len(log["records"])
    if log["stable"] is not None:
        end = min(log["stable"], end)
    return end


def _find_first_at(log: Mapping[str, Any], time: datetime, latest: datetime | None, floor: int) -> FirstRecord:
    """Find the first record at a time, as a topic does it.

    What comes after a record that is dated ahead is searched from `floor` on.
    """
    first = _search(log, time, None, log["start"])
    if latest is None or first.at is None or first.at <= latest:
        return first
    return _search(log, time, latest, max(first.offset, floor))


def _search(log: Mapping[str, Any], time: datetime, latest: datetime | None, start: int) -> FirstRecord:
    partition = BoundarySearch(time, latest, _stable_offset(log))
    for offset in range(start, _stable_offset(log)):
        record = log["records"][offset]
        if record and (first := partition.look_at(offset, datetime.fromisoformat(record[0]))):
            return first
    return partition.nothing(is_hidden=_stable_offset(log) < len(log["records"]))
