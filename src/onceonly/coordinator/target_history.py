"""Whether targets still have what the state table has recorded as published to them.

The state table is read first and the target afterwards, so a checkpoint that is published meanwhile cannot make a
target look as if it had gone back. A difference counts only if the state table, read again, still has the same last
publication: a manual resolution may have been recorded since.

A target that went back is never published to. Either it is brought back, or a person accepts the loss (`accept_loss`).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.sink import Answer, History, Publication, Sink, TargetHistory
from onceonly.coordinator import upstream
from onceonly.coordinator.lost_rows import count_lost_rows
from onceonly.coordinator.messages import name_checkpoints
from onceonly.counts import count
from onceonly.errors import ActionNeeded, Fenced, InvalidPipeline, NotCommitted, TargetWentBack, first_sentence
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

WENT_BACK, IS_BACK, SILENT = "target-went-back", "target-is-back", "target-silent"  # codes of errors
NOTHING_MISSING = " No checkpoint is missing there."
Settle = Callable[[View], object]  # carries out decisions of that view


@dataclass(frozen=True)
class Comparison:
    """How a sink's target compares with what the state table has recorded for it.

    Args:
        view: the pipeline in the state table; of a target that went back, as it was read after the look.
        last: the publication that the target should show, with those that it should not.
        shows_lost: the target shows what is recorded as missing there.
    """

    pipeline: Pipeline
    view: View
    sink: str
    live: TargetHistory
    last: Publication
    history: History
    shows_lost: bool = False

    @property
    def went_back(self) -> bool:
        """Whether a person has to act: it lacks something, or what was recorded as missing is there again."""
        return self.is_back or (not self.last.absent and self.history.answer is Answer.WENT_BACK)

    @property
    def is_back(self) -> bool:
        """Whether it shows what was recorded as missing, or exists although that was recorded as absent."""
        if self.last.absent:
            return is_there_again(self.last, self.history)
        if self.history.answer is not Answer.SAME:
            return False
        return self.shows_lost or is_missing(self.view, self.sink, self.last)

    @property
    def last_shown_decision(self) -> int:
        """The last decision of this sink that the target shows, at least; 0: none, or not known."""
        if self.history.answer is Answer.SAME:
            return self.last.decision
        return self.history.decision

    def list_missing(self) -> list[Checkpoint]:
        """List the checkpoints that the target lacks, in the order of their decisions.

        Those that are recorded as missing are left out. Reads the history, so it is only called for a target that
        went back.
        """
        later = []
        for checkpoint in self.view.published_to(self.sink, self.last_shown_decision):
            if self._is_of_target(checkpoint):
                later.append(checkpoint)
        if self.history.at_least:  # what has one publication has all before it
            later = later[bisect(later, False, key=lambda checkpoint: not self._has(checkpoint)) :]
        missing = [checkpoint for checkpoint in later if checkpoint.is_shown_by(self.sink)]
        if self.history.answer is Answer.SAME:  # what was found again is later than what the sink continues from
            return [checkpoint for checkpoint in missing if not self._has(checkpoint)]
        return missing

    def list_reappeared(self) -> list[Checkpoint]:
        """List the checkpoints that are recorded as missing and that the target shows again, in order of decision.

        Each is compared, newest first, down to one that is there and was never missing: what the target lacked when
        that one was published, it still lacks.
        """
        recorded = [checkpoint for checkpoint in self.view.missing() if self.sink in checkpoint.missing]
        if not recorded:
            return []
        first_decision = min(checkpoint.decision or 0 for checkpoint in recorded)
        reappeared = []
        for checkpoint in reversed(self.view.published_to(self.sink, first_decision - 1)):
            if not self._is_of_target(checkpoint) or not self._has(checkpoint):
                continue
            if checkpoint.is_shown_by(self.sink):
                break
            reappeared.append(checkpoint)
        return reappeared[::-1]

    def _has(self, checkpoint: Checkpoint) -> bool:
        """Ask the target whether it shows what that checkpoint published to it."""
        publication = _find_publication(checkpoint, self.sink)
        return publication is not None and self.live.compare(publication).answer is Answer.SAME

    def _is_of_target(self, checkpoint: Checkpoint) -> bool:
        """Whether the checkpoint was published to this target: the sink may have had another one meanwhile.

        Without a proof it is not known, and counts as this one.
        """
        proof = checkpoint.published[self.sink].get("proof")
        return proof is None or proof["target"] == self.last.target

    def notes(self) -> list[str]:
        """Notes for people: what cannot be known, and what the target's owner has done to it on purpose."""
        about = f"sink '{self.sink}': "
        notes = [about + remark for remark in self.history.remarks]
        if self.history.answer is Answer.UNKNOWN:
            whether = f"whether its target still has decision {self.last.decision} cannot be known"
            notes.insert(0, f"{about}{whether}: {self.history.why}")
        return notes


