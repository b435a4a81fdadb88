"""What a sink lacks of what was decided for it, and the requests that bring it there again.

    missing      its target went back, and nobody has recorded it yet
    recorded     recorded as missing before (`accept_loss`)
    given up     a person has given the sink up
    open         decided, and the sink cannot publish it

`Repairer.begin` records what is to be recorded by hand, and returns one request for each of these checkpoints, oldest
first. A request is planned, staged, gated and committed like any other (`reprocess`). It names the lost checkpoint, so
it is done once, whoever asks for it, and however often; rows that are there again by then are not written.

In order: what can be published is published. What the target lacks is recorded, so what comes back later is refused.
What stays open is given up, which no process can publish any more. Only then a request is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import has_data
from onceonly.coordinator import accept_loss, target_history, upstream
from onceonly.coordinator.accept_loss import Acceptance, Loss
from onceonly.coordinator.manual import Action, Seen, Shown
from onceonly.coordinator.messages import MAX_CHECKPOINTS_NAMED, name_checkpoints
from onceonly.coordinator.plan import Planning
from onceonly.coordinator.publish import Publisher
from onceonly.coordinator.ranges import RangePlanner
from onceonly.coordinator.reprocess import Reprocess, can_replace, find_unclear, shows_lacked, unclear_error
from onceonly.coordinator.resolve import Resolver, doubt_error
from onceonly.coordinator.stage import find_state_before
from onceonly.errors import Busy, CannotPublish, Fenced, InDoubt, InvalidPipeline, OnceonlyError, first_sentence
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View

MISSING, RECORDED, GIVEN_UP, OPEN = "missing", "recorded", "given_up", "open"  # how a sink comes to lack rows
OF_TARGETS = (Event.MISSING, Event.FOUND, Event.ACCEPTED, Event.GIVEN_UP)
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True)
class Lost:
    """One checkpoint whose rows a sink lacks.

    Args:
        how: MISSING, RECORDED, GIVEN_UP or OPEN.
        refusal: why its rows cannot be written now; None: nothing is known that forbids it.
    """

    checkpoint: Checkpoint
    how: str
    refusal: OnceonlyError | None = None


@dataclass(frozen=True)
class Lack:
    """What a sink lacks, oldest first.

    Args:
        view: the pipeline, in which it was found.
        loss: what the target has lost, or shows again, and nobody has recorded; None: there is nothing to record.
    """

    pipeline: Pipeline
    sink: str
    view: View
    loss: Loss | None
    lost: tuple[Lost, ...]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to record, and nothing to repair."""
        return self.loss is None and not self.lost


@dataclass(frozen=True)
class Wish:
    """A person's request to repair a sink. The same person and the same reason ask for the same.

    Args:
        seen: what the person was shown of the pipeline.
        again: rows that the sink cannot take back may come once more.
        removed: rows that a rewind had retracted, and that are there again, were removed by hand.
        partly: what cannot be repaired is left as it is.
    """

    who: str
    reason: str
    seen: Seen | None = None
    again: bool = False
    removed: bool = False
    partly: bool = False

    @property
    def acceptance(self) -> Acceptance:
        """What the person says of the target with it."""
        return Acceptance(self.who, self.reason, self.removed, self.seen, settles=True)

    def request(self, lost: Checkpoint, sink: str, again: tuple[str, ...]) -> Reprocess:
        """Return the request for one lost checkpoint. An epoch never comes again, so neither does the name."""
        name = f"{self._prefix(sink)}{lost.epoch})"
        return Reprocess(
            name, lost.origin, only=(sink,), again=again, lost=lost.epoch, who=self.who, reason=self.reason
        )

    def _prefix(self, sink: str) -> str:
        return f"{self.who}: {self.reason} ({sink} lacks epoch "

    def has_written(self, view: View, sink: str, row: Row) -> bool:
        """Whether a row is a step of this request, such as of a process that has died."""
        request = view.require(row.epoch).request
        if request and request.startswith(self._prefix(sink)):
            return True
        if row.event is Event.ACCEPTED:
            return row.sink == sink and all(row.body.get(key) == value for key, value in self.acceptance.body.items())
        return self.acceptance.has_written(sink, row)


