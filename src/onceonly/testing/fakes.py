"""A fake source and a fake sink without Spark, Kafka or Delta, for tests of pipelines.

Both store their data in JSON files, which are written atomically, so it survives a killed process. The fake sink passes
the same test suite as every sink (`onceonly.testing.contract`), and can be made to fail.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
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
from onceonly.errors import SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.testing.fake_sink import Failure, FakeSink
from onceonly.testing.json_files import locked, read_json, write_json

__all__ = ["Failure", "FakeInspector", "FakeParts", "FakeReceipts", "FakeSink", "FakeSource"]

SUFFIX = ".topic.json"


class FakeSource:
    """A topic with partitions. Each has records with timestamps, a log start and a last stable offset."""

    def __init__(self, topic: str, folder: Path) -> None:
        self.topic, self._file = topic, folder / f"{topic}{SUFFIX}"

    # ---- for tests: what producers and administrators do

    def append(self, partition: int, *records: tuple[datetime, Any] | None) -> None:
        """Write records. None is an offset without a record, such as a control record or a compacted one."""
        with self._changed() as topic:
            log = topic["partitions"].setdefault(str(partition), _empty())
            log["records"] += [record and [record[0].isoformat(), record[1]] for record in records]

    def expire(self, partition: int, start: int) -> None:
        """Retention removes everything below `start`."""
        with self._changed() as topic:
            topic["partitions"][str(partition)]["start"] = start

    def hold(self, partition: int, stable: int | None, own: int = 1, overdue: bool = False) -> None:
        """A producer's open transaction keeps the last stable offset at `stable`; None ends it.

        Args:
            own: how many records it has; what else comes behind it is of others.
        """
        with self._changed() as topic:
            topic["partitions"][str(partition)].update(stable=stable, own=own, overdue=overdue)

    def lose(self, partition: int, end: int) -> None:
        """The broker that leads the partition next has nothing from `end` on, as after an unclean election."""
        with self._changed() as topic:
            log = topic["partitions"][str(partition)]
            log["records"] = log["records"][:end]
            log["leaders"] = [*log.get("leaders", []), end]

    def drop(self, partition: int) -> None:
        with self._changed() as topic:
            del topic["partitions"][str(partition)]

    def recreate(self) -> None:
        """Delete the topic and create it again, empty."""
        with self._changed() as topic:
            topic.update(id=uuid.uuid4().hex, partitions={p: _empty() for p in topic["partitions"]})

    # ---- the Source protocol

    def check(self) -> list[str]:
        return []

    def log(self) -> TopicLog:
        topic = self._topic()
        held = {int(p): (log["start"], _stable(log)) for p, log in topic["partitions"].items()}
        written = {int(p): len(log["records"]) for p, log in topic["partitions"].items()}
        return TopicLog(self.topic, topic["id"], held, written=written)

    def has_records(self, range_: TopicRange) -> bool:
        return bool(self.read(None, (range_,)))

    def first_offsets(self, range_: TopicRange) -> offsets.Offsets:
        first = dict(range_.ends)
        for row in self.read(None, (range_,)):
            first[row["partition"]] = min(first[row["partition"]], row["offset"])
        return first

    def await_transactions(self, log: TopicLog) -> tuple[TopicLog, list[OpenTransaction]]:
        topic, now = self._topic(), self.log()
        transactions = []
        for partition, held in now.held.items():
            shown = topic["partitions"][str(partition)]
            hides_others, overdue = held > shown.get("own", 1), shown.get("overdue", False)
            transaction = OpenTransaction(partition, shown["stable"], held, hides_others, overdue, None, "producer 1")
            transactions.append(transaction)
        return now, transactions

    def offsets_at(
        self, time: datetime, latest: datetime | None = None, floor: offsets.Offsets = offsets.NO_OFFSETS
    ) -> Mapping[int, FirstRecord]:
        logs = {int(p): log for p, log in self._topic()["partitions"].items()}
        return {p: _first_at(log, time, latest, floor.get(p, 0)) for p, log in logs.items()}

    def read(self, spark: Any, ranges: tuple[TopicRange, ...]) -> list[dict[str, Any]]:
        """The records as a list of dicts; `spark` is not used."""
        logs = self._topic()["partitions"]
        wanted = ((p, offset) for range_ in ranges for p, span in range_.partitions.items() for offset in range(*span))
        return [
            {"partition": p, "offset": offset, "timestamp": record[0], "value": record[1]}
            for p, offset in wanted
            if (record := logs[str(p)]["records"][offset])
        ]

    def verify(self, ranges: tuple[TopicRange, ...]) -> None:
        for range_ in ranges:
            offsets.check_held(range_, self.log())
            self._check_mark(range_)

    def marked(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        if previous:
            self._check_mark(previous)
        return self.recognised(range_, previous)

    def recognised(self, range_: TopicRange, previous: TopicRange | None) -> TopicRange:
        logs = self._topic()["partitions"]
        epochs = {str(p): _leader_epoch(logs[str(p)], end - 1) for p, end in range_.ends.items() if str(p) in logs}
        marked = json.loads(previous.mark or "{}") if previous else {}
        kept = {
            p: epoch for p, epoch in marked.items() if previous and previous.ends[int(p)] == range_.ends.get(int(p))
        }
        return replace(range_, mark=json.dumps({**epochs, **kept}))

    def _check_mark(self, range_: TopicRange) -> None:
        topic = self._topic()
        for partition, epoch in json.loads(range_.mark or "{}").items():
            log, end = topic["partitions"].get(partition), range_.ends[int(partition)]
            if topic["id"] == range_.topic_id and log and epoch != _leader_epoch(log, end - 1):
                raise SourceLost(
                    f"{range_.called} partition {partition}: the records before {end} were replaced by others.",
                    todo="Restore the topic.",
                    code=offsets.LOG_REPLACED,
                )

    def report(self, done: Checkpoint, state_id: str) -> None:
        range_ = offsets.range_of(done.ranges, self.topic)
        ends = {str(p): end for p, end in range_.ends.items()} if range_ else {}
        with self._changed() as topic:
            reported = topic.setdefault("reported", {}).setdefault(done.pipeline, {})
            reported.update({p: max(end, reported.get(p, 0)) for p, end in ends.items()})
            shown = topic.setdefault("shown", {}).setdefault(done.pipeline, {})
            if shown.get("state_id") != state_id or shown["decision"] < (done.decision or 0):
                shown.update(state_id=state_id, decision=done.decision, ends=ends)

    def traces(self, pipeline: str) -> list[Trace]:
        shown = self._topic().get("shown", {}).get(pipeline)
        if shown is None:
            return []
        ends = {int(p): end for p, end in shown["ends"].items()}
        return [Trace(shown["state_id"], shown["decision"], f"the group of '{self.topic}'", {self.topic: ends})]

    def diagnose(self, error: Exception, spark: Any, ranges: tuple[TopicRange, ...]) -> Exception:
        return error

    def _topic(self) -> dict[str, Any]:
        topic: dict[str, Any] = read_json(self._file, None) or {"id": f"{self.topic}-1", "partitions": {}}
        return topic

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with locked(self._file.parent):
            topic = self._topic()
            yield topic
            write_json(self._file, topic)


class FakeInspector(Inspector):
    """A gate with the results that a test has set; by default, all checks pass."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self._told = pipeline, folder / "gate.json"

    def find(self, *severities: str | None) -> None:
        """Set the next results: a failed check of that severity; None: no failed check; 'error': an error is raised."""
        with locked(self._told.parent):
            write_json(self._told, [*read_json(self._told, []), *severities])

    def check(self) -> list[str]:
        return ["gate: a fake"]

    def examine(self, checkpoint: Checkpoint) -> Findings:
        found = self._next()
        if found == "error":
            raise ConnectionError("gate: disconnected")
        check = {"what": "a fake check", "ok": found is None, "severity": found or "critical", "observed": str(found)}
        rows = {sink.name: checkpoint.handles[sink.name]["rows"] for sink in self.pipeline.sinks}
        seen = {name: {"rows": count, "path": "in process", "checks": [check]} for name, count in rows.items()}
        return Findings(seen, docs=f"docs-{uuid.uuid4().hex}")

    def forget(self, examined: Findings) -> None:
        with locked(self._told.parent):
            forgotten = self._told.with_name("forgotten.json")
            write_json(forgotten, [*read_json(forgotten, []), examined.docs])

    def _next(self) -> str | None:
        with locked(self._told.parent):
            told: list[str | None] = read_json(self._told, [])
            write_json(self._told, told[1:])
        return told[0] if told else None


