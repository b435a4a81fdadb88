"""What must never happen at any step (docs/design.md, "Invariants"), worked out without the code that is tried."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from explore.targets import Days
from onceonly.checkpoint.model import Checkpoint, Event, Row, State, Transaction

Checkpoints = Mapping[int, Checkpoint]
MOST_UNFIT = 3  # attempts in a row that rehearsals end, as the docs say


def of_row(
    targets: Mapping[str, Any], known: Checkpoints, row: Row, before: Checkpoint | None, after: Checkpoint
) -> Iterator[str]:
    """What a row that is about to be written breaks."""
    if before and (before.ranges, before.interval) != (after.ranges, after.interval):
        yield f"7: what epoch {row.epoch} pinned was moved"
    yield from _of_plan(known, row, before, after)
    match row.event:
        case Event.STAGED:
            yield from _staged(before, after)
        case Event.VERDICT:
            yield from _verdict(row, before, after)
        case Event.APPROVED if after.attempt not in after.failed_attempts:
            yield f"9: epoch {row.epoch} is approved, and its gate has not failed it"
        case Event.ABORTING if after.has_been_held and "who" not in row.body:
            yield f"9: epoch {row.epoch} is aborted, and a person was to decide"
        case Event.COMMITTING | Event.REWOUND:
            yield from _decided(known, after)
        case Event.REPLACED:
            yield from _replaced(targets[row.sink or ""], row, before)
        case Event.PUBLISHED:
            yield from _recorded(targets[row.sink or ""], row, before, after)
        case Event.GIVEN_UP:
            yield from _given_up(known, row, before, after)


def _of_plan(known: Checkpoints, row: Row, before: Checkpoint | None, after: Checkpoint) -> Iterator[str]:
    if before is None:
        yield from _overlapping(known, after)
    elif row.event is Event.PLANNED and before.state is not State.ABORTED and before.owner != row.owner:
        yield f"epoch {row.epoch} was taken over from {before.owner}, and was not aborted"


def of_actor(row: Row, before: Checkpoint | None, owner: str | None, since: int | None) -> Iterator[str]:
    """What is not for who writes it: a process acts for an owner, and was perhaps asked to at a certain row."""
    if before is None or row.event not in (Event.CLAIMED, Event.ABORTING):
        return
    if owner is not None and before.owner != owner:
        yield f"epoch {row.epoch} is {before.owner}'s, and '{row.event.value}' was recorded for {owner}"
    if since is not None and before.last_seq != since:
        yield f"epoch {row.epoch} was claimed by who waited in a queue while others were at work"


def still_there(targets: Mapping[str, Any], checkpoint: Checkpoint) -> frozenset[str]:
    """Names of what is staged for any attempt of the checkpoint, and not kept."""
    left = {name for target in targets.values() for name in target.left()}
    attempts = [attempt for attempt in checkpoint.claims if not checkpoint.keeps_rows_of(attempt)]
    mine = {checkpoint.transaction(sink, n).name for n in attempts for sink in checkpoint.sinks_of(n)}
    return frozenset(left & mine)


def _overlapping(known: Checkpoints, new: Checkpoint) -> Iterator[str]:
    if new.request and any(_is_same_request(new, other) for other in known.values()):
        yield f"'{new.request}' replaces a second time"
    if new.replaces is not None or new.interval is None:
        return
    mine = new.ranges[0].partitions[0]
    for other in known.values():
        theirs = other.ranges[0].partitions[0]
        if other.replaces is None and max(mine[0], theirs[0]) < min(mine[1], theirs[1]):
            yield f"7: epochs {other.epoch} and {new.epoch} share offsets"


def _is_same_request(new: Checkpoint, other: Checkpoint) -> bool:
    same_records = other.interval == new.interval if new.interval else other.origin == new.origin
    return same_records and other.request == new.request and other.state is State.COMMITTED


def _staged(before: Checkpoint | None, after: Checkpoint) -> Iterator[str]:
    if before is None or before.live_nonce != after.claims[after.attempt].nonce:
        yield f"epoch {after.epoch} is staged by a claim that has ended"
    if set(after.handles) != set(after.sinks):
        yield f"epoch {after.epoch} is staged for {sorted(after.handles)} and its sinks are {sorted(after.sinks)}"
    if after.only is not None and set(after.handles) != set(after.only):
        yield f"epoch {after.epoch} is staged for {sorted(after.handles)} and was asked for {sorted(after.only)}"
    for sink, handle in after.handles.items():
        if handle["txn"] != after.transaction(sink).name:
            yield f"epoch {after.epoch}: the handle of {sink} is not of the current attempt"


def _verdict(row: Row, before: Checkpoint | None, after: Checkpoint) -> Iterator[str]:
    if before and before.verdict:
        yield f"9: a second verdict on epoch {row.epoch}"
    for sink, seen in row.body["sinks"].items():
        if after.handles[sink]["txn"] not in seen["checks"][0]["observed"]:
            yield f"9: the verdict on epoch {row.epoch} is about other rows"


def _decided(known: Checkpoints, after: Checkpoint) -> Iterator[str]:
    if any(other.decision == after.decision for other in known.values()):
        yield f"decision {after.decision} was taken twice"
    passed = after.verdict is not None and after.verdict["outcome"] != "failed"
    if after.gate is not None and not passed and after.approved is None and after.rewinds_to is None:
        yield f"9: epoch {after.epoch} was decided without a verdict that lets it through"


def _replaced(target: Any, row: Row, before: Checkpoint | None) -> Iterator[str]:
    old = before.handles[row.sink or ""] if before else {}
    tx = target.txs.get(old.get("tx")) if hasattr(target, "txs") else None
    if tx is not None and tx.stands != "aborted" and "word" not in row.body["handle"] and "word" not in old:
        yield f"6: a handle was replaced whose transaction is {tx.stands}"


def _recorded(target: Any, row: Row, before: Checkpoint | None, after: Checkpoint) -> Iterator[str]:
    if before and row.sink not in before.waiting:
        yield f"'published' was recorded of {row.sink}, which has an outcome already"
    name = after.handles[row.sink or ""]["txn"]
    word = after.handles[row.sink or ""].get("word")
    shown = target.published | target.removed | target.ever | set(getattr(target, "done", ()))
    if name is not None and not word and name not in shown:
        yield f"'published' was recorded of {row.sink} and it was not"


def _given_up(known: Checkpoints, row: Row, before: Checkpoint | None, after: Checkpoint) -> Iterator[str]:
    if before and row.sink not in before.waiting:
        yield f"{row.sink} was given up, and has an outcome already"
    for other in known.values():
        if other.decision and other.decision < (after.decision or 0) and row.sink in other.waiting:
            yield f"3: epoch {row.epoch} was given up in {row.sink} before decision {other.decision}"


def of_recovery(
    known: Checkpoints, row: Row, before: Checkpoint | None, alive: Callable[[Checkpoint], bool] | None
) -> Iterator[str]:
    """Recovery decides and aborts nothing of an owner that it knows to be alive, unless a person has approved it."""
    if before is None or alive is None or row.event not in (Event.COMMITTING, Event.ABORTING, Event.VERDICT):
        return
    if alive(before) and before.approved is None:
        yield f"'{row.event.value}' was recorded of epoch {row.epoch}, whose owner {before.owner} is alive"


def of_person(rows: Sequence[Row], row: Row) -> Iterator[str]:
    """A manual action lands on what the person was shown: nothing of it has changed since."""
    if "seen" not in row.body:
        return
    later = [each for each in rows if each.seq > row.body["seen"] and each.event is not Event.RENEWED]
    match row.event:
        case Event.APPROVED | Event.ABORTING:
            changes = [each for each in later if each.epoch == row.epoch]
        case Event.GIVEN_UP | Event.REPLACED:
            outcomes = (Event.PUBLISHED, Event.REPLACED, Event.IN_DOUBT)
            changes = [each for each in later if each.epoch == row.epoch and each.event not in outcomes]
        case Event.REWOUND | Event.EMPTY:
            changes = later
        case Event.MISSING | Event.FOUND | Event.ACCEPTED:
            mine = {"who": row.body["who"], "reason": row.body["reason"], "seen": row.body["seen"]}
            changes = [each for each in later if any(each.body.get(key) != value for key, value in mine.items())]
            changes = [each for each in changes if not _is_settling(each, mine)]
        case _:
            changes = []
    if changes:
        yield f"'{row.event.value}' of epoch {row.epoch} names row {row.body['seen']}, and {changes[-1].seq} changed it"


def _is_settling(row: Row, mine: Mapping[str, Any]) -> bool:
    """Whether it says how an open decision ended: by what its target shows, or as the same person gave it up."""
    if row.event is Event.GIVEN_UP:
        return (row.body["who"], row.body["reason"]) == (mine["who"], mine["reason"])
    outcomes = (Event.PUBLISHED, Event.REPLACED, Event.IN_DOUBT, Event.COMMITTED)
    return row.event in outcomes and "who" not in row.body


def of_giving_up(row: Row, gone: frozenset[str]) -> Iterator[str]:
    """What could not be fenced is given up only where a person has said that it is gone for ever."""
    if row.event is Event.GIVEN_UP and "not_fenced" in row.body and row.sink not in gone:
        yield f"{row.sink} is given up without a fence, and nobody has said that it is gone"


def of_attempt(rows: Sequence[Row], row: Row, after: Checkpoint) -> Iterator[str]:
    """An approval belongs to the attempt that it named, and lets no other one through."""
    if row.event is not Event.COMMITTING or after.approved is None:
        return
    approvals = [each for each in rows if each.epoch == row.epoch and each.event is Event.APPROVED]
    if not approvals or approvals[-1].attempt != row.attempt:
        yield f"9: attempt {row.attempt} of epoch {row.epoch} was decided by the approval of another attempt"


def of_decision(targets: Mapping[str, Any], row: Row, after: Checkpoint, last: Mapping[str, int]) -> Iterator[str]:
    """What is decided has passed its rehearsal for this very decision, with this very handle.

    Args:
        last: by sink, the decision that its target was last recorded to show.
    """
    if row.event not in (Event.COMMITTING, Event.REWOUND):
        return
    if row.event is Event.COMMITTING and row.attempt != after.attempt:
        yield f"attempt {row.attempt} of epoch {row.epoch} is decided, and attempt {after.attempt} is current"
    for sink, handle in after.handles.items():
        if (handle["txn"] or "", row.decision, last.get(sink, 0)) not in targets[sink].passed:
            yield f"decision {row.decision} is taken, and {sink} has not rehearsed it"


def of_staging_again(rows: Sequence[Row], row: Row) -> Iterator[str]:
    """Rehearsals end a bounded number of attempts of a checkpoint, then a person has to look."""
    if row.event is not Event.ABORTING or "unfit" not in row.body:
        return
    aborts = [each for each in rows if each.epoch == row.epoch and each.event is Event.ABORTING]
    if len(aborts) >= MOST_UNFIT and all("unfit" in abort.body for abort in aborts[-MOST_UNFIT:]):
        yield f"epoch {row.epoch} is staged again after {MOST_UNFIT} attempts that could not be published"


def of_loss(rows: Sequence[Row], sink: str) -> Iterator[str]:
    """Nothing is published to a target while a loss there is recorded only in part."""
    steps = [
        row.event for row in rows if row.sink == sink and row.event in (Event.MISSING, Event.FOUND, Event.ACCEPTED)
    ]
    if steps and steps[-1] is not Event.ACCEPTED:
        yield f"{sink} is published to while its loss is recorded only in part"


def lacking(known: Iterable[Checkpoint], target: Any, sink: str) -> list[int]:
    """The epochs that are recorded as published to the target, and that it does not have."""
    there = target.published | target.removed | set(getattr(target, "done", ())) | {None}
    return [
        checkpoint.epoch
        for checkpoint in known
        if checkpoint.is_shown_by(sink) and checkpoint.handles[sink]["txn"] not in there
        if "word" not in checkpoint.handles[sink]
    ]


def of_effect(
    known: Checkpoints, target: Any, what: str, sink: str, name: str, decision: int | None, tx: str | None
) -> Iterator[str]:
    """What is wrong with an effect on a target that is about to happen."""
    txn = Transaction.parse(name)
    checkpoint = known.get(txn.epoch) if txn else None
    if txn is None or checkpoint is None:
        yield f"{what} of {name}, which no checkpoint knows"
    elif what == "stage":
        if name in target.staged:
            yield f"4: two processes stage as {name}"
    elif what == "publish":
        yield from _published(known, target, checkpoint, sink, name, decision, tx)
    elif what == "refuse":
        if sink in checkpoint.waiting and name in target.rehearsed:
            yield f"epoch {checkpoint.epoch} in {sink} is refused after its rehearsal, and nobody changed the target"
    elif what == "discard" and _is_owed(checkpoint, sink, name) and name not in target.published:
        yield f"1: epoch {checkpoint.epoch} in {sink} is decided, and discarded"
    elif what == "discard" and checkpoint.state is State.STAGED and checkpoint.handles.get(sink, {}).get("txn") == name:
        yield f"epoch {checkpoint.epoch} in {sink} is staged, and discarded"


def _published(
    known: Checkpoints, target: Any, checkpoint: Checkpoint, sink: str, name: str, decision: int | None, tx: str | None
) -> Iterator[str]:
    of = f"epoch {checkpoint.epoch} in {sink}"
    handle = checkpoint.handles.get(sink, {})
    if checkpoint.decision is None or checkpoint.decision != decision:
        yield f"2: {of} is published without a decision"
    if checkpoint.state in (State.ABORTING, State.ABORTED):
        yield f"1: {of} is published and was aborted"
    if handle.get("txn") != name or (tx is not None and handle.get("tx") != tx):
        yield f"5: {of} is published by a handle that the state table does not hold"
    if sink in checkpoint.given_up and "not_fenced" not in checkpoint.given_up[sink]:
        yield f"{of} is published although it was given up"
    if lost := lacking(known.values(), target, sink):
        yield f"{of} is published to a target that has lost epochs {lost}"
    if there := [
        cp.epoch for cp in known.values() if sink in cp.missing and cp.handles[sink]["txn"] in target.published
    ]:
        yield f"{of} is published to a target that shows epochs {there}, which are recorded as missing"
    if name in target.published:
        yield f"{of} is published twice"
    if isinstance(target, Days) and checkpoint.replaces is not None:
        yield from _newer_taken_out(known, target, checkpoint, of)
    waiting = [cp for cp in known.values() if cp.decision and cp.decision < (decision or 0) and sink in cp.waiting]
    if waiting and checkpoint.state is not State.COMMITTED:
        yield from _early(target, waiting, of, sink)


def _newer_taken_out(known: Checkpoints, target: Days, checkpoint: Checkpoint, of: str) -> Iterator[str]:
    """What is processed again takes out no rows of later records."""
    for entry in target.shown:
        txn = Transaction.parse(entry.name)
        other = known.get(txn.epoch) if txn else None
        if other and other.ranges[0].starts[0] > checkpoint.ranges[0].starts[0]:
            yield f"{of} processes earlier records again, and takes out the later ones of epoch {other.epoch}"


def _early(target: Any, waiting: list[Checkpoint], of: str, sink: str) -> Iterator[str]:
    shown = target.published | set(getattr(target, "moved", ())) | set(getattr(target, "done", ()))
    for earlier in waiting:
        if earlier.handles[sink]["txn"] not in shown and earlier.handles[sink]["txn"] is not None:
            yield f"3: {of} is published before decision {earlier.decision}"


def _is_owed(checkpoint: Checkpoint, sink: str, name: str) -> bool:
    """Whether it is decided, and this very transaction is what this sink still has to get."""
    decided = checkpoint.state is State.COMMITTING and sink in checkpoint.waiting
    return decided and checkpoint.handles.get(sink, {}).get("txn") == name


def of_pool(known: Checkpoints, sink: str, name: str, tx: str | None, by: str | None) -> Iterator[str]:
    """A process that is not fenced ends what is open under an id of a pool and needed; a zombie may do so."""
    txn, zombie = Transaction.parse(name), by is not None and not _is_staging(known, by)
    if txn is None or zombie:
        return
    checkpoint = known[txn.epoch]
    waits = checkpoint.state in (State.STAGED, State.COMMITTING) and sink in checkpoint.waiting
    if _is_staging(known, name) or (waits and checkpoint.handles[sink]["tx"] == tx):
        yield f"4: a transaction of epoch {checkpoint.epoch} that is needed is ended"


def _is_staging(known: Checkpoints, name: str) -> bool:
    txn = Transaction.parse(name)
    return txn is not None and known[txn.epoch].live_nonce == txn.nonce