@dataclass(frozen=True)
class Repairer:
    """Finds what sinks lack, and begins their repairs."""

    transitions: Transitions
    parts: Parts
    publisher: Publisher
    resolver: Resolver

    def find(self, pipeline: Pipeline, sink: str, again: bool = False) -> Lack:
        """Find what a sink lacks, and what forbids to write it; it changes nothing.

        Args:
            again: as of `Wish`.
        Raises:
            InvalidPipeline: the pipeline has no such sink, or it is its state.
            NotCommitted: the target does not answer.
        """
        _check_name(pipeline, sink)
        state_table = self.transitions.state_table
        view, loss = state_table.view(pipeline.name), None
        target: str | None = None
        if sink in view.head.publications:
            comparison = target_history.compare(state_table, self.parts, pipeline, sink, view)
            target = comparison.last.target if comparison else None
            unrecorded = accept_loss.find_loss(state_table, self.parts, pipeline.name, sink)
            if unrecorded and unrecorded.comparison.last.target == target:
                loss = unrecorded  # what it has lost in a target that it had before cannot be written there any more
            view = loss.comparison.view if loss else state_table.view(pipeline.name)
        hows = _list_lost(view, loss, sink, target)
        wish = Wish("", "")
        after = _view_after(view, loss, hows, sink)
        lost = []
        for checkpoint, how in hows:
            if shows_lacked(after, checkpoint, sink):
                continue  # a repair that was lost, of rows that are there again
            request = wish.request(checkpoint, sink, self._list_again(pipeline, sink, again))
            lost.append(Lost(checkpoint, how, self._find_refusal(pipeline, after, checkpoint, request)))
        return Lack(pipeline, sink, view, loss, tuple(lost))

    def begin(self, pipeline: Pipeline, sink: str, wish: Wish) -> list[Reprocess]:
        """Record what the sink lacks, give up what it cannot publish, and return the requests that repair it.

        Returns:
            One for each lost checkpoint, oldest first; empty: it lacks nothing.
        Raises:
            InvalidPipeline: what was shown has changed; the sink cannot take rows back, and nobody has said that they
                may come again; or some cannot be repaired: nothing was written.
            OutcomeUnknown: the target does not answer, so a process may still publish an open decision.
        """
        state_table, name = self.transitions.state_table, pipeline.name
        _require_unchanged(state_table.view(name), sink, wish)
        self._refuse(self.find(pipeline, sink, wish.again), wish)
        view = state_table.view(name)
        if view.open:
            self.publisher.publish(view)  # what its target shows already, or can take, is not lost
        lack = self.find(pipeline, sink, wish.again)
        self._refuse(lack, wish)
        give_up = partial(self._give_up, sink, wish)
        if lack.loss:
            accept_loss.accept(self.transitions, self.parts, name, sink, wish.acceptance, give_up)
        for checkpoint in self._iterate_waiting(name, sink, wish):
            give_up(state_table.view(name), checkpoint)
        lack = self.find(pipeline, sink, wish.again)
        self._refuse(lack, wish)
        names = self._list_again(pipeline, sink, wish.again)
        return [wish.request(lost.checkpoint, sink, names) for lost in lack.lost if not _is_left(lost)]

    def _iterate_waiting(self, name: str, sink: str, wish: Wish) -> Iterator[Checkpoint]:
        """Yield the decisions that wait for the sink, in their order; each has to be settled before the next."""
        while True:
            view = self.transitions.state_table.view(name)
            waiting = [checkpoint for checkpoint in accept_loss.find_open(view, sink) if sink in checkpoint.waiting]
            if not waiting:
                return
            _require_unchanged(view, sink, wish)
            yield waiting[0]

    def _give_up(self, sink: str, wish: Wish, view: View, checkpoint: Checkpoint) -> None:
        """Publish an open decision, or give it up where that surely cannot be done now.

        Args:
            view: in which nothing that the person was shown has changed.
        Raises:
            OutcomeUnknown: its outcome is not known, or in doubt.
        """
        epoch = checkpoint.epoch
        view, failures = self.publisher.publish(view)
        for failure in failures:
            if failure.sink == sink and not _is_surely_not_published(failure.error):
                raise failure.error
        now = view.require(epoch)
        if sink not in now.waiting:
            return
        seen = Seen(now.changed_seq)
        action = Action.on_checkpoint(Event.GIVEN_UP, epoch, wish.who, wish.reason, seen, sink)
        self.resolver.give_up_unpublished(view, epoch, sink, action)

    def _list_again(self, pipeline: Pipeline, sink: str, again: bool) -> tuple[str, ...]:
        """Return the sinks that are written and cannot take rows back, if their rows may come once more."""
        if not again:
            return ()
        written = [sink]
        if isinstance(pipeline.dead_letters, str) and pipeline.dead_letters != sink:
            written.append(pipeline.dead_letters)
        return tuple(name for name in written if not can_replace(self.parts, pipeline, name))

    # ---- what forbids it

    def _find_refusal(
        self, pipeline: Pipeline, after: View, lost: Checkpoint, request: Reprocess
    ) -> OnceonlyError | None:
        """Return what a plan would refuse once all is recorded; None: nothing.

        Args:
            after: the pipeline as it will be then.
        """
        sink = request.only[0]
        unclear = find_unclear(after, lost, sink)
        if unclear:
            return unclear_error(unclear, sink)
        if not request.again and not can_replace(self.parts, pipeline, sink):
            return _again_error(pipeline, sink, lost)
        find_barrier = None
        interval = lost.interval if pipeline.mode == "interval" else None
        if pipeline.after:
            state_table = self.transitions.state_table
            find_barrier = partial(upstream.find_barrier, state_table, self.parts, pipeline, interval)
        try:
            planner = RangePlanner(pipeline, self.parts.sources(pipeline), interval, find_barrier)
            planning = Planning(pipeline, self.parts, planner, request.request, request)
            planning.decide(after)
            if planning.existing and planning.existing.state is State.ABORTED:
                planner.verify(planning.existing.ranges)
            find_state_before(after, lost)
        except OnceonlyError as error:
            return error
        return None

    def _refuse(self, lack: Lack, wish: Wish) -> None:
        """Refuse before anything is written."""
        pipeline, sink = lack.pipeline, lack.sink
        if wish.again and not self._list_again(pipeline, sink, True):
            raise InvalidPipeline(
                f"{pipeline.name}: the rows of sink '{sink}' need not come once more.",
                "It can take back what it has published, so nothing is there twice.",
                "Leave out --again. Nothing was written.",
                code="again-not-needed",
            )
        for checkpoint in accept_loss.find_open(lack.view, sink):
            if sink in checkpoint.in_doubt:
                raise doubt_error(checkpoint, sink)
            if checkpoint.rewinds_to is not None and sink in checkpoint.waiting and not wish.removed:
                raise _open_rewind_error(checkpoint, sink)
        refused = [lost for lost in lack.lost if _is_left(lost)]
        if not refused or wish.partly:
            return
        codes = {lost.refusal.code for lost in refused if lost.refusal}
        if codes == {"rows-not-retractable"}:
            raise refused[0].refusal or _partly_error(lack, refused)
        raise _partly_error(lack, refused)


