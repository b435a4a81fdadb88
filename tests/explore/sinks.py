"""Sinks in memory that keep the real contracts: each look at a target, and each change of it, is a step of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from explore import targets
from explore.steps import BEFORE, EITHER, NEVER, Steps
from explore.targets import Entry
from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Answer,
    History,
    OverwritingRows,
    PooledTransaction,
    Publication,
    Receipts,
    ReplaceableRows,
    Sink,
    TargetHistory,
    TransactionalIdPool,
    replaced_handles,
)
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

TRIES = 5
Watch = Callable[..., None]  # is told what is about to happen to a target: (what, sink, transaction's name, …)


class MemorySink(Sink):
    """What all of them share: the parts of the protocol that do not depend on how a target publishes."""

    def __init__(self, name: str, target: Any, steps: Steps, watch: Watch, steady: bool = True) -> None:
        self.name, self.target, self._steps, self._watch, self._steady = name, target, steps, watch, steady

    def check(self) -> list[str]:
        return []

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        self.step("stages", lambda: self._put(txn, tuple(rows)), EITHER)
        return {"txn": txn.name, "app_id": txn.app_id, "rows": len(rows)}

    def _put(self, txn: Transaction, rows: tuple[int, ...]) -> None:
        self._watch("stage", self.name, txn.name)
        self.target.staged[txn.name] = rows

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """One look at everything that the commit will need."""
        self.step("rehearses", lambda: self._rehearse(handle, decision, last), (BEFORE,))
        return handle

    def _rehearse(self, handle: Handle, decision: int, last: Publication | None) -> None:
        if self.target.broken in ("refuses", "fenced"):
            raise ActionNeeded(f"sink '{self.name}' refuses.", "The target was altered.")
        if self.target.broken == "damages":
            raise StageAgain(f"The staged rows of {_short(handle['txn'])} are damaged.")
        self._require_fit(handle, decision, last)
        self.target.rehearsed |= {handle["txn"]} - {None}
        self.target.passed |= {(handle["txn"] or "", decision, last.decision if last else 0)}

    @abstractmethod
    def _require_fit(self, handle: Handle, decision: int, last: Publication | None) -> None:
        """Raise as `rehearse` does, unless it could be published now."""

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        try:
            return self._commit(handle, decision, receipts, last)
        except (CannotPublish, Fenced) as error:
            if handle["txn"] and not isinstance(error, InDoubt):
                self._watch("refuse", self.name, handle["txn"], decision)
            raise

    @abstractmethod
    def _commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None) -> Outcome: ...

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        self.target.is_changed()  # by who gives it up
        return self._fence_off(handle, decision)

    @abstractmethod
    def _fence_off(self, handle: Handle, decision: int) -> Outcome | None: ...

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        if self.step(f"looks for {_short(txn.name)}", lambda: self._discardable(txn.name), (BEFORE,)):
            self.step(f"deletes {_short(txn.name)}", lambda: self._delete(txn.name), EITHER)

    def _discardable(self, name: str) -> bool:
        return name in self.target.staged and name not in self.target.published

    def _delete(self, name: str) -> None:
        self._watch("discard", self.name, name)
        self.target.staged.pop(name, None)

    def leftovers(self, prefix: str) -> list[Transaction]:
        found = self.step("lists what is left", lambda: sorted(self._left()))
        return [txn for name in found if name.startswith(f"{prefix}-{self.name}-") and (txn := Transaction.parse(name))]

    def _left(self) -> set[str]:
        return self.target.left()

    def look(self, name: str) -> tuple[int, ...] | None:
        """What is staged under that name, for a gate."""
        return self.step(f"shows {_short(name)}", lambda: self.target.staged.get(name), (BEFORE,))

    def step(self, what: str, effect: Callable[[], Any], faults: tuple[str, ...] = NEVER) -> Any:
        return self._steps.take(f"{self.name}: {what}", lambda: self._unless_broken(what, effect), faults)

    def _unless_broken(self, what: str, effect: Callable[[], Any]) -> Any:
        if self.target.broken == "down":
            raise ConnectionError(f"{self.name} does not answer: {what}")
        return effect()

    def _unless_refusing(self) -> None:
        if self.target.broken == "refuses":
            raise self.refusal("The target was altered.")
        if self.target.broken == "fenced":
            raise Fenced(f"sink '{self.name}': others have it.", "It was fenced.", self.exit)

    @property
    def exit(self) -> str:
        return f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …"

    def refusal(self, why: str) -> CannotPublish:
        return CannotPublish(f"sink '{self.name}' refuses.", why, self.exit)

    def _not_ours(self, decision: int, last: tuple[int, str]) -> Exception:
        if last[0] == decision and not last[1]:
            return Fenced(f"sink '{self.name}': decision {decision} was given up.", "It was fenced.", self.exit)
        return StateBehind(f"sink '{self.name}': {last} and not {decision}.", "The state table went back.", self.exit)


class Proven(MemorySink, TargetHistory):
    """What those share whose targets show what has changed them, in order."""

    def compare(self, last: Publication) -> History:
        return self._look("compares the target", lambda: self._compare(last))

    def find_current_publication(self, last: Publication) -> Publication | None:
        return self._look("shows how the target is", lambda: self._find_current_publication(last))

    def _look(self, what: str, effect: Callable[[], Any]) -> Any:
        if self._steady:
            return self._unless_broken(what, effect)
        return self.step(what, effect, (BEFORE,))

    def _compare(self, last: Publication) -> History:
        if self._shows(last):
            return History(Answer.SAME)
        return History(Answer.WENT_BACK, f"it ends at {self.target.versions[-1:]}", self._last_decision())

    def _shows(self, last: Publication) -> bool:
        there, proof = self.target, last.proof
        return there.identity == proof["id"] and there.has_version(proof["version"], tuple(proof["change"]))

    def _last_decision(self) -> int:
        return max((decision for _, decision in self.target.versions), default=0)

    def _find_current_publication(self, last: Publication) -> Publication | None:
        target = self.target
        if not target.identity or not target.versions:
            return None
        return Publication(last.epoch, self._last_decision(), self._proof(len(target.versions)))

    def _proof(self, version: int) -> dict[str, Any]:
        change = list(self.target.versions[version - 1])
        return {"target": self.name, "id": self.target.identity, "version": version, "change": change}

    def _outcome(self, handle: Handle, already: bool) -> Outcome:
        """Of what the target shows; without a proof if that has gone meanwhile."""
        names = [name for name, _ in self.target.versions]
        proof = self._proof(names.index(handle["txn"]) + 1) if handle["txn"] in names else {}
        return Outcome(already=already, detail={"rows": handle["rows"]}, proof=proof)

    def _require(self, last: Publication | None) -> None:
        if last and not self._shows(last):
            raise TargetWentBack(f"sink '{self.name}' refuses.", "The target lacks what was published to it.")
        if last and any(self._shows(lost) for lost in last.lost):
            raise TargetWentBack(f"sink '{self.name}' refuses.", "The target shows what was accepted as lost.")


class TakesBack(ReplaceableRows):
    """What those share that take back what they have published."""

    def check_replace(self, old: Handle) -> None:
        return

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        retracts = [{"txn": old["txn"]} for old in olds]
        return {"txn": txn.name, "app_id": txn.app_id, "rows": 0, "retracts": retracts}


MOVED: tuple[int, ...] = (-1,)  # what a staged folder shows whose files were moved away


def _short(name: str) -> str:
    """Epoch, attempt and nonce of a transaction's name."""
    return "-".join(name.split("-")[-3:])