# ---- compare


def check(
    state_table: StateTable, parts: Parts, pipeline: Pipeline, view: View | None = None, settle: Settle | None = None
) -> list[str]:
    """Refuse to continue if a target of the pipeline went back, or one that it reads and another pipeline writes.

    Args:
        view: an earlier view of the pipeline; None: it is read.
        settle: see `compare`.
    Returns:
        Notes for people.
    Raises:
        ActionNeeded: a target went back (code "target-went-back").
        NotCommitted: a target does not answer (code "target-silent").
    """
    names = [sink.name for sink in pipeline.sinks]
    comparisons = compare_all(state_table, parts, pipeline, names, view or state_table.view(pipeline.name), settle)
    losses = [comparison for comparison in comparisons if comparison.went_back]
    if losses:
        raise _lost_targets_error(state_table, losses)
    _check_upstream(state_table, parts, pipeline)
    notes = []
    for comparison in comparisons:
        notes += comparison.notes()
    return notes


def compare_all(
    state_table: StateTable,
    parts: Parts,
    pipeline: Pipeline,
    sinks: Iterable[str],
    view: View,
    settle: Settle | None = None,
) -> list[Comparison]:
    """Compare each of these sinks that has published to its target before. Raises NotCommitted, as `check`."""
    comparisons = []
    for name in sinks:
        comparison = compare(state_table, parts, pipeline, name, view, settle)
        if comparison:
            comparisons.append(comparison)
    return comparisons


def compare(
    state_table: StateTable, parts: Parts, pipeline: Pipeline, sink: str, view: View, settle: Settle | None = None
) -> Comparison | None:
    """Compare a sink's target with its last publication there; None: it has none, or it cannot be proven.

    Args:
        settle: called once, if the target went back while a decision waits for it: one whose own evidence exists is
            finished first.
    """
    if sink not in view.head.publications:
        return None
    while True:
        comparison = _compare_with_target(parts, pipeline, view, sink)
        if comparison is None or not comparison.went_back:
            return comparison
        now = state_table.view(view.pipeline)  # after the look: a publication since then may explain the difference
        if publications_of(now, sink) != publications_of(view, sink):
            view = now
        elif settle and _is_awaited(now, sink):
            settle(now)
            view, settle = state_table.view(view.pipeline), None
        else:
            return replace(comparison, view=now)


def require_accepted(state_table: StateTable, parts: Parts, pipeline: Pipeline, sink: str, view: View) -> None:
    """Refuse to fence a sink whose target lacks checkpoints: its evidence, written there, would hide that.

    Raises:
        InvalidPipeline: it lacks some.
        NotCommitted: the target does not answer.
    """
    comparison = compare(state_table, parts, pipeline, sink, view)
    if comparison and comparison.list_missing():
        raise InvalidPipeline(
            f"{pipeline.name}: sink '{sink}' cannot be given up yet.",
            f"Its target went back: {_describe_loss(comparison)}",
            f"Bring it back. If those rows are lost, {_ways_on(pipeline, sink)}",
            code=WENT_BACK,
        )


def last_publication(live: Sink, view: View) -> Publication | None:
    """Return the sink's last publication in its target, which a commit has to find there; None: there is none.

    It carries what the commit must not find there (`Publication.lost`). The target is looked at only if the sink has
    had several, or one that no longer exists.

    Raises:
        TargetWentBack: accepting its loss was interrupted; or it is there again after its loss was accepted.
    """
    publications = publications_of(view, live.name)
    if not isinstance(live, TargetHistory) or not publications:
        return None
    last: Publication | None = publications[0]
    if len(publications) > 1:
        last = _find_in_target(live, publications)
    if last is None:
        return None
    if view.head.reappeared.get(live.name):
        why = "That rows are there again is recorded, and not all of it."
        raise _half_recorded_error(view.pipeline, live.name, why)
    if not last.absent and is_missing(view, live.name, last):
        why = "That rows are missing there is recorded, and not all of it."
        raise _half_recorded_error(view.pipeline, live.name, why)
    if last.absent and is_there_again(last, live.compare(last)):
        why = "It is there again, and it was accepted that it is not."
        raise _half_recorded_error(view.pipeline, live.name, why)
    if last.absent:
        return None
    return _add_lost(view, live.name, last)


def _find_in_target(live: TargetHistory, publications: Iterable[Publication]) -> Publication | None:
    """Find the newest publication that was made to the target which the definition names now."""
    for publication in publications:
        if live.compare(publication).answer is not Answer.ELSEWHERE:
            return publication
    return None


