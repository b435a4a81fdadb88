"""A fake source and a fake sink without Spark, Kafka or Delta, for tests of pipelines.

Both store their data in JSON files, which are written atomically, so it survives a killed process. The fake sink passes
the same test suite as every sink (`onceonly.testing.contract`), and can be made to fail.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from onceonly.checkpoint import offsets
from onceonly.checkpoint.boundary_search import BoundarySearch, FirstRecord
from onceonly.checkpoint.interfaces import Findings, Inspector, OpenTransaction
from onceonly.checkpoint.model import Checkpoint, Handle, Outcome, Transaction, taken_out
from onceonly.checkpoint.offsets import TopicLog, TopicRange
from onceonly.checkpoint.sink import (
    Answer,
    History,
    Inspectable,
    ProvesHistory,
    Publication,
    Receipts,
    Replaceable,
    Resolvable,
    Sink,
    Trace,
    Traced,
)
from onceonly.checkpoint.sources import Sources
from onceonly.errors import CannotPublish, Fenced, InDoubt, OutcomeUnknown, SourceLost, StateBehind, TargetWentBack
from onceonly.pipeline.definition import Pipeline

Failure = Literal[
    "before",  # nothing is done, and the connection breaks
    "after",  # it is done, and the connection breaks
    "unknown",  # nothing is done, and the sink raises OutcomeUnknown
    "refused",  # nothing is done, and the sink raises CannotPublish
    "lost",  # the staged rows were lost: they are staged again, and the new handle is recorded first
    "doubt",  # the sink raises InDoubt until it is resolved manually
]

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
        topic: dict[str, Any] = _read(self._file, None) or {"id": f"{self.topic}-1", "partitions": {}}
        return topic

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        with _lock(self._file.parent):
            topic = self._topic()
            yield topic
            _write(self._file, topic)


class FakeSink(Sink, Traced, ProvesHistory, Replaceable, Inspectable, Resolvable):
    """An output of JSON rows: one file per staged transaction, and one for all published rows."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._published, self._failures = folder / "published.json", folder / "failures.json"
        folder.mkdir(parents=True, exist_ok=True)

    def fail(self, step: Literal["stage", "commit", "discard"], *failures: Failure) -> None:
        """Let the next calls of `step` fail in this way, one after the other, in any process."""
        with _lock(self.folder):
            planned = _read(self._failures, {})
            _write(self._failures, {**planned, step: [*planned.get(step, []), *failures]})

    def remove(self, *txns: str) -> None:
        """Remove what these transactions have published, as a person might."""
        with _lock(self.folder):
            shown = self._shown()
            kept = [entry for entry in shown["entries"] if entry["txn"] not in txns]
            _write(self._published, {**shown, "entries": kept})

    def rows(self) -> list[Any]:
        """The rows that a reader sees, in the order of publication."""
        return [row for entry in self.entries() for row in entry["rows"]]

    def entries(self) -> list[dict[str, Any]]:
        """Publications in order, with app_id, decision, txn (the name) and rows."""
        entries: list[dict[str, Any]] = self._shown()["entries"]
        return entries

    # ---- the Sink protocol

    def check(self) -> list[str]:
        return [f"{self.name}: publishes to {self.folder}"]

    def stage(self, txn: Transaction, rows: Iterable[Any]) -> Handle:
        staged = list(rows)
        with self._failing("stage"):
            _write(self._staged(txn.name), staged)
        return {"kind": "fake", "txn": txn.name, "app_id": txn.app_id, "rows": len(staged)}

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        with self._failing("commit") as failure:
            if failure == "lost":
                handle = receipts.replace(handle, {**handle, "made": uuid.uuid4().hex})
            if failure == "doubt" and "judged" in handle:
                self.show_evidence()
            if failure == "doubt" and "judged" not in handle:
                self._fail_first("commit", "doubt")
                raise InDoubt(
                    f"sink '{self.name}' is in doubt.", "The evidence no longer exists.", "onceonly resolve …"
                )
            with _lock(self.folder):
                if last and (history := self.compare(last)).answer is Answer.WENT_BACK and not self._has(handle):
                    raise TargetWentBack(f"sink '{self.name}': its target went back.", history.why)
                outcome = self._publish(handle, decision)
                shown = handle["txn"] in self._shown().get("log", {})
            return replace(outcome, proof={"target": str(self.folder), "txn": handle["txn"]} if shown else {})

    def compare(self, last: Publication) -> History:
        if last.target != str(self.folder):
            return History(Answer.ELSEWHERE)
        txn = Transaction.parse(last.proof["txn"] or "")
        if txn is None:
            return History(Answer.SAME)  # nothing has to be there
        log = self._shown().get("log", {})
        if txn.name in log:
            return History(Answer.SAME)
        at = max((at for name, at in log.items() if name.startswith(f"{txn.prefix}-")), default=0)
        return History(Answer.WENT_BACK, f"It shows decision {at}, and not {txn.name}", at)

    def proof_now(self, last: Publication) -> Publication | None:
        if not self._published.exists():
            return None
        at = self.compare(last).decision
        name = next((name for name, decision in self._shown()["log"].items() if decision == at), None)
        txn = Transaction.parse(name or "")
        return Publication(txn.epoch if txn else 0, at, {"target": str(self.folder), "txn": name})

    def _has(self, handle: Handle) -> bool:
        return bool(self._last(handle)[1] == handle["txn"])

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        with _lock(self.folder):
            at, name = self._last(handle)
            if (at, name) == (decision, handle["txn"]):
                return Outcome(already=True, detail={"rows": handle["rows"]})
            if at < decision:
                self._write_last(handle, decision, None, self.entries())
        return None

    def traces(self, pipeline: str) -> list[Trace]:
        found = ((app_id.split("/"), at) for app_id, (at, _) in self._shown()["last"].items())
        return [
            Trace(state_id, at, f"fake {self.folder}")
            for (_, state_id, of, sink), at in found
            if (of, sink) == (pipeline, self.name)
        ]

    def staged(self, handle: Handle) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(_read(self._staged(handle["txn"]), [])).to_reader()

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return spark.createDataFrame(_read(self._staged(handle["txn"]), []))

    def resolved(self, handle: Handle, committed: bool) -> Handle:
        return {**handle, "judged": committed}

    def check_replace(self, old: Handle) -> None:
        """Anything can be replaced."""

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        _write(self._staged(txn.name), [])
        taken = [{"txn": old["txn"]} for old in olds]
        return {"kind": "fake", "txn": txn.name, "app_id": txn.app_id, "rows": 0, "retracts": taken}

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        with self._failing("discard"), _lock(self.folder):
            if txn.name not in self._published_names():
                self._staged(txn.name).unlink(missing_ok=True)

    def leftovers(self, prefix: str) -> list[Transaction]:
        names = {path.name.removesuffix(".staged.json") for path in self.folder.glob(f"{prefix}-*.staged.json")}
        found = (Transaction.parse(name) for name in sorted(names - self._published_names()))
        return [txn for txn in found if txn]

    def _publish(self, handle: Handle, decision: int) -> Outcome:
        at, name = self._last(handle)
        if (at, name) == (decision, handle["txn"]) or handle.get("judged"):
            return Outcome(already=True, detail={"rows": handle["rows"]})
        if at >= decision:
            raise self._overtaken(handle, decision, at, name)
        rows = _read(self._staged(handle["txn"]), None)
        if rows is None:
            raise self._refusal(f"The staged rows of {handle['txn']} no longer exist.")
        olds = taken_out(handle)
        entries = [entry for entry in self.entries() if entry["txn"] not in {old["txn"] for old in olds}]
        entry = {"app_id": handle["app_id"], "decision": decision, "txn": handle["txn"], "rows": rows}
        self._write_last(handle, decision, handle["txn"], [*entries, entry])
        return Outcome(detail={"rows": handle["rows"]})

    def _overtaken(self, handle: Handle, decision: int, at: int, name: str | None) -> StateBehind | Fenced:
        what = f"sink '{self.name}' shows decision {at} where {decision} is to be published."
        if at == decision and name is None:
            return Fenced(what, "It was given up.")
        todo = "Was the state table restored? onceonly state forward (docs/operations.md, Backup and restore)"
        return StateBehind(what, f"Its name is {name}, and not {handle['txn']}: the state table is behind it.", todo)

    def _shown(self) -> dict[str, Any]:
        """The entries and, under "last" by app id, the last decision and its transaction, which are never removed."""
        shown: dict[str, Any] = _read(self._published, {"entries": [], "last": {}})
        return shown

    def _last(self, handle: Handle) -> tuple[int, str | None]:
        """The last decision of this pipeline, and its transaction; None if that was given up."""
        at, name = self._shown()["last"].get(handle["app_id"], (0, None))
        return at, name

    def _write_last(self, handle: Handle, decision: int, txn: str | None, entries: list[dict[str, Any]]) -> None:
        last = {**self._shown()["last"], handle["app_id"]: [decision, txn]}
        log = {**self._shown().get("log", {}), **({txn: decision} if txn else {})}
        _write(self._published, {"entries": entries, "last": last, "log": log})

    def _staged(self, name: str) -> Path:
        return self.folder / f"{name}.staged.json"

    def _published_names(self) -> set[str]:
        return {entry["txn"] for entry in self.entries()}

    @contextmanager
    def _failing(self, step: str) -> Iterator[Failure | None]:
        failure = self._next_failure(step)
        if failure == "before":
            raise ConnectionError(f"{self.name}: disconnected before {step}")
        if failure == "unknown":
            raise OutcomeUnknown(f"{self.name}: it is not known whether {step} happened.", todo="Recover.")
        if failure == "refused":
            raise self._refusal("The test requested it.")
        yield failure
        if failure == "after":
            raise ConnectionError(f"{self.name}: disconnected after {step}")

    def _next_failure(self, step: str) -> Failure | None:
        with _lock(self.folder):
            planned = _read(self._failures, {})
            if not planned.get(step):
                return None
            failure: Failure = planned[step].pop(0)
            _write(self._failures, planned)
            return failure

    def _fail_first(self, step: str, failure: Failure) -> None:
        """Let the next call of `step` fail in this way, before those that are planned."""
        with _lock(self.folder):
            planned = _read(self._failures, {})
            _write(self._failures, {**planned, step: [failure, *planned.get(step, [])]})

    def show_evidence(self) -> None:
        """Let the target show again how a doubtful transaction ended."""
        with _lock(self.folder):
            planned = _read(self._failures, {})
            commits = [failure for failure in planned.get("commit", []) if failure != "doubt"]
            _write(self._failures, {**planned, "commit": commits})

    def _refusal(self, why: str) -> CannotPublish:
        todo = f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …"
        return CannotPublish(f"sink '{self.name}' refuses.", why, todo)