def _instead(handle: Handle) -> tuple[str, ...]:
    return tuple(old["txn"] for old in replaced_handles(handle))


class TableSink(Proven):
    """As the Delta sink: evidence is decision and name of the application's last entry, in its snapshot."""

    target: targets.Lake

    def _commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None) -> Outcome:
        for _ in range(TRIES):
            seen, shown, outcome = self.step("looks who was last", lambda: self._look_at(handle, decision, last))
            if outcome:
                return outcome
            entry = Entry(handle["txn"], decision, _instead(handle), handle["column"])
            self.step("looks whether all is there", partial(self._check_there, handle, shown))
            if made := self.step(f"publishes decision {decision}", partial(self._publish, handle, seen, entry), EITHER):
                return made
        raise OutcomeUnknown(f"sink '{self.name}': lost {TRIES} times.", todo="onceonly recover")

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        handle = super().stage(txn, rows)
        if self.target.column is None:
            return {**handle, "column": ""}
        column = self.step("looks at the columns", lambda: self.target.column or f"type of epoch {txn.epoch}")
        return {**handle, "column": column}

    def _look_at(
        self, handle: Handle, decision: int, last: Publication | None
    ) -> tuple[tuple[int, str] | None, tuple[str, ...], Outcome | None]:
        seen = self._snapshot(handle)
        if seen == (decision, handle["txn"]):
            return seen, (), self._outcome(handle, already=True)
        if seen and seen[0] >= decision:
            raise self._not_ours(decision, seen)
        self._require(last)
        return seen, self._shown(), None

    def _require_fit(self, handle: Handle, decision: int, last: Publication | None) -> None:
        _, shown, outcome = self._look_at(handle, decision, last)
        if outcome:
            return
        if handle["rows"] and handle["txn"] not in self.target.staged:
            raise StageAgain(f"The staged rows of {_short(handle['txn'])} no longer exist.")
        if missing := self._lacking(handle, shown):
            raise ActionNeeded(f"{sorted(missing)} are not there to be taken out.")
        if not self._fits(handle):
            raise StageAgain(f"The target has a column '{self.target.column}' by now.")

    def _lacking(self, handle: Handle, shown: Sequence[str]) -> set[str]:
        return set(_instead(handle)) - set(shown)

    def _fits(self, handle: Handle) -> bool:
        return not self.target.column or handle["column"] in ("", self.target.column)

    def _snapshot(self, handle: Handle) -> tuple[int, str] | None:
        return self.target.last.get(handle["app_id"])

    def _shown(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.target.shown)

    def _check_there(self, handle: Handle, shown: tuple[str, ...]) -> None:
        """Files of its own, and in the snapshot those that it takes out."""
        self._unless_refusing()
        if handle["rows"] and handle["txn"] not in self.target.staged:
            raise self.refusal(f"The staged rows of {_short(handle['txn'])} are gone.")
        if missing := self._lacking(handle, shown):
            raise self.refusal(f"{sorted(missing)} are not there to be taken out.")
        if not self._fits(handle):
            raise self.refusal(f"The target has a column '{self.target.column}' by now.")

    def _publish(self, handle: Handle, last: tuple[int, str] | None, entry: Entry) -> Outcome | None:
        if self.target.last.get(handle["app_id"]) == last:
            self._watch("publish", self.name, entry.name, entry.decision)
        made = self.target.publish(handle["app_id"], last, entry, entry.decision)
        return self._outcome(handle, already=False) if made else None

    def _fence_off(self, handle: Handle, decision: int) -> Outcome | None:
        while True:
            last = self.step("looks who was last", lambda: self._snapshot(handle))
            if last == (decision, handle["txn"]):
                return self._outcome(handle, already=True)
            if last and last[0] >= decision:
                return None
            if self.step(f"fences decision {decision}", partial(self._fence, handle, last, decision), EITHER):
                return None

    def _fence(self, handle: Handle, last: tuple[int, str] | None, decision: int) -> bool:
        return self.target.publish(handle["app_id"], last, None, decision)