def _add_lost(view: View, sink: str, last: Publication) -> Publication:
    """Add what was published to that target afterwards, and is recorded as missing there.

    There is some only until the sink publishes again. Reads the history of a sink that has ever lost something.
    """
    if last.absent or not view.head.missing.get(sink):
        return last
    lost = []
    for checkpoint in view.published_to(sink, last.decision):
        if sink in checkpoint.missing:
            publication = _find_publication(checkpoint, sink)
            if publication and publication.target == last.target:
                lost.append(publication)
    return replace(last, lost=tuple(lost))


def _find_publication(checkpoint: Checkpoint, sink: str) -> Publication | None:
    """Return how a checkpoint was published to a sink; None: it left no proof."""
    proof = checkpoint.published[sink].get("proof")
    if not proof:
        return None
    return Publication(checkpoint.epoch, checkpoint.decision or 0, proof)


def is_there_again(absent: Publication, history: History) -> bool:
    """Whether a target that no longer existed shows something that was published to it, and not only a new table."""
    return history.answer is Answer.SAME or (history.answer is Answer.WENT_BACK and history.decision > 0)


def is_missing(view: View, sink: str, publication: Publication) -> bool:
    """Whether that publication is recorded as missing in its target."""
    if not view.head.missing.get(sink):
        return False
    checkpoint = view.checkpoint(publication.epoch)
    return bool(checkpoint and checkpoint.decision == publication.decision and sink in checkpoint.missing)


def publications_of(view: View, sink: str) -> tuple[Publication, ...]:
    """Return the sink's last publication in each of its targets, newest first, also in those that no longer exist."""
    return view.head.publications.get(sink, ())


def read_baseline(comparison: Comparison) -> Publication:
    """Read the target as it is, as the sink's last publication. Raises NotCommitted, as `check`."""
    try:
        return comparison.live.find_current_publication(comparison.last) or replace(comparison.last, absent=True)
    except (NotCommitted, Fenced):
        raise
    except Exception as error:
        raise _silent_target_error(comparison.view.pipeline, comparison.sink, error) from error


def _compare_with_target(parts: Parts, pipeline: Pipeline, view: View, sink: str) -> Comparison | None:
    """Look at the target once; None: it cannot be proven, or nothing was published to the one that is named now.

    Raises:
        NotCommitted: the target does not answer.
    """
    try:
        live = parts.sink(pipeline, sink)
        if not isinstance(live, TargetHistory):
            return None
        for publication in publications_of(view, sink):
            history = live.compare(publication)
            if history.answer is not Answer.ELSEWHERE:
                last = _add_lost(view, sink, publication)
                shows_lost = any(live.compare(lost).answer is Answer.SAME for lost in last.lost)
                shows_lost = shows_lost or bool(view.head.reappeared.get(sink))  # recorded, and not to its end
                return Comparison(pipeline, view, sink, live, last, history, shows_lost)
    except (NotCommitted, Fenced):
        raise
    except Exception as error:
        raise _silent_target_error(view.pipeline, sink, error) from error
    return None


def _is_awaited(view: View, sink: str) -> bool:
    """Whether a decision waits for that sink."""
    return any(checkpoint.state is State.COMMITTING and sink in checkpoint.waiting for checkpoint in view.open)


# ---- chains


def _check_upstream(state_table: StateTable, parts: Parts, pipeline: Pipeline) -> None:
    """Refuse to read on from a target that went back: its rows would be read as if nothing was missing."""
    tables = set(pipeline.tables.values())
    for name in pipeline.after:
        view = state_table.view(name)
        if view.latest is None:
            continue  # refused by `upstream`
        writer = view.latest.definition.pipeline
        sinks = [sink.name for sink in writer.sinks if tables.intersection(sink.asset_uris())]
        comparisons = compare_all(state_table, parts, writer, sinks, view)
        losses = [comparison for comparison in comparisons if comparison.went_back]
        if losses:
            raise _lost_upstream_error(pipeline, losses)


# ---- words


def history_error(parts: Parts, error: TargetWentBack, now: View, checkpoint: Checkpoint, sink: str) -> TargetWentBack:
    """Return the error of a decided checkpoint whose target went back, with what is missing and the ways out."""
    name, missing = checkpoint.pipeline, ""
    with suppress(Exception):  # the refusal stands, whatever can be told of it
        comparison = _compare_with_target(parts, checkpoint.definition.pipeline, now, sink)
        if comparison and comparison.went_back:
            missing = _describe_missing(comparison)
    code, recover = error.code or WENT_BACK, f"onceonly recover {name}"
    what = "is there again"
    ways_out = f"Record that it is there again: {_command_to_accept(name, sink)}. Then: {recover}"
    if code != IS_BACK:
        what = "went back"
        ways_out = (
            f"Bring the target back (mount its volume, restore its newest copy), then: {recover}. If those rows are "
            f"lost, {_ways_on(checkpoint.definition.pipeline, sink)}"
        )
    return TargetWentBack(
        f"{name} epoch {checkpoint.epoch}: sink '{sink}' was not published, because its target {what}.",
        f"{first_sentence(error)}{missing}",
        f"The decision stands and nothing was deleted. {ways_out}",
        code=code,
    )