class FakeInspector(Inspector):
    """A gate with the results that a test has set; by default, all checks pass."""

    def __init__(self, pipeline: Pipeline, folder: Path) -> None:
        self.pipeline, self._told = pipeline, folder / "gate.json"

    def find(self, *severities: str | None) -> None:
        """Set the next results: a failed check of that severity; None: no failed check; 'error': an error is raised."""
        with _lock(self._told.parent):
            _write(self._told, [*_read(self._told, []), *severities])

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
        with _lock(self._told.parent):
            forgotten = self._told.with_name("forgotten.json")
            _write(forgotten, [*_read(forgotten, []), examined.docs])

    def _next(self) -> str | None:
        with _lock(self._told.parent):
            told: list[str | None] = _read(self._told, [])
            _write(self._told, told[1:])
        return told[0] if told else None


class FakeReceipts:
    """A sink's handle in a file, replaced by compare-and-set, for tests of sinks without a state table."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def current(self, first: Handle) -> Handle:
        """The present handle; `first` if it was never replaced."""
        current: Handle = _read(self._file, dict(first))
        return current

    def replace(self, old: Handle, new: Handle) -> Handle:
        with _lock(self._file.parent):
            current: Handle = _read(self._file, dict(old))
            if current == dict(old):
                _write(self._file, dict(new))
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


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(path: Path, default: Any) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default


def _write(path: Path, data: Any) -> None:
    """Write atomically, even if the process is killed."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)