class LakeSink(TableSink, TakesBack):
    """One that takes back what it has published."""

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        return {**super().retraction(txn, olds, restored), "column": ""}


class DaysSink(LakeSink, OverwritingRows):
    """As a Delta sink that replaces whole partitions: it takes out what is there, whoever wrote it."""

    def _lacking(self, handle: Handle, shown: Sequence[str]) -> set[str]:
        return set()  # what it replaces may have been taken out by others

    def list_overwritten(self, handle: Handle) -> list[Transaction]:
        names = self.step("lists what it would take out", self._shown, (BEFORE,))
        return [txn for name in names if (txn := Transaction.parse(name))]


class FolderSink(Proven, TakesBack):
    """As the file sink: files get their final names first, then the manifest is put there, never over another."""

    target: targets.Folder

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        return {**super().stage(txn, rows), "manifest": f"m{txn.epoch}"}

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        retracts = [{"txn": old["txn"], "manifest": old["manifest"]} for old in olds]
        return {**super().retraction(txn, olds, restored), "manifest": f"m{txn.epoch}", "retracts": retracts}

    def _commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None) -> Outcome:
        if self._is_published(handle):
            self.step("removes what is replaced", lambda: self._remove_replaced(handle))
            return self._outcome(handle, already=True)
        try:
            if handle["rows"]:
                self.step("moves the files", lambda: self._move(handle, decision, last), EITHER)
            made = self.step("puts the manifest", lambda: self._put_manifest(handle, decision, last), EITHER)
        except (CannotPublish, ConnectionError):
            if self._is_published(handle):
                self.step("removes what is replaced", lambda: self._remove_replaced(handle))
                return self._outcome(handle, already=True)
            raise
        self.step("removes what is replaced", lambda: self._remove_replaced(handle))
        return made

    def _require_fit(self, handle: Handle, decision: int, last: Publication | None) -> None:
        there = self.target.manifests.get(handle["manifest"])
        if there == handle["txn"]:
            return
        if there is not None:
            raise ActionNeeded(f"The name {handle['manifest']} is taken.")
        self._require(last)
        if handle["rows"] and handle["txn"] not in self.target.staged:
            raise StageAgain(f"A staged file of {_short(handle['txn'])} no longer exists.")

    def _is_published(self, handle: Handle) -> bool:
        found = self.step("looks for the manifest", lambda: self.target.manifests.get(handle["manifest"]))
        if found == "":
            raise Fenced(f"sink '{self.name}': given up.", "Its manifest says so.", self.exit)
        return bool(found == handle["txn"])

    def _move(self, handle: Handle, decision: int, last: Publication | None) -> None:
        self._unless_refusing()
        self._require(last)
        name = handle["txn"]
        if name in self.target.moved:
            return
        if name not in self.target.staged:
            raise self.refusal(f"A staged file of {_short(name)} is gone.")
        if self.target.staged[name] is MOVED:
            raise self.refusal(f"A file of {_short(name)} is neither staged nor at its final name.")
        self._watch("publish", self.name, name, decision)
        self.target.moved[name], self.target.staged[name] = self.target.staged[name], MOVED

    def _put_manifest(self, handle: Handle, decision: int, last: Publication | None) -> Outcome:
        self._require(last)
        if handle["rows"] and handle["txn"] not in self.target.staged:
            raise ConnectionError(f"The folder of {_short(handle['txn'])} is gone: this comes too late.")
        there = self.target.manifests.setdefault(handle["manifest"], handle["txn"])
        if there != handle["txn"]:
            raise self.refusal(f"Another manifest has the name {handle['manifest']}.")
        made = handle["txn"] not in self.target.published
        if made:
            self.target.log += (Entry(handle["txn"], decision, _instead(handle)),)
            self.target.versions += ((handle["txn"], decision),)
            self.target.identity = self.target.identity or f"made by {handle['txn']}"
        return self._outcome(handle, already=not made)

    def _remove_replaced(self, handle: Handle) -> None:
        for old in replaced_handles(handle):
            self.target.moved.pop(old["txn"], None)
            self.target.manifests.pop(old["manifest"], None)

    def release(self, txn: Transaction) -> None:
        self.step(f"clears away {_short(txn.name)}", lambda: self.target.staged.pop(txn.name, None), EITHER)

    def _discardable(self, name: str) -> bool:
        return name in self.target.staged

    def _fence_off(self, handle: Handle, decision: int) -> Outcome | None:
        name = handle["txn"]
        if self.step("claims the manifest", lambda: self._claim(handle), EITHER) == name:
            return self._outcome(handle, already=True)
        self.step("takes the staged files away", lambda: self._take_away(name), EITHER)
        self.step("takes back what was moved", lambda: self._take_back(name), EITHER)
        return None

    def _take_away(self, name: str) -> None:
        if self.target.staged.get(name, MOVED) is not MOVED:
            self.target.kept[name] = self.target.staged[name]
            self.target.staged[name] = MOVED

    def _take_back(self, name: str) -> None:
        if name in self.target.moved:
            self.target.kept[name] = self.target.moved.pop(name)

    def _claim(self, handle: Handle) -> str:
        return self.target.manifests.setdefault(handle["manifest"], "")