def _lost_targets_error(state_table: StateTable, losses: Sequence[Comparison]) -> ActionNeeded:
    pipeline, sinks = losses[0].pipeline, [loss.sink for loss in losses]
    readers = upstream.find_readers(state_table, pipeline, sinks)
    behind = ""
    if readers:
        behind = f" Pipelines that read it stop as well: {', '.join(readers)}."
    return ActionNeeded(
        f"{pipeline.name}: {_name_targets(sinks)} {_what_happened(losses)}.",
        f"{_describe_losses(losses)}{behind}",
        f"{_ways_out(losses)} Nothing was published.",
        code=_error_code(losses),
    )


def _lost_upstream_error(pipeline: Pipeline, losses: Sequence[Comparison]) -> ActionNeeded:
    writer, sinks = losses[0].pipeline.name, [loss.sink for loss in losses]
    return ActionNeeded(
        f"{pipeline.name}: {_name_targets(sinks)} of '{writer}', which it reads, {_what_happened(losses)}.",
        _describe_losses(losses),
        f"{_ways_out(losses)} Nothing was published.",
        code=_error_code(losses),
    )


def _half_recorded_error(pipeline: str, sink: str, why: str) -> TargetWentBack:
    what = f"{pipeline}: what the target of sink '{sink}' has is not recorded to its end."
    return TargetWentBack(what, why, f"Record it: {_command_to_accept(pipeline, sink)}", code=IS_BACK)


def _what_happened(losses: Sequence[Comparison]) -> str:
    if _error_code(losses) == WENT_BACK:
        return "went back"
    if len(losses) == 1:
        return "is there again"
    return "are there again"


def _error_code(losses: Sequence[Comparison]) -> str:
    for loss in losses:
        if not loss.is_back:
            return WENT_BACK
    return IS_BACK


def _name_targets(sinks: Sequence[str]) -> str:
    if len(sinks) == 1:
        return f"the target of sink '{sinks[0]}'"
    return f"the targets of sinks {', '.join(map(repr, sinks))}"


def _describe_losses(losses: Sequence[Comparison]) -> str:
    return " ".join(f"Sink '{loss.sink}' ({loss.last.target}): {_describe_loss(loss)}" for loss in losses)


def _describe_loss(loss: Comparison) -> str:
    if loss.is_back:
        accepted = "It was accepted that its rows are missing, and it is there again."
        return f"{accepted}{_describe_missing(loss)}{_describe_reappeared(loss)}"
    why = loss.history.why.rstrip(".")
    return f"{why}.{_describe_missing(loss) or NOTHING_MISSING}{_describe_reappeared(loss)}"


def _describe_reappeared(loss: Comparison) -> str:
    reappeared = loss.list_reappeared()
    return f" It shows {name_checkpoints(reappeared)}, recorded as missing." if reappeared else ""


def _ways_out(losses: Sequence[Comparison]) -> str:
    if _error_code(losses) == IS_BACK:
        commands = ", ".join(_command_to_accept(loss.view.pipeline, loss.sink) for loss in losses)
        return f"Record that it is there again: {commands}."
    ways_on = "; ".join(_ways_on(loss.pipeline, loss.sink) for loss in losses)
    return (
        "Bring the target back (mount its volume, restore its newest copy) and run again (onceonly run "
        "FILE.py:NAME): nothing is published "
        f"twice. If those rows are lost, {ways_on}."
    )


def _ways_on(pipeline: Pipeline, sink: str) -> str:
    """Return what can be done where nothing newer can be restored. State is never written once more."""
    accept = f"continue without them: {_command_to_accept(pipeline.name, sink)}"
    if pipeline.state and pipeline.state.name == sink:
        return accept
    return f"write them again: onceonly repair FILE.py:NAME {sink} --reason …, or {accept}"


def _command_to_accept(pipeline: str, sink: str) -> str:
    return f"onceonly accept-loss {pipeline} {sink} --reason …"


def _describe_missing(loss: Comparison) -> str:
    missing = loss.list_missing()
    if not missing:
        return ""
    rows = count_lost_rows(missing, loss.sink)
    row_count = f" ({count(rows, 'row')})" if rows is not None else ""
    return f" Missing there: {name_checkpoints(missing)}{row_count}."


def _silent_target_error(pipeline: str, sink: str, error: Exception) -> NotCommitted:
    return NotCommitted(
        f"{pipeline}: whether the target of sink '{sink}' still has what was published to it is not known.",
        first_sentence(error),
        "Retry when the target answers: onceonly recover PIPELINE. Nothing was published.",
        code=SILENT,
    )
