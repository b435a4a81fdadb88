"""What a person may ask for of records that a committed checkpoint has covered: which sinks get them once more.

A request makes a checkpoint in place of the one in force. It writes every sink, or only some: then it is a *repair*,
from which no later checkpoint continues, and the rows of the other sinks stay as they are. In each sink that it writes:

    the rows in force are replaced      where the sink can take them back
    the rows come once more             where it cannot, and the person has named it (`again`)
    the rows are added                  where none are in force: the sink is new, was given up, or has lost them
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, Handle, State
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import ReplaceableRows, Sink
from onceonly.errors import Busy, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.view import View


@dataclass(frozen=True)
class Reprocess:
    """A person's request to process the records of a committed checkpoint once more.

    Args:
        request: names it: repeated (a task that runs twice), it does nothing a second time.
        epoch: the checkpoint; None: the one in force for the interval of the plan.
        keep: sinks whose rows stay as they are.
        only: the sinks to complete, where no rows of the checkpoint are in force; empty: all sinks are written.
        again: sinks that cannot take rows back, and get them once more; or of which a person says that they do not have
            the rows of what was given up there, which nobody else knows (`find_unclear`).
        lost: the checkpoint whose rows the sink of `only` lacks, also where those of an earlier one are in force there;
            if another one has written that sink since, or it shows these rows again, nothing is done.
        who, reason: for people; of a repair.
    """

    request: str
    epoch: int | None = None
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    lost: int | None = None
    who: str = ""
    reason: str = ""

    @property
    def is_for_some_sinks(self) -> bool:
        """Whether it names sinks, and not all of them are replaced alike."""
        return bool(self.keep or self.only or self.again)

    def find_complete(self, view: View, old: Checkpoint) -> set[str]:
        """Return the sinks that need not be completed: they show the rows of the checkpoint whose place is taken."""
        complete = set(view.handles_in_force(old))
        if self.lost is None:
            return complete
        for name in self.only:
            complete.add(name)
            written = view.last_written(old, name)
            is_lost = written and written.epoch == self.lost and not written.is_shown_by(name)
            if written and is_lost and not shows_lacked(view, written, name):
                complete.remove(name)
        return complete

    def choose_sinks(self, pipeline: Pipeline, complete: Collection[str]) -> tuple[str, ...]:
        """Return the sinks that are to be written, in the order of the definition; empty: they have the rows already.

        Args:
            complete: the sinks that show rows of the checkpoint.
        Raises:
            InvalidPipeline: a name is no sink of the pipeline, or what is asked for cannot be.
        """
        self.check_names(pipeline)
        state, letters = pipeline.state, pipeline.dead_letters
        chosen = []
        for sink in pipeline.sinks:
            is_kept = sink.name in self.keep or (state is not None and sink.name == state.name)
            is_left_out = self.only and (sink.name not in self.only or sink.name in complete)
            if not is_kept and not is_left_out:
                chosen.append(sink.name)
        if chosen and isinstance(letters, str) and letters not in chosen:
            if letters in self.keep:
                raise _kept_letters_error(pipeline, letters)
            chosen.append(letters)
        if chosen == [letters] and letters in complete and len(pipeline.sinks) > (1 if state is None else 2):
            raise _lone_letters_error(pipeline, chosen[0])
        return tuple(sink.name for sink in pipeline.sinks if sink.name in chosen)

    def choose_lost(self, view: View, checkpoint: Checkpoint, sinks: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the sinks that lack rows although this request has been carried out.

        To complete a sink is asked for wherever it lacks them. Of another request, what it has written was lost since,
        and nobody has written it again.
        """
        if self.only:
            return sinks
        lost = []
        for name in sinks:
            written = view.last_written(checkpoint, name)
            is_own = written is not None and written.request == self.request
            if self.is_for_some_sinks and written and is_own and name in written.missing:
                lost.append(name)
        return tuple(lost)

    def check_names(self, pipeline: Pipeline) -> None:
        names = [sink.name for sink in pipeline.sinks]
        for name in (*self.keep, *self.only, *self.again):
            if name not in names:
                raise InvalidPipeline(
                    f"{pipeline.name}: it has no sink '{name}'.",
                    f"Its sinks are {', '.join(names)}.",
                    "Name one of these. Nothing was written.",
                    code="no-such-sink",
                )
        if pipeline.state and pipeline.state.name in (*self.only, *self.again):
            raise InvalidPipeline(
                f"{pipeline.name}: its state '{pipeline.state.name}' cannot be written once more.",
                "Each checkpoint continues from the state of the one before.",
                "Leave it out: the other sinks are computed from the state as it was. Nothing was written.",
                code="state-not-repairable",
            )
        both = sorted(set(self.keep) & {*self.only, *self.again})
        if both:
            raise InvalidPipeline(
                f"{pipeline.name}: sink '{both[0]}' is to be kept, and to be written.",
                todo="Name it once. Nothing was written.",
                code="options-conflict",
            )

    def body(
        self,
        pipeline: Pipeline,
        old: Checkpoint,
        sinks: tuple[str, ...],
        complete: Collection[str],
        absent: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what the first row of the checkpoint that takes the place of `old` records of the request.

        Args:
            absent: sinks of `again` that can take rows back.
        """
        body: dict[str, Any] = {"replaces": old.epoch, "request": self.request}
        repair: dict[str, Any] = {}
        if is_repair(pipeline, old, sinks):
            repair.update(only=list(sinks), of=old.origin)
        again = [name for name in sinks if name in self.again and name not in absent]
        if again:
            repair["again"] = again
        if absent:
            repair["absent"] = list(absent)
        lacking = [name for name in again if name in self.only and name not in complete]
        if lacking:
            repair["lacking"] = lacking
        if repair or self.lost is not None:
            body["repair"] = {**repair, "who": self.who, "reason": self.reason}
        return body

    def continued_body(self, aborted: Checkpoint) -> dict[str, Any]:
        """Return what the row records that plans an earlier attempt of the same again: whose request it is by now."""
        body: dict[str, Any] = {"request": self.request}
        wish = {"who": self.who, "reason": self.reason}
        if aborted.requested_by and self.who and wish != dict(aborted.asked_last_by):
            body["repair"] = wish
        return body


def is_repair(pipeline: Pipeline, old: Checkpoint, sinks: tuple[str, ...]) -> bool:
    """Whether a checkpoint that writes these sinks in place of `old` is a repair.

    In a chain it always is, even of all sinks: the next checkpoint continues from the last one, not from `old`.
    """
    return old.interval is None or len(sinks) < len(pipeline.sinks)


def make_request(replacing: str | None, repairing: str, wish: Mapping[str, Any], who: str) -> Reprocess | None:
    """Return the request that options, or the conf of a run, stand for; None: there is none.

    Args:
        replacing: names the request to process all sinks again; None: that is not asked for.
        repairing: names the request for some sinks, which is done once however often it is repeated.
        wish: "keep", "again" and "only" (names of sinks), "epoch" and "reason"; each may be missing or empty.
    Raises:
        InvalidPipeline: what is asked for does not go together, or a value is of another type.
    """
    sinks = {key: _names_under(key, wish.get(key)) for key in ("keep", "again", "only")}
    epoch, reason = wish.get("epoch"), wish.get("reason")
    if epoch is not None and type(epoch) is not int:
        raise InvalidPipeline(
            f"epoch is {epoch!r}.", todo="Give the number of a checkpoint. Nothing was written.", code="option-invalid"
        )
    is_replacing = replacing is not None
    is_for_some_sinks = any(sinks.values())
    if is_for_some_sinks and not reason:
        raise InvalidPipeline(
            "a request for some sinks needs a reason.",
            "It is recorded, and the same reason again is the same request, which is done once.",
            'Say why: --reason TEXT, or "reason" in the run\'s conf. Nothing was written.',
            code="reason-missing",
        )
    is_lonely = (sinks["keep"] and not is_replacing) or (epoch is not None and not is_for_some_sinks)
    if is_lonely or (sinks["only"] and is_replacing):
        raise InvalidPipeline(
            "what is asked for does not go together.",
            "'keep' goes with 'reprocess', 'only' goes without it, and 'epoch' with one of 'keep', 'only' and 'again'.",
            "Ask for what goes together. Nothing was written.",
            code="options-conflict",
        )
    if is_for_some_sinks:
        keep, only, again = sinks["keep"], sinks["only"], sinks["again"]
        return Reprocess(repairing, epoch, keep, only, again, who=who, reason=str(reason))
    return Reprocess(replacing) if replacing is not None else None


def _names_under(key: str, names: Any) -> tuple[str, ...]:
    """Return the names of sinks under a key; one alone need not be in a list."""
    if isinstance(names, str):
        return (names,)
    if names is None:
        return ()
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InvalidPipeline(
            f"{key} is {names!r}.", todo="Give names of sinks. Nothing was written.", code="option-invalid"
        )
    return tuple(names)


def find_interval(view: View, epoch: int, interval: Interval | None) -> Interval | None:
    """Return the interval of the checkpoint that a request names.

    Args:
        interval: that of the run or command; None: it has none.
    Raises:
        InvalidPipeline: that is another one.
    """
    own_interval = view.require(epoch).interval
    if interval is not None and interval != own_interval:
        raise InvalidPipeline(
            f"{view.pipeline}: epoch {epoch} covers {own_interval}, and {interval} is asked for.",
            todo="Name one of them. Nothing was written.",
            code="options-conflict",
        )
    return own_interval


def check_sinks(
    pipeline: Pipeline, old: Checkpoint, sinks: tuple[str, ...], again: tuple[str, ...], view: View, parts: Parts
) -> None:
    """Refuse where a sink cannot do what the request asks for.

    Args:
        old: the checkpoint whose place is taken.
        sinks, again: what the new one writes, and of these, which sinks a person has named to get the rows once more.
    Raises:
        InvalidPipeline: nothing was written.
    """
    if old.forwarded is not None:
        raise InvalidPipeline(
            f"{pipeline.name}: {old.interval or f'epoch {old.epoch}'} cannot be processed again.",
            f"Epoch {old.epoch} says that it is published ({old.reason}); what was published is not known here.",
            "Process it by a pipeline with a new name and new targets. Nothing was written.",
            code="publication-not-recorded",
        )
    in_force = view.handles_in_force(old)
    names = [sink.name for sink in pipeline.sinks]
    removed = [] if is_repair(pipeline, old, sinks) else sorted(set(in_force) - set(names))
    if removed:
        raise InvalidPipeline(
            f"{pipeline.name}: epoch {old.epoch} was published to {removed}, no longer sinks of the pipeline.",
            "Its rows there would stay beside those of the new one.",
            "Keep the sink until the interval is processed again. Nothing was written.",
            code="sink-removed",
        )
    for name in sinks:
        if name not in names:
            raise InvalidPipeline(
                f"{pipeline.name}: sink '{name}' of the repair of epoch {old.epoch} is no longer in the pipeline.",
                todo="Add it again until the repair is done, or abort the repair: onceonly status PIPELINE names its "
                "epoch, for onceonly abort PIPELINE EPOCH --reason …. Nothing was written.",
                code="sink-removed",
            )
        unclear = find_unclear(view, old, name)
        if unclear and name not in again:
            raise unclear_error(unclear, name)
        live = parts.sink(pipeline, name)
        if name in again and not unclear and isinstance(live, ReplaceableRows):
            raise _again_not_needed_error(pipeline, name)
        _check_sink(pipeline, live, in_force.get(name), name in again, name in _lost(view, old))


def check_request(view: View, epoch: int, request: Reprocess, parts: Parts) -> tuple[str, ...]:
    """Return the sinks that a request about a checkpoint would write, as things stand.

    Raises:
        InvalidPipeline: a sink cannot do what is asked for, or there is nothing to write.
        Busy: another request for the same records is under way.
    """
    checkpoint, newest = view.require(epoch), view.newest
    same_records = [view.require(checkpoint.origin), *view.repairs_of(checkpoint.origin)]
    if checkpoint.interval is not None:
        same_records = view.planned_for(checkpoint.interval)
    for other in same_records:
        if not other.state.is_settled:
            raise Busy(
                f"{view.pipeline}: blocked by unsettled epoch {other.epoch}.",
                f"It is {other.state.value} and belongs to '{other.owner}'.",
                f"Wait until it has ended: onceonly status {view.pipeline}. Nothing was written.",
                code="checkpoint-open",
            )
    last = [other for other in same_records if other.state is State.COMMITTED][-1:]
    if not last or newest is None or view.is_rewound(epoch):
        raise InvalidPipeline(
            f"{view.pipeline}: no rows of epoch {epoch} are in force.",
            "It was aborted, or a rewind has taken it back.",
            f"Name a checkpoint that is in force: onceonly status {view.pipeline}. Nothing was written.",
            code="epoch-not-in-force",
        )
    pipeline = newest.definition.pipeline
    sinks = request.choose_sinks(pipeline, view.handles_in_force(last[0]))
    if not sinks:
        raise InvalidPipeline(
            f"{view.pipeline}: there is nothing to write for epoch {epoch}.",
            "Every sink that is asked for has its rows, or is kept.",
            "Name a sink that lacks them, or keep fewer. Nothing was written.",
            code="nothing-to-repair",
        )
    check_sinks(pipeline, last[0], sinks, request.again, view, parts)
    return sinks


def _check_sink(pipeline: Pipeline, live: Sink, handle: Handle | None, is_again: bool, is_lost: bool) -> None:
    if isinstance(live, ReplaceableRows):
        if handle is not None:
            live.check_replace(handle)
    elif not is_again and (handle is not None or is_lost):
        raise _unnamed_sink_error(pipeline, live.name, is_lost)


def can_replace(parts: Parts, pipeline: Pipeline, sink: str) -> bool:
    """Whether the sink can take back what it has published."""
    return isinstance(parts.sink(pipeline, sink), ReplaceableRows)


def find_unclear(view: View, checkpoint: Checkpoint, sink: str) -> Checkpoint | None:
    """Find the checkpoint of which nobody knows whether the sink has its rows, of this one and those in its chain.

    It was given up there without a fence, or in doubt, and nothing was published there in its place. None: it is known.
    """
    written = view.last_written(checkpoint, sink)
    while written and sink not in written.published:
        given_up = written.given_up.get(sink)
        if given_up is not None and ("not_fenced" in given_up or view.was_in_doubt(written.epoch, sink)):
            return written
        written = view.last_written(view.require(written.replaces), sink) if written.replaces else None
    return None


def shows_lacked(view: View, repair: Checkpoint, sink: str) -> bool:
    """Whether a sink shows by now the rows that it lacked when the repair was planned.

    A sink that can take rows back replaces them. In another one they would be there twice.
    """
    while sink in repair.lacking:
        written = view.last_written(view.require(repair.replaces or 0), sink)
        if written is None:
            return False
        if written.is_shown_by(sink):
            return True
        repair = written  # a repair itself, of rows that may be there again
    return False


def comes_in_place_of_others(view: View, checkpoint: Checkpoint, sink: str) -> bool:
    """Whether a staged checkpoint comes in place of other rows than those in force in the sink now.

    Published as it is, its rows would come beside them, or take out what is not there.
    """
    in_force = view.handles_to_replace(checkpoint).get(sink)
    return checkpoint.handles[sink].get("replaces") != in_force or shows_lacked(view, checkpoint, sink)


def find_shown_again(view: View, repair: Checkpoint) -> str | None:
    """Return a sink that shows by now what it lacked; None: none does."""
    for sink in repair.lacking:
        if shows_lacked(view, repair, sink):
            return sink
    return None


def refuse_shown_again(view: View, repair: Checkpoint) -> None:
    """Refuse to stage rows that a sink shows again, and cannot take back."""
    sink = find_shown_again(view, repair)
    if sink:
        raise InvalidPipeline(
            f"{repair.pipeline} epoch {repair.epoch}: sink '{sink}' does not need these rows any more.",
            f"It lacked the rows of epoch {repair.replaces} when they were asked for, and shows them again: they would "
            "be there twice.",
            f"Abort it: onceonly abort {repair.pipeline} {repair.epoch} --reason …. Nothing was written.",
            code="rows-there-again",
        )


def _lost(view: View, checkpoint: Checkpoint) -> set[str]:
    """Return the sinks whose targets have lost what the checkpoint, or one before it in its place, published."""
    lost = set(checkpoint.missing)
    if checkpoint.replaces is not None:
        lost |= _lost(view, view.require(checkpoint.replaces))
    return lost


def unclear_error(unclear: Checkpoint, sink: str) -> InvalidPipeline:
    """Return the refusal to write the rows of a checkpoint which the sink may have."""
    epoch = unclear.epoch
    return InvalidPipeline(
        f"{unclear.pipeline} epoch {epoch}: whether sink '{sink}' has its rows is not known.",
        "It was given up while its target did not answer, or while nothing showed the outcome.",
        f"Look into the target. If they are there, keep them: --keep {sink}. If they are not, say so: --again {sink}; "
        f"alone: onceonly run FILE.py:NAME --epoch {epoch} --only {sink} --again {sink} --reason …. Nothing was "
        "written.",
        code="rows-unclear",
    )


def _again_not_needed_error(pipeline: Pipeline, name: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: the rows of sink '{name}' need not come once more.",
        "It can take back what it has published, so its rows are replaced.",
        "Do not name it to get them again. Nothing was written.",
        code="again-not-needed",
    )


def _unnamed_sink_error(pipeline: Pipeline, name: str, is_lost: bool) -> InvalidPipeline:
    why = "Readers may have read them."
    if is_lost:
        why = "It has lost rows of this checkpoint, and readers may have read them before."
    if name == pipeline.dead_letters:
        return InvalidPipeline(
            f"{pipeline.name}: sink '{name}' cannot take back published dead letters.",
            f"{why} They go with the rows: a record that is good now would be in both.",
            f'Let them come once more: --again {name}, or "again" in the conf. Nothing was written.',
            code="rows-not-retractable",
        )
    return InvalidPipeline(
        f"{pipeline.name}: sink '{name}' cannot take back published rows.",
        why,
        f"Say what is to become of them. They stay: onceonly run … --reprocess --keep {name} --reason …, or a run "
        f'whose conf is {{"reprocess": true, "keep": ["{name}"], "reason": …}}. They come once more: --again {name}, '
        'or "again" in the conf. Nothing was written.',
        code="rows-not-retractable",
    )


def _kept_letters_error(pipeline: Pipeline, letters: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: its dead letters '{letters}' cannot be kept beside new rows of another sink.",
        "Each record is in exactly one of the two; a record that is good now would be in both.",
        "Do not keep it; if it cannot retract rows, name it to get them again. Nothing was written.",
        code="dead-letters-kept",
    )


def _lone_letters_error(pipeline: Pipeline, letters: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"{pipeline.name}: its dead letters '{letters}' cannot be replaced alone.",
        "Each record is in exactly one of the two; a record that is good now would be in none.",
        "Write a sink with rows as well. Nothing was written.",
        code="dead-letters-alone",
    )