class StateSinkInMemory(Proven, TakesBack):
    """As the keyed sink: the handle that the state table holds is the publication; it lists the runs that count."""

    target: targets.Runs

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        changes, before = rows
        handle = super().stage(txn, changes)
        return {**handle, "runs": [*(before["runs"] if before else []), txn.name]}

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        forget = [old["txn"] for old in olds if old["txn"]]
        return {"txn": None, "runs": list(restored["runs"]) if restored else [], "forget": forget, "rows": 0}

    def _commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None) -> Outcome:
        name = handle["txn"]
        if name is None:
            for old in handle["forget"]:
                self.step(f"forgets {_short(old)}", lambda old=old: self.target.staged.pop(old, None))
            return Outcome(detail={"rows": 0})
        self.step("looks for the run", lambda: self._check_there(name))
        return self.step("marks the run", lambda: self._mark(handle, decision, last), EITHER)

    def _require_fit(self, handle: Handle, decision: int, last: Publication | None) -> None:
        if handle["txn"] in self.target.done:
            return
        self._require(last)
        if handle["txn"] and handle["txn"] not in self.target.staged:
            raise StageAgain("The state that was staged no longer exists.")

    def _check_there(self, name: str) -> None:
        self._unless_refusing()
        self._unless_fenced(name)
        if name not in self.target.staged:
            raise self.refusal("The state that was staged is gone.")

    def _unless_fenced(self, name: str) -> None:
        if name in self.target.fenced:
            raise Fenced(f"sink '{self.name}': given up.", "It was fenced.", self.exit)

    def _mark(self, handle: Handle, decision: int, last: Publication | None) -> Outcome:
        name = handle["txn"]
        self._unless_fenced(name)
        if name not in self.target.done:
            self._require(last)
            self._watch("publish", self.name, name, decision)
            self.target.done[name] = decision
            self.target.versions += ((name, decision),)
            self.target.identity = self.target.identity or f"made by {name}"
        return self._outcome(handle, already=False)

    def _discardable(self, name: str) -> bool:
        return name in self.target.staged and name not in self.target.done

    def _fence_off(self, handle: Handle, decision: int) -> Outcome | None:
        if handle["txn"] is None:
            return None
        self.step("fences the run", lambda: self.target.fenced.setdefault(handle["txn"], decision), EITHER)
        return self.step("looks for the mark", lambda: self._marked(handle))

    def _marked(self, handle: Handle) -> Outcome | None:
        return self._outcome(handle, already=True) if handle["txn"] in self.target.done else None