class FakeReceipts:
    """A sink's handle in a file, replaced by compare-and-set, for tests of sinks without a state table."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def current(self, first: Handle) -> Handle:
        """The present handle; `first` if it was never replaced."""
        current: Handle = read_json(self._file, dict(first))
        return current

    def replace(self, old: Handle, new: Handle) -> Handle:
        with locked(self._file.parent):
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
        return Sources(pipeline, lambda source: FakeSource(source.called, self.folder), lambda _: self._topics())

    def _topics(self) -> list[str]:
        return [path.name.removesuffix(SUFFIX) for path in self.folder.glob(f"*{SUFFIX}")]

    def inspector(self, pipeline: Pipeline) -> FakeInspector:
        return FakeInspector(pipeline, self.folder)

    def produce(self, checkpoint: Checkpoint) -> dict[str, list[dict[str, Any]]]:
        """For `Coordinator.stage`: every record of the checkpoint, for every sink."""
        pipeline = Pipeline.from_json(checkpoint.definition)
        sources = self.sources(pipeline)
        rows = [row for range_ in checkpoint.ranges for row in sources[range_.topic].read(None, (range_,))]
        return {sink.name: rows for sink in pipeline.sinks}


def _empty() -> dict[str, Any]:
    return {"start": 0, "stable": None, "records": []}


def _leader_epoch(log: Mapping[str, Any], offset: int) -> int:
    """How often the log was cut off at or below this offset."""
    return sum(end <= offset for end in log.get("leaders", []))


def _stable(log: Mapping[str, Any]) -> int:
    end = len(log["records"])
    return end if log["stable"] is None else min(log["stable"], end)


def _first_at(log: Mapping[str, Any], time: datetime, latest: datetime | None, floor: int) -> FirstRecord:
    """As a topic does it: what comes after a record that is dated ahead is searched from `floor` on."""
    first = _search(log, time, None, log["start"])
    if latest is None or first.at is None or first.at <= latest:
        return first
    return _search(log, time, latest, max(first.offset, floor))


def _search(log: Mapping[str, Any], time: datetime, latest: datetime | None, start: int) -> FirstRecord:
    partition = BoundarySearch(time, latest, _stable(log))
    for offset in range(start, _stable(log)):
        record = log["records"][offset]
        if record and (first := partition.look_at(offset, datetime.fromisoformat(record[0]))):
            return first
    return partition.nothing(held=_stable(log) < len(log["records"]))
