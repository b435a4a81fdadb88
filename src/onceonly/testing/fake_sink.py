"""A fake sink without Spark, Kafka or Delta. It can be made to fail, and keeps the contract of every sink.

Its data is in JSON files, which are written atomically, so it survives a killed process.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    DecisionTraces,
    History,
    InspectableRows,
    Publication,
    Receipts,
    ReplaceableRows,
    Sink,
    TargetHistory,
    Trace,
    replaced_handles,
)
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.checkpoint.verification import Depth, Finding, Judgement, Published, VerifiableTarget
from onceonly.errors import (
    ActionNeeded,
    CannotPublish,
    Fenced,
    InDoubt,
    OutcomeUnknown,
    StageAgain,
    StateBehind,
    TargetWentBack,
)

Failure = Literal[
    "before",  # nothing is done, and the connection breaks
    "after",  # it is done, and the connection breaks
    "unknown",  # nothing is done, and the sink raises OutcomeUnknown
    "refused",  # nothing is done, and the sink raises CannotPublish
    "lost",  # the staged rows were lost: they are staged again, and the new handle is recorded first
    "doubt",  # the sink raises InDoubt until it is resolved manually
    "again",  # a rehearsal raises StageAgain
    "action",  # a rehearsal raises ActionNeeded
    "copied",  # a rehearsal copies the staged rows, and returns a handle that names the copy
]


RIGHT_CODES = (FindingCode.RIGHT, FindingCode.TAKEN_OUT, FindingCode.LOSS_ACCEPTED)


class FakeSink(Sink, DecisionTraces, TargetHistory, ReplaceableRows, InspectableRows, VerifiableTarget):
    """An output of JSON rows: one file per staged transaction, and one for all published rows."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._published, self._failures = folder / "published.json", folder / "failures.json"
        folder.mkdir(parents=True, exist_ok=True)

    def fail(self, step: Literal["stage", "rehearse", "commit", "discard"], *failures: Failure) -> None:
        """Let the next calls of `step` fail in this way, one after the other, in any process."""
        with lock_folder(self.folder):
            planned = read_json(self._failures, {})
            write_json(self._failures, {**planned, step: [*planned.get(step, []), *failures]})

    def remove(self, *txns: str) -> None:
        """Remove what these transactions have published, as a person might."""
        with lock_folder(self.folder):
            content = self._read_published()
            remaining = [entry for entry in content["entries"] if entry["txn"] not in txns]
            write_json(self._published, {**content, "entries": remaining})

    def rows(self) -> list[Any]:
        """Return the rows that a reader sees, in the order of publication."""
        rows: list[Any] = []
        for entry in self.entries():
            rows += entry["rows"]
        return rows

    def entries(self) -> list[dict[str, Any]]:
        """Return the publications in order, with app_id, decision, txn (the name) and rows."""
        entries: list[dict[str, Any]] = self._read_published()["entries"]
        return entries

    # ---- the Sink protocol

    def check(self) -> list[str]:
        return [f"{self.name}: publishes to {self.folder}"]

    def stage(self, txn: Transaction, rows: Iterable[Any]) -> Handle:
        staged = list(rows)
        with self._fail_as_planned("stage"):
            write_json(self._staged_file(txn.name), staged)
        return {"kind": "fake", "txn": txn.name, "app_id": txn.app_id, "rows": len(staged)}

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        with self._fail_as_planned("rehearse") as failure:
            if failure == "again":
                raise self._stage_again("The test requested it.")
            if failure == "action":
                raise ActionNeeded(f"sink '{self.name}' waits.", "The test requested it.", code="test-requested-it")
            with lock_folder(self.folder):
                if not self._is_published(handle, decision):
                    self._check_target(handle, decision, last)
                    self._check_rows(handle)
            if failure == "copied":
                handle = {**handle, "copy": uuid.uuid4().hex[:12]}
                write_json(self._rows_file(handle), read_json(self._staged_file(handle["txn"]), []))
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        with self._fail_as_planned("commit") as failure:
            if failure == "lost":
                handle = receipts.replace(handle, {**handle, "made": uuid.uuid4().hex})
            if failure == "doubt" and "judged" in handle:
                self.show_evidence()
            if failure == "doubt" and "judged" not in handle:
                self._fail_first("commit", "doubt")
                raise InDoubt(
                    f"sink '{self.name}' is in doubt.",
                    "The evidence no longer exists.",
                    f"onceonly resolve PIPELINE EPOCH --aborted {self.name} --reason …",
                    code="test-in-doubt",
                )
            with lock_folder(self.folder):
                return self._publish(handle, decision, last)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        with lock_folder(self.folder):
            at, name = self._last(handle)
            if (at, name) == (decision, handle["txn"]):
                return self._outcome(handle, already=True)
            if at < decision:
                self._write_last(handle, decision, None, self.entries())
        return None

    def traces(self, pipeline: str) -> list[Trace]:
        traces = []
        for app_id, (decision, _) in self._read_published()["last"].items():
            _, state_id, traced_pipeline, sink = app_id.split("/")
            if (traced_pipeline, sink) == (pipeline, self.name):
                traces.append(Trace(state_id, decision, f"fake {self.folder}"))
        return traces

    def compare(self, last: Publication) -> History:
        """Compare by the target's log, which never expires here."""
        if last.target != str(self.folder):
            return History(Answer.ELSEWHERE)
        txn = Transaction.parse(last.proof["txn"] or "")
        if txn is None:
            return History(Answer.SAME)  # nothing has to be there
        log = self._log()
        if txn.name in log:
            return History(Answer.SAME)
        at = 0
        for name, decision in log.items():
            if name.startswith(f"{txn.prefix}-"):
                at = max(at, decision)
        return History(Answer.WENT_BACK, f"It shows decision {at}, and not {txn.name}", at)

    def find_current_publication(self, last: Publication) -> Publication | None:
        if not self._published.exists():
            return None
        prefixes: list[str] = []
        for publication in (last, *last.lost):
            proven = Transaction.parse(publication.proof["txn"] or "")
            if proven:
                prefixes.append(f"{proven.prefix}-")
        newest: str | None = None
        at = 0
        for name, decision in self._log().items():
            if name.startswith(tuple(prefixes)) and (newest is None or decision > at):
                newest, at = name, decision
        epoch = 0
        txn = Transaction.parse(newest or "")
        if txn:
            epoch = txn.epoch
        return Publication(epoch, at, {"target": str(self.folder), "txn": newest})

    def read_staged(self, handle: Handle) -> Any:
        import pyarrow as pa

        return pa.Table.from_pylist(read_json(self._rows_file(handle), [])).to_reader()

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return spark.createDataFrame(read_json(self._rows_file(handle), []))

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        return {**handle, "judged": committed}

    def check_replace(self, old: Handle) -> None:
        """Refuse nothing: anything can be replaced."""

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        write_json(self._staged_file(txn.name), [])
        retracted = [{"txn": old["txn"]} for old in olds]
        return {"kind": "fake", "txn": txn.name, "app_id": txn.app_id, "rows": 0, "retracts": retracted}

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        with self._fail_as_planned("discard"), lock_folder(self.folder):
            if txn.name not in self._published_names():
                for path in self.folder.glob(f"{txn.name}.*"):
                    path.unlink()

    def leftovers(self, prefix: str) -> list[Transaction]:
        names = {path.name.removesuffix(".staged.json") for path in self.folder.glob(f"{prefix}-*.staged.json")}
        return list_transactions(names - self._published_names(), prefix)

    def _publish(self, handle: Handle, decision: int, last: Publication | None = None) -> Outcome:
        """Publish the staged rows, and remove those that they replace. The folder is locked."""
        if self._is_published(handle, decision):
            return self._outcome(handle, already=True)
        self._check_target(handle, decision, last)
        try:
            rows = self._check_rows(handle)
        except StageAgain as error:
            raise self._refusal(error.why) from error
        replaced = {old["txn"] for old in replaced_handles(handle)}
        entries = [entry for entry in self.entries() if entry["txn"] not in replaced]
        entry = {"app_id": handle["app_id"], "decision": decision, "txn": handle["txn"], "rows": rows}
        self._write_last(handle, decision, handle["txn"], [*entries, entry])
        return self._outcome(handle)

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        content = self._read_published()
        entries: dict[str, list[dict[str, Any]]] = {}
        for entry in content["entries"]:
            entries.setdefault(entry["txn"], []).append(entry)
        for done, publication in enumerate(published, 1):
            code, why = self._compare_entries(publication, entries.get(publication.handle["txn"], []))
            judgement = Judgement.RIGHT if code in RIGHT_CODES else Judgement.WRONG
            if code is FindingCode.NO_EVIDENCE:
                judgement = Judgement.UNKNOWN
            yield Finding(judgement, code, why, publication.epoch)
            depth.show_progress(done, len(published))
        recorded, app_ids, last = set[str](), set[str](), 0
        for publication in published:
            recorded.add(publication.handle["txn"])
            app_ids.add(publication.handle["app_id"])
            last = max(last, publication.decision)
        for name, copies in entries.items():
            if name in recorded or copies[0]["app_id"] not in app_ids:
                continue
            why = f"{self.folder} shows {name}, and no such publication is recorded"
            if copies[0]["decision"] > last:
                yield Finding(Judgement.UNKNOWN, FindingCode.NOT_RECORDED_YET, why)
            else:
                yield Finding(Judgement.WRONG, FindingCode.COMMIT_UNRECORDED, why)

    def _compare_entries(self, publication: Published, entries: Sequence[dict[str, Any]]) -> tuple[FindingCode, str]:
        """Compare what the target shows of one transaction with what is recorded."""
        name, decision = publication.handle["txn"], publication.decision
        if publication.taken_out_by is not None:
            if entries:
                return FindingCode.NOT_TAKEN_OUT, f"epoch {publication.taken_out_by} has taken out {name}"
            return FindingCode.TAKEN_OUT, f"epoch {publication.taken_out_by} has taken it out"
        if publication.missing:
            if entries:
                return FindingCode.LOSS_IS_BACK, f"{name} is recorded as lost"
            return FindingCode.LOSS_ACCEPTED, "a person has accepted that it is lost"
        if not entries and not publication.publication.proof:
            return FindingCode.NO_EVIDENCE, "a person says that it was published"
        if not entries:
            return FindingCode.COMMIT_MISSING, f"{self.folder} does not show {name}"
        if len(entries) > 1:
            return FindingCode.ROWS_TWICE, f"{self.folder} shows {name} {len(entries)} times"
        if entries[0]["decision"] != decision:
            return FindingCode.RECORD_DIFFERS, f"{name} is of decision {entries[0]['decision']}, and not {decision}"
        rows, recorded = len(entries[0]["rows"]), publication.handle["rows"]
        if rows != recorded:
            return FindingCode.ROW_COUNT, f"{name} has {rows} rows, and {recorded} are recorded"
        return FindingCode.RIGHT, f"{rows} rows"

    def _is_published(self, handle: Handle, decision: int) -> bool:
        return self._last(handle) == (decision, handle["txn"]) or bool(handle.get("judged"))

    def _check_target(self, handle: Handle, decision: int, last: Publication | None) -> None:
        """Refuse a target that is ahead of the state table, or behind it."""
        at, name = self._last(handle)
        if at >= decision:
            raise self._overtaken_error(handle, decision, at, name)
        if last is None:
            return
        history = self.compare(last)
        if history.answer is Answer.WENT_BACK:
            what = f"sink '{self.name}': its target lacks what was published to it."
            raise TargetWentBack(what, history.why, "Bring it back.", code="target-went-back")
        for publication in last.lost:
            if self.compare(publication).answer is Answer.SAME:
                what = f"sink '{self.name}': its target shows epoch {publication.epoch} again."
                raise TargetWentBack(what, "It was accepted as lost.", "Record it.", code="target-is-back")

    def _check_rows(self, handle: Handle) -> list[Any]:
        """Return the staged rows. Raises StageAgain unless they are all there."""
        try:
            rows: list[Any] | None = read_json(self._rows_file(handle), None)
        except ValueError:
            rows = None
        if rows is None or len(rows) != handle["rows"]:
            raise self._stage_again(f"The staged rows of {handle['txn']} no longer exist, or not all of them.")
        return rows

    def _stage_again(self, why: str) -> StageAgain:
        return StageAgain(f"sink '{self.name}': what is staged is damaged.", why, code="staged-rows-damaged")

    def _outcome(self, handle: Handle, already: bool = False) -> Outcome:
        proof: dict[str, str] = {}
        if handle["txn"] in self._log():  # else a person says that it was published
            proof = {"target": str(self.folder), "txn": handle["txn"]}
        return Outcome(already, {"rows": handle["rows"]}, proof)

    def _overtaken_error(self, handle: Handle, decision: int, at: int, name: str | None) -> StateBehind | Fenced:
        """Return the error of a target that shows a later decision, or this one for another transaction or none."""
        what = f"sink '{self.name}' shows decision {at} where {decision} is to be published."
        if at == decision and name is None:
            return Fenced(what, "It was given up.", code="sink-given-up")
        todo = "Was the state table restored? onceonly state forward FILE.py:NAME --decision N --reason …"
        return StateBehind(
            what,
            f"Its name is {name}, and not {handle['txn']}: the state table is behind it.",
            todo,
            code="state-behind",
        )

    def _read_published(self) -> dict[str, Any]:
        """Return what the target shows.

        "entries" are the publications. "last" is, by app id, the last decision and its transaction, which are never
        removed. For "log" see `_log`; a target without publications has none.
        """
        content: dict[str, Any] = read_json(self._published, {"entries": [], "last": {}})
        return content

    def _last(self, handle: Handle) -> tuple[int, str | None]:
        """Return the last decision of this pipeline, and its transaction; None if that was given up."""
        return self._last_of(handle["app_id"])

    def _last_of(self, app_id: str) -> tuple[int, str | None]:
        at, name = self._read_published()["last"].get(app_id, (0, None))
        return at, name

    def _write_last(self, handle: Handle, decision: int, txn: str | None, entries: list[dict[str, Any]]) -> None:
        """Write the entries with the last decision of this pipeline. `txn`: of which it is; None: it was given up."""
        last = {**self._read_published()["last"], handle["app_id"]: [decision, txn]}
        log = dict(self._log())
        if txn:
            log[txn] = decision
        write_json(self._published, {"entries": entries, "last": last, "log": log})

    def _log(self) -> dict[str, int]:
        """Return by transaction the decision that published it. Nothing is ever removed from it."""
        log: dict[str, int] = self._read_published().get("log", {})
        return log

    def _staged_file(self, name: str) -> Path:
        return self.folder / f"{name}.staged.json"

    def _rows_file(self, handle: Handle) -> Path:
        """Return the file of the staged rows, or of the copy that a rehearsal has made of them."""
        if "copy" in handle:
            return self.folder / f"{handle['txn']}.{handle['copy']}.json"
        return self._staged_file(handle["txn"])

    def _published_names(self) -> set[str]:
        return {entry["txn"] for entry in self.entries()}

    @contextmanager
    def _fail_as_planned(self, step: str) -> Iterator[Failure | None]:
        """Run a step within it, and fail before or after it if that is planned. Yields the planned failure."""
        failure = self._next_failure(step)
        if failure == "before":
            raise ConnectionError(f"{self.name}: disconnected before {step}")
        if failure == "unknown":
            raise OutcomeUnknown(
                f"{self.name}: it is not known whether {step} happened.", todo="Recover.", code="test-unknown"
            )
        if failure == "refused":
            raise self._refusal("The test requested it.")
        yield failure
        if failure == "after":
            raise ConnectionError(f"{self.name}: disconnected after {step}")

    def _next_failure(self, step: str) -> Failure | None:
        """Return the next failure that is planned for the step, and strike it off."""
        with lock_folder(self.folder):
            planned = read_json(self._failures, {})
            if not planned.get(step):
                return None
            failure: Failure = planned[step].pop(0)
            write_json(self._failures, planned)
            return failure

    def _fail_first(self, step: str, failure: Failure) -> None:
        """Let the next call of `step` fail in this way, before those that are planned."""
        with lock_folder(self.folder):
            planned = read_json(self._failures, {})
            write_json(self._failures, {**planned, step: [failure, *planned.get(step, [])]})

    def show_evidence(self) -> None:
        """Let the target show again how a doubtful transaction ended."""
        with lock_folder(self.folder):
            planned = read_json(self._failures, {})
            commits = [failure for failure in planned.get("commit", []) if failure != "doubt"]
            write_json(self._failures, {**planned, "commit": commits})

    def _refusal(self, why: str) -> CannotPublish:
        todo = f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …"
        return CannotPublish(f"sink '{self.name}' refuses.", why, todo, code="test-refused")


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder within it, against other processes and threads. It ends with the process, too."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_json(path: Path, default: Any) -> Any:
    """Return the content of a file; `default` if there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default


def write_json(path: Path, data: Any) -> None:
    """Write atomically, even if the process is killed."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)