class TopicSink(MemorySink, TransactionalIdPool):
    """As the Kafka sink: rows are spooled; a lost transaction is written again, and recorded before it ends."""

    target: targets.Topic

    def __init__(
        self, name: str, target: Any, steps: Steps, watch: Watch, steady: bool, late: bool, pool: bool
    ) -> None:
        super().__init__(name, target, steps, watch, steady)
        self._late, self._pool = late, pool

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        handle = super().stage(txn, rows)
        tx = None if self._late else self._open(txn.name, tuple(rows), txn.slot if self._pool else None)
        return {**handle, "tx": tx}

    def _open(self, name: str, rows: tuple[int, ...], slot: int | None = None) -> str:
        made = f"{name}#{self._steps.fresh()}"
        pooled = f"pool-{slot}" if slot is not None else None
        what = f"writes into an open transaction{f' of slot {slot}' if pooled else ''}"
        self.step(what, lambda: self._begin(made, name, rows, pooled), EITHER)
        return made

    def _begin(self, made: str, name: str, rows: tuple[int, ...], pooled: str | None) -> None:
        self._take_from(self.target.slots.get(pooled or ""), name)
        self.target.open(made, name, rows, pooled)

    def _take_from(self, id: str | None, by: str | None = None) -> None:
        """Other hands take a pooled id, or end what is open under it; its own process may do that."""
        tx = self.target.txs.get(id or "")
        if tx and tx.stands == "open" and not tx.name.endswith(self._steps.actor):
            self._watch("take from", self.name, tx.name, None, id, by)

    def _commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None) -> Outcome:
        for _ in range(TRIES):
            fate = self._settle(handle, decision)
            if fate == "committed":
                return Outcome(detail={"rows": handle["rows"]})
            if fate == "doubt":
                raise InDoubt(f"sink '{self.name}' is in doubt.", "No marker is left.", self.doubt)
            handle = self._write_again(handle, receipts)
        raise OutcomeUnknown(f"sink '{self.name}': lost {TRIES} times.", todo="onceonly recover")

    def _require_fit(self, handle: Handle, decision: int, last: Publication | None) -> None:
        """An open transaction, or the spool from which it is written again."""
        tx = self.target.txs.get(handle["tx"] or "")
        is_there = handle["txn"] in self.target.staged or handle["txn"] in self.target.published
        if not is_there and (tx is None or tx.stands != "open"):
            raise StageAgain(f"Spooled rows of {_short(handle['txn'])} no longer exist.")

    @property
    def doubt(self) -> str:
        return f"onceonly resolve PIPELINE EPOCH --committed {self.name} --reason … (or --aborted)"

    def _settle(self, handle: Handle, decision: int) -> str:
        if handle["tx"] is None:
            return "lost"
        if "word" in handle:
            return "committed" if handle["word"] else "lost"
        fate = self._fate(handle["tx"])
        if fate != "open":
            return fate
        ended = self.step("ends the transaction", lambda: self._end(handle, decision), EITHER)
        return "committed" if ended else self._fate(handle["tx"])

    def _fate(self, id: str) -> str:
        return self.step("looks for the marker", lambda: self._shown(id))

    def _shown(self, id: str) -> str:
        stands = self.target.txs[id].stands if id in self.target.txs else "aborted"
        if id in self.target.cut:
            return "doubt"
        return {"aborted": "lost"}.get(stands, stands)

    def _end(self, handle: Handle, decision: int) -> bool:
        self._unless_refusing()
        if self.target.txs[handle["tx"]].stands != "open":
            return False
        self._watch("publish", self.name, handle["txn"], decision, handle["tx"])
        self.target.end(handle["tx"], "committed")
        self.target.log += (Entry(handle["txn"], decision),)
        return True

    def _write_again(self, handle: Handle, receipts: Receipts) -> Handle:
        rows = self.step("reads the spool", lambda: self._spooled(handle["txn"]))
        tx = self._open(handle["txn"], rows)
        new = {name: value for name, value in handle.items() if name != "word"} | {"tx": tx}
        try:
            recorded = receipts.replace(handle, new)
        except BaseException:
            self._fence([tx])
            raise
        if dict(recorded) != new:
            self._fence([tx])
        return recorded

    def _spooled(self, name: str) -> tuple[int, ...]:
        self._unless_refusing()
        if name not in self.target.staged:
            raise self.refusal("Spooled rows are gone.")
        return self.target.staged[name]

    def resolve_handle(self, handle: Handle, committed: bool) -> Handle:
        return {**handle, "word": committed} if self._fate(handle["tx"]) == "doubt" else handle

    # ---- what is open

    def _left(self) -> set[str]:
        """What is open in a pool does not say whose it is."""
        txs = self.target.txs
        return set(self.target.staged) | {tx.name for id, tx in txs.items() if id in self.target.of(tx.name)}

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        self.revoke(txn)
        self.step(f"deletes the spool of {_short(txn.name)}", lambda: self._delete(txn.name), EITHER)

    def release(self, txn: Transaction) -> None:
        self.revoke(txn)
        self.step(f"clears away {_short(txn.name)}", lambda: self.target.staged.pop(txn.name, None), EITHER)

    def revoke(self, txn: Transaction) -> None:
        open_ = self.step(f"lists what is open of {_short(txn.name)}", lambda: self.target.of(txn.name), (BEFORE,))
        self._fence(open_)

    def _fence(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.step("fences a transaction", lambda id=id: self._abort(id), EITHER)

    def _abort(self, id: str) -> None:
        self.target.end(id, "aborted")

    def _fence_off(self, handle: Handle, decision: int) -> Outcome | None:
        if handle["tx"] is None:
            return None
        self._fence([handle["tx"]])
        fate = self._fate(handle["tx"])
        return Outcome(already=True, detail={"rows": handle["rows"]}) if fate == "committed" else None

    # ---- the pool

    def list_pooled(self, prefix: str) -> list[PooledTransaction]:
        if not self._pool:
            return []
        found = self.step("lists what is open in the pool", lambda: self._open_in_pool())
        _, pipeline, sink = prefix.split("-")
        return [PooledTransaction(pipeline, sink, slot, id, (0, 0)) for slot, id in found]

    def _open_in_pool(self) -> list[tuple[int, str]]:
        txs = self.target.txs
        return [(int(slot[5:]), id) for slot, id in sorted(self.target.slots.items()) if txs[id].stands == "open"]

    def is_needed(self, handle: Handle, txn: PooledTransaction) -> bool:
        return handle["tx"] is None or handle["tx"] == txn.id

    def discard_pooled(self, txns: Sequence[PooledTransaction]) -> None:
        for txn in txns:
            self.step("ends what is idle in the pool", lambda id=txn.id: self._end_idle(id), EITHER)

    def _end_idle(self, id: str) -> None:
        self._take_from(id)
        self.target.end(id, "aborted")