# ---- what a sink lacks


def _list_lost(view: View, loss: Loss | None, sink: str, target: str | None) -> list[tuple[Checkpoint, str]]:
    """List the checkpoints whose rows the sink lacks, oldest first, and how each was lost.

    What was replaced there since or retracted is left out, and so is what had no rows.
    """
    hows = _list_hows(view, loss, sink, target)
    if not hows:
        return []
    successors = view.successors(min(hows))
    lost = []
    for epoch, how in hows.items():
        checkpoint = view.require(epoch)
        is_settled = checkpoint.state is State.COMMITTED or how == OPEN
        if is_settled and has_data(checkpoint.ranges) and not _is_superseded(view, successors, checkpoint, sink):
            lost.append((checkpoint, how))
    return sorted(lost, key=lambda pair: _age(pair[0]))


def _list_hows(view: View, loss: Loss | None, sink: str, target: str | None) -> dict[int, str]:
    """Return by epoch how the sink comes to lack its rows, whatever has come in its place since."""
    hows = {checkpoint.epoch: GIVEN_UP for checkpoint in view.given_up(sink)}
    for checkpoint in view.missing():
        if sink in checkpoint.missing and _is_of_target(checkpoint, sink, target):
            hows[checkpoint.epoch] = RECORDED
    if loss:
        for checkpoint in loss.found_again:
            hows.pop(checkpoint.epoch, None)
        for checkpoint in loss.missing:
            hows[checkpoint.epoch] = MISSING
    for checkpoint in accept_loss.find_open(view, sink):
        if sink in checkpoint.waiting:
            hows[checkpoint.epoch] = OPEN
    return hows


def _age(checkpoint: Checkpoint) -> tuple[float, int]:
    """Return what sorts checkpoints by the age of their records."""
    start = checkpoint.interval.start.timestamp() if checkpoint.interval else 0
    return start, checkpoint.origin


def _is_of_target(checkpoint: Checkpoint, sink: str, target: str | None) -> bool:
    """Whether it was published to that target: the sink may have had another one. Without a proof it is not known."""
    proof = checkpoint.published[sink].get("proof")
    return not proof or proof["target"] == target


def _is_superseded(view: View, successors: Mapping[int, Checkpoint], checkpoint: Checkpoint, sink: str) -> bool:
    """Whether a later checkpoint has written the sink in its place, or a rewind has taken it back, or it is one."""
    if checkpoint.rewinds_to is not None or view.is_rewound(checkpoint.epoch):
        return True
    later = successors.get(checkpoint.epoch)
    while later:
        if sink in later.handles:
            return True
        later = successors.get(later.epoch)
    return False


