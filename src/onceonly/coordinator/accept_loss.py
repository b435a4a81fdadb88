"""Manual resolution where a target lost something permanently: a person accepts that checkpoints are missing there.

Each missing checkpoint gets a row, and the last row says from which state of the target the sink continues. Until that
one the target counts as gone back. So what dies half way is still refused, and it is accepted again; where two
persons accept it at once, each checkpoint is recorded once.

If a decision waits for that sink, the missing checkpoints are recorded, and the last row is refused until it is given
up: another process, which still sees the target as it was, could publish it. So is one that was to bring back rows
which are there again. What is missing is recorded before that,
because giving up writes its evidence into the target, which then shows a later decision.

Every row is written from the very view that was read after the look at the target. If another process has recorded
anything in between, the target is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.sink import Answer, Publication
from onceonly.coordinator import target_history
from onceonly.coordinator.lost_rows import count_lost_rows
from onceonly.coordinator.manual import Action, Seen, pipeline_of
from onceonly.coordinator.messages import how_to_settle, name_checkpoints
from onceonly.coordinator.reprocess import comes_in_place_of_others
from onceonly.coordinator.target_history import Comparison, publications_of
from onceonly.errors import InvalidPipeline
from onceonly.json_values.text import canonical
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.row_format import publication_json
from onceonly.statetable.table import StateTable, Transitions
from onceonly.statetable.view import View

GiveUp = Callable[[View, Checkpoint], None]  # an open decision, as that view shows it
EVIDENCE = (
    Event.PUBLISHED,
    Event.REPLACED,
    Event.IN_DOUBT,
    Event.COMMITTED,
)  # the target's evidence, not a person's word


@dataclass(frozen=True)
class Loss:
    """What a person is asked to accept.

    Args:
        missing: the checkpoints that the target lacks and that are not recorded as missing, in order of decision.
        found_again: the checkpoints that are recorded as missing, and that the target shows again.
        returned: checkpoints whose rows a rewind has retracted, and which the target shows again. Their records are
            read again, so the rows would be there twice.
        baseline: the target as it is, as the sink's last publication.
    """

    comparison: Comparison
    missing: tuple[Checkpoint, ...]
    found_again: tuple[Checkpoint, ...]
    returned: tuple[Checkpoint, ...]
    baseline: Publication

    @property
    def rows(self) -> int | None:
        """The number of rows that are missing; None: not counted."""
        return count_lost_rows(self.missing, self.comparison.sink)


@dataclass(frozen=True)
class Acceptance:
    """A person's statement that what a target lacks is lost.

    Args:
        removed: rows that a rewind had retracted, and that are there again, were removed by hand.
        seen: what the person was shown of the pipeline.
        settles: open decisions of that sink are published or given up with it.
    """

    who: str
    reason: str
    removed: bool = False
    seen: Seen | None = None
    settles: bool = False

    @property
    def body(self) -> dict[str, Any]:
        """The body of each row that records a part of it."""
        body: dict[str, Any] = {"who": self.who, "reason": self.reason}
        if self.seen:
            body["seen"] = self.seen.seq
        return body

    def action(self, sink: str) -> Action:
        """Return the manual action that is complete with the row ACCEPTED of that sink."""
        return Action(Event.ACCEPTED, self.seen, pipeline_of, self.body, {"sink": sink})

    def has_written(self, sink: str, row: Row) -> bool:
        """Whether an earlier step of this very acceptance wrote the row."""
        if self.settles and row.event in EVIDENCE:
            return "who" not in row.body
        if row.sink != sink:
            return False
        if self.settles and row.event is Event.GIVEN_UP:
            return (row.body["who"], row.body["reason"]) == (self.who, self.reason)
        if row.event not in (Event.MISSING, Event.FOUND):
            return False
        return all(row.body.get(key) == value for key, value in self.body.items())


def find(state_table: StateTable, parts: Parts, name: str, sink: str) -> Loss:
    """Find what a sink's target lacks.

    Raises:
        InvalidPipeline: nothing that can be accepted: the target has all of it.
        NotCommitted: the target does not answer.
    """
    loss = find_loss(state_table, parts, name, sink)
    if loss is None:
        raise _nothing_lost_error(name, sink)
    return loss


def accept(
    transitions: Transitions,
    parts: Parts,
    name: str,
    sink: str,
    acceptance: Acceptance,
    give_up: GiveUp | None = None,
) -> View:
    """Record that the target lacks these checkpoints, and continue from the target as it is.

    Args:
        give_up: gives up an open decision that waits for that sink; None: it is refused.
    Raises:
        InvalidPipeline: as `find`; the pipeline has changed since the person looked; or a decision is not settled: what
            is missing is recorded.
    """
    action, is_own = acceptance.action(sink), partial(acceptance.has_written, sink)
    view = transitions.state_table.view(name)
    if action.record(view):
        return view
    action.require_unchanged(view, is_own)
    first = find(transitions.state_table, parts, name, sink)
    loss: Loss | None = first
    while loss:
        action.require_unchanged(loss.comparison.view, is_own)
        if loss.returned and not acceptance.removed:
            raise _returned_rows_error(loss)
        view_after = _record(transitions, loss, acceptance, give_up)  # raises InvalidPipeline before the last row
        if view_after:
            return view_after
        loss = find_loss(transitions.state_table, parts, name, sink)
    view = transitions.state_table.view(name)
    if publications_of(view, sink) == publications_of(first.comparison.view, sink):
        raise _nothing_lost_error(name, sink)  # it was brought back meanwhile
    return view  # another person has said the same meanwhile


def find_loss(state_table: StateTable, parts: Parts, name: str, sink: str) -> Loss | None:
    """Find what the target lacks, by two looks at it that agree; None: nothing.

    The baseline is read between the looks, so a target that changes meanwhile is looked at again.
    """
    view = state_table.view(name)
    for pipeline in _definitions(view, name, sink):
        comparison = target_history.compare(state_table, parts, pipeline, sink, view)
        while comparison and comparison.went_back:
            baseline = target_history.read_baseline(comparison)
            second = target_history.compare(state_table, parts, pipeline, sink, comparison.view)
            if second and second.history == comparison.history and second.last == comparison.last:
                missing, reappeared = tuple(second.list_missing()), tuple(second.list_reappeared())
                return Loss(second, missing, reappeared, tuple(_list_returned(second, missing)), baseline)
            comparison = second
    return None


def _definitions(view: View, name: str, sink: str) -> Iterator[Pipeline]:
    """Yield the definitions with that sink, one for each target that it has had, the newest first."""
    checkpoints = [view.latest]
    for publication in publications_of(view, sink):
        checkpoints.append(view.checkpoint(publication.epoch))
    definitions: dict[str, Definition] = {}
    for checkpoint in checkpoints:
        if checkpoint and sink in checkpoint.sinks:
            definitions[canonical(checkpoint.definition.json)] = checkpoint.definition
    if not definitions:
        raise _acceptance_error(
            name, sink, "It has no such sink.", f"See its sinks: onceonly status {name}.", code="no-such-sink"
        )
    for definition in definitions.values():
        yield definition.pipeline


def _list_returned(comparison: Comparison, missing: tuple[Checkpoint, ...]) -> Iterator[Checkpoint]:
    """Yield the checkpoints that the target shows although a rewind, which is missing there, has taken them out."""
    for rewind in missing:
        epoch = rewind.epoch - 1
        while rewind.rewinds_to is not None and epoch > rewind.rewinds_to:
            candidate = comparison.view.require(epoch)
            decision = candidate.decision or 0
            if candidate.rewinds_to is not None:
                epoch = candidate.rewinds_to  # an earlier rewind has retracted what is in between
                continue
            was_retracted = candidate.origin > rewind.rewinds_to
            was_shown = candidate.is_shown_by(comparison.sink) and decision <= comparison.last_shown_decision
            if was_retracted and was_shown:
                yield candidate
            epoch -= 1


# ---- recording


def _record(transitions: Transitions, loss: Loss, acceptance: Acceptance, give_up: GiveUp | None) -> View | None:
    """Record the loss, from the view in which it was found; None: something else has been recorded meanwhile.

    The row ACCEPTED comes last: until it is there, the target counts as gone back. An open decision is given up before
    it, which writes evidence into the target, so what the target lacks is looked for again.
    """
    view: View | None = loss.comparison.view
    sink = loss.comparison.sink
    for event, checkpoint, body in _rows(loss, acceptance):
        if view and event is Event.ACCEPTED:
            first = _find_first_unfit(view, loss)
            if first and give_up and sink in first.waiting:
                give_up(view, first)
                return None
            if first:
                raise _open_decision_error(view, first, sink)
        if view:
            view = _write(transitions, view, event, checkpoint, sink, body)
    return view


def _find_first_unfit(view: View, loss: Loss) -> Checkpoint | None:
    """Find the first open decision that may not be published to the target as it is; None: there is none.

    To one that went back that is any. To one that is there again, a decision that comes in place of other rows than
    those which it shows now.
    """
    sink = loss.comparison.sink
    for checkpoint in find_open(view, sink):
        if loss.comparison.history.answer is not Answer.SAME or comes_in_place_of_others(view, checkpoint, sink):
            return checkpoint
    return None


def find_open(view: View, sink: str) -> Iterator[Checkpoint]:
    """Yield the decisions of that sink that are not settled, in their order: another process could publish them."""
    for checkpoint in sorted(view.open, key=lambda checkpoint: checkpoint.decision or 0):
        if checkpoint.state is State.COMMITTING and sink in checkpoint.handles:
            yield checkpoint


def _rows(loss: Loss, acceptance: Acceptance) -> Iterator[tuple[Event, Checkpoint, Mapping[str, Any]]]:
    """Yield event, checkpoint and body of each row to write, in order."""
    sink = loss.comparison.sink
    body = acceptance.body
    for checkpoint in loss.found_again:
        yield Event.FOUND, checkpoint, body
    for checkpoint in loss.missing:
        yield Event.MISSING, checkpoint, {**body, "rows": checkpoint.handles[sink].get("rows")}
    yield Event.ACCEPTED, _last_published(loss), {**body, "baseline": publication_json(loss.baseline)}


def _last_published(loss: Loss) -> Checkpoint:
    """Return the settled checkpoint whose row says from where the sink continues: the last one published there."""
    if loss.missing:
        return loss.missing[-1]
    return loss.comparison.view.published_to(loss.comparison.sink, 0)[-1]


def _write(
    transitions: Transitions, view: View, event: Event, checkpoint: Checkpoint, sink: str, body: Mapping[str, Any]
) -> View | None:
    """Write one row, and return the view after it; None: another process was first."""
    is_first = True

    def decide(now: View) -> Row | None:
        nonlocal is_first
        is_first = now.head.seq == view.head.seq
        if not is_first:
            return None
        columns = {"sink": sink, "decision": checkpoint.decision, "body": body}
        return now.row(checkpoint.epoch, event, checkpoint.attempt, **columns)

    after = transitions.change(view.pipeline, decide, view)
    if is_first:
        return after
    return None


# ---- refusals


def _open_decision_error(view: View, checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    """Return the refusal of the last row while a decision of that sink is not settled."""
    name, epoch = view.pipeline, checkpoint.epoch
    todo = how_to_settle(checkpoint)
    if sink in checkpoint.waiting:
        todo = f"Give it up there: onceonly resolve {name} {epoch} --give-up {sink} --reason …"
    return InvalidPipeline(
        f"{name}: sink '{sink}' does not continue yet. What is missing there is recorded.",
        f"Epoch {epoch} is decided and not settled.",
        f"{todo}. Then repeat this command. To write what is missing again, with that epoch: onceonly repair "
        f"FILE.py:NAME {sink} --reason …",
        code="decision-open",
    )


def _nothing_lost_error(name: str, sink: str) -> InvalidPipeline:
    why = "Its target has what was published to it, or nothing was."
    return _acceptance_error(name, sink, why, f"See what is recorded: onceonly status {name}.", code="nothing-lost")


def _returned_rows_error(loss: Loss) -> InvalidPipeline:
    sink, name = loss.comparison.sink, loss.comparison.view.pipeline
    return _acceptance_error(
        name,
        sink,
        f"It shows the rows of {name_checkpoints(loss.returned)} again, which a rewind had taken out: their records "
        "are read again, so the rows would be there twice.",
        f"Remove these rows from the target by hand, then: onceonly accept-loss {name} {sink} --removed --reason …",
        code="rows-returned",
    )


def _acceptance_error(name: str, sink: str, why: str, todo: str, code: str) -> InvalidPipeline:
    what = f"{name}: no loss can be accepted for sink '{sink}'."
    return InvalidPipeline(what, why, f"{todo} Nothing was changed.", code=code)