def _view_after(view: View, loss: Loss | None, hows: list[tuple[Checkpoint, str]], sink: str) -> View:
    """Return the pipeline as it will be once all of this is recorded, to ask what a plan would say then."""
    checkpoints = dict(view.checkpoints)
    for checkpoint in loss.missing if loss else ():
        checkpoints[checkpoint.epoch] = replace(checkpoint, missing={**checkpoint.missing, sink: NOTHING})
    for checkpoint in loss.found_again if loss else ():
        missing = {name: body for name, body in checkpoint.missing.items() if name != sink}
        checkpoints[checkpoint.epoch] = replace(checkpoint, missing=missing)
    for checkpoint, how in hows:
        if how == OPEN:
            given_up = {**checkpoint.given_up, sink: NOTHING}
            checkpoints[checkpoint.epoch] = replace(checkpoint, state=State.COMMITTED, given_up=given_up)
    return replace(view, checkpoints=checkpoints)


def _is_left(lost: Lost) -> bool:
    """Whether it cannot be repaired. One that another process is at work on is planned all the same, and refused there.

    Its owner may have ended: then the plan settles it.
    """
    return lost.refusal is not None and not isinstance(lost.refusal, Busy)


def _is_surely_not_published(error: Exception) -> bool:
    """Whether a publication has failed for a reason that giving up may end: no answer is none, and doubt is none."""
    return isinstance(error.__cause__, Fenced) or (isinstance(error, CannotPublish) and not isinstance(error, InDoubt))


# ---- what the person was shown


def _require_unchanged(view: View, sink: str, wish: Wish) -> None:
    """Refuse if what the person was shown of the sink has changed since, other than by this very request."""
    action = Action(Event.ACCEPTED, wish.seen, partial(_show, sink), wish.acceptance.body)
    action.require_unchanged(view, partial(wish.has_written, view, sink))


def _show(sink: str, view: View) -> Shown:
    """Show what a sink lacks. What runs beside it changes nothing, until it decides, replaces or goes back."""

    def is_changed_by(row: Row) -> bool:
        if row.event in OF_TARGETS:
            return row.sink == sink
        return row.event in (Event.COMMITTING, Event.REWOUND) or "replaces" in row.body

    look = f"onceonly status {view.pipeline}"
    return Shown(view.pipeline, view.head.changed, view.head.seq, is_changed_by, look)


# ---- refusals


def _check_name(pipeline: Pipeline, sink: str) -> None:
    Reprocess("", only=(sink,)).check_names(pipeline)


def _again_error(pipeline: Pipeline, sink: str, lost: Checkpoint) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: sink '{sink}' cannot take back published rows.",
        f"It has lost rows of epoch {lost.epoch}, or parts of them may be there, and readers may have read them.",
        f"They come once more: onceonly repair FILE.py:NAME {sink} --again --reason …. They stay lost: onceonly "
        f"accept-loss {pipeline.name} {sink} --reason …. Nothing was written.",
        code="rows-not-retractable",
    )


def _partly_error(lack: Lack, refused: list[Lost]) -> InvalidPipeline:
    name, sink = lack.pipeline.name, lack.sink
    reasons = []
    for lost in refused[:MAX_CHECKPOINTS_NAMED]:
        why = first_sentence(lost.refusal) if lost.refusal else ""
        reasons.append(f"{name_checkpoints([lost.checkpoint])}: {why}")
    if len(refused) > len(reasons):
        reasons.append(f"and {len(refused) - len(reasons)} more.")
    return InvalidPipeline(
        f"{name}: sink '{sink}' cannot be repaired as a whole.",
        " ".join(reasons),
        f"Mend the cause, or repair the others alone: onceonly repair FILE.py:NAME {sink} --partly --reason …. What "
        "stays missing is named again each time. Nothing was written.",
        code="not-repairable",
    )


def _open_rewind_error(checkpoint: Checkpoint, sink: str) -> InvalidPipeline:
    name, epoch = checkpoint.pipeline, checkpoint.epoch
    return InvalidPipeline(
        f"{name}: sink '{sink}' cannot be repaired yet.",
        f"Epoch {epoch} takes rows out of it, which are read again after epoch {checkpoint.rewinds_to}: given up, they "
        "would be there twice.",
        "Remove the rows of the later epochs from the sink by hand, then: onceonly repair FILE.py:NAME "
        f"{sink} --removed --reason …. Nothing was written.",
        code="rows-not-removed",
    )
