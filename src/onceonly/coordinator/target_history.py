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
from onceonly.checkpoint.sink import Answer, History, ProvesHistory, Publication, Sink
from onceonly.counts import count
from onceonly.errors import (
    ActionNeeded,
    Fenced,
    InvalidPipeline,
    NotCommitted,
    OutcomeUnknown,
    TargetWentBack,
    first_sentence,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

WENT_BACK, IS_BACK, SILENT = "target-went-back", "target-is-back", "target-silent"  # codes of errors
NOTHING_MISSING = " No checkpoint is missing there."
MAX_NAMED = 8  # checkpoints that a message names one by one
Settle = Callable[[View], object]  # carries out decisions of that view


@dataclass(frozen=True)
class Comparison:
    """What a look at a sink's target has shown.

    Args:
        view: the pipeline in the state table; of a target that went back, as it was read after the look.
        last: the publication that the target should show, with those that it should not.
        shows_lost: it shows what is recorded as missing there.
    """

    pipeline: Pipeline
    view: View
    sink: str
    live: ProvesHistory
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
    def shown(self) -> int:
        """The last decision of this sink that the target shows, at least; 0: none, or not known."""
        return self.last.decision if self.history.answer is Answer.SAME else self.history.decision

    def missing(self) -> list[Checkpoint]:
        """The checkpoints that the target lacks, in the order of their decisions, without those recorded as missing.

        Reads the history, so it is only called for a target that went back.
        """
        later = [each for each in self.view.published_to(self.sink, self.shown) if self._is_of_target(each)]
        if self.history.at_least:  # what has one publication has all before it
            later = later[bisect(later, False, key=lambda checkpoint: not self._has(checkpoint)) :]
        return [each for each in later if each.is_shown_by(self.sink)]

    def found(self) -> list[Checkpoint]:
        """The checkpoints that are recorded as missing and that the target shows again, in the order of decisions.

        Each is asked for, newest first, down to one that is there and was never missing: what the target lacked when
        that one was published, it still lacks.
        """
        missing = [each.decision or 0 for each in self.view.missing() if self.sink in each.missing]
        later = self.view.published_to(self.sink, min(missing) - 1) if missing else []
        found = []
        for checkpoint in reversed(later):
            if not self._is_of_target(checkpoint) or not self._has(checkpoint):
                continue
            if checkpoint.is_shown_by(self.sink):
                break
            found.append(checkpoint)
        return found[::-1]

    def _has(self, checkpoint: Checkpoint) -> bool:
        publication = _publication(checkpoint, self.sink)
        return publication is not None and self.live.compare(publication).answer is Answer.SAME

    def _is_of_target(self, checkpoint: Checkpoint) -> bool:
        """The sink may have had another target meanwhile. Without a proof it is not known, and counts as this one."""
        proof = checkpoint.published[self.sink].get("proof")
        return proof is None or proof["target"] == self.last.target

    def notes(self) -> list[str]:
        """For people: what cannot be known, and what the target's owner has done to it on purpose."""
        about = f"sink '{self.sink}': "
        unknown = (
            f"{about}whether its target still has decision {self.last.decision} cannot be known: {self.history.why}"
        )
        return [
            *([unknown] if self.history.answer is Answer.UNKNOWN else []),
            *(about + remark for remark in self.history.remarks),
        ]


# ---- compare


def check(
    state: StateTable, parts: Parts, pipeline: Pipeline, seen: View | None = None, settle: Settle | None = None
) -> list[str]:
    """Refuse to continue if a target of the pipeline went back, or one that it reads and another pipeline writes.

    Args:
        seen: an earlier view of the pipeline.
        settle: see `compare`.
    Returns:
        Notes for people.
    Raises:
        ActionNeeded: a target went back (code "target-went-back").
        NotCommitted: a target does not answer (code "target-silent").
    """
    view = seen or state.view(pipeline.name)
    names = [sink.name for sink in pipeline.sinks]
    comparisons = compare_all(state, parts, pipeline, names, view, settle)
    if lost := [each for each in comparisons if each.went_back]:
        raise _went_back(state, lost)
    _check_upstream(state, parts, pipeline)
    return [note for each in comparisons for note in each.notes()]


def compare_all(
    state: StateTable,
    parts: Parts,
    pipeline: Pipeline,
    sinks: Iterable[str],
    seen: View,
    settle: Settle | None = None,
) -> list[Comparison]:
    """Compare each of these sinks that has published to its target before. Raises NotCommitted, as `check`."""
    comparisons = (compare(state, parts, pipeline, name, seen, settle) for name in sinks)
    return [each for each in comparisons if each]


def compare(
    state: StateTable, parts: Parts, pipeline: Pipeline, sink: str, seen: View, settle: Settle | None = None
) -> Comparison | None:
    """Compare a sink's target with its last publication there; None: it has none, or it cannot be proven.

    Args:
        settle: called once, if the target went back while a decision waits for it: one whose own evidence exists is
            finished first.
    """
    if sink not in seen.head.publications:
        return None
    view = seen
    while True:
        comparison = _look(parts, pipeline, view, sink)
        if comparison is None or not comparison.went_back:
            return comparison
        now = state.view(view.pipeline)
        if publications_of(now, sink) != publications_of(view, sink):
            view = now
        elif settle and _is_awaited(now, sink):
            settle(now)
            view, settle = state.view(view.pipeline), None
        else:
            return replace(comparison, view=now)


def require_accepted(state: StateTable, parts: Parts, pipeline: Pipeline, sink: str, seen: View) -> None:
    """Refuse to fence a sink whose target lacks checkpoints: its evidence, written there, would hide that.

    Raises:
        InvalidPipeline: it lacks some.
        NotCommitted: the target does not answer.
    """
    comparison = compare(state, parts, pipeline, sink, seen)
    if comparison and comparison.missing():
        raise InvalidPipeline(
            f"{pipeline.name}: sink '{sink}' cannot be given up yet.",
            f"Its target went back: {_why(comparison)}",
            f"Bring it back, or record what is missing there first: {_command(pipeline.name, sink)}",
            code=WENT_BACK,
        )


def last_publication(live: Sink, view: View) -> Publication | None:
    """The sink's last publication in its target, which a commit has to find there, and what it must not find.

    None: there is none.

    The target is looked at only if the sink has had several, or one that no longer exists.

    Raises:
        TargetWentBack: accepting its loss was interrupted; or it is there again after its loss was accepted.
    """
    publications = publications_of(view, live.name)
    if not isinstance(live, ProvesHistory) or not publications:
        return None
    last: Publication | None = publications[0]
    if len(publications) > 1:
        last = next((each for each in publications if live.compare(each).answer is not Answer.ELSEWHERE), None)
    if last is None:
        return None
    if not last.absent and is_missing(view, live.name, last):
        raise _not_accepted(view.pipeline, live.name, "That rows are missing there is recorded, and not all of it.")
    if last.absent and is_there_again(last, live.compare(last)):
        raise _not_accepted(view.pipeline, live.name, "It is there again, and it was accepted that it is not.")
    return None if last.absent else _with_lost(view, live.name, last)


def _with_lost(view: View, sink: str, last: Publication) -> Publication:
    """Add what was published to that target afterwards, and is recorded as missing there.

    There is some only until the sink publishes again. Reads the history of a sink that has ever lost something.
    """
    if last.absent or not view.head.missing.get(sink):
        return last
    later = [each for each in view.published_to(sink, last.decision) if sink in each.missing]
    publications = (_publication(checkpoint, sink) for checkpoint in later)
    return replace(last, lost=tuple(each for each in publications if each and each.target == last.target))


def _publication(checkpoint: Checkpoint, sink: str) -> Publication | None:
    """Return how a checkpoint was published to a sink; None: it left no proof."""
    proof = checkpoint.published[sink].get("proof")
    return Publication(checkpoint.epoch, checkpoint.decision or 0, proof) if proof else None


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
    """The sink's last publication in each of its targets, also in those that no longer exist, the newest first."""
    return view.head.publications.get(sink, ())


def baseline(comparison: Comparison) -> Publication:
    """The target as it is, as the sink's last publication. Raises NotCommitted, as `check`."""
    try:
        return comparison.live.proof_now(comparison.last) or replace(comparison.last, absent=True)
    except (NotCommitted, Fenced):
        raise
    except Exception as error:
        raise _silent(comparison.view.pipeline, comparison.sink, error) from error


def _look(parts: Parts, pipeline: Pipeline, view: View, sink: str) -> Comparison | None:
    """Raises NotCommitted: the target does not answer."""
    try:
        live = parts.sink(pipeline, sink)
        if not isinstance(live, ProvesHistory):
            return None
        for last in publications_of(view, sink):
            history = live.compare(last)
            if history.answer is not Answer.ELSEWHERE:
                last = _with_lost(view, sink, last)
                shows_lost = any(live.compare(each).answer is Answer.SAME for each in last.lost)
                return Comparison(pipeline, view, sink, live, last, history, shows_lost)
    except (NotCommitted, Fenced):
        raise
    except Exception as error:
        raise _silent(view.pipeline, sink, error) from error
    return None


def _is_awaited(view: View, sink: str) -> bool:
    """Whether a decision waits for that sink."""
    return any(each.state is State.COMMITTING and sink in each.waiting for each in view.open)


# ---- chains


def _check_upstream(state: StateTable, parts: Parts, pipeline: Pipeline) -> None:
    """Refuse to read on from a target that went back: its rows would be read as if nothing was missing."""
    tables = set(pipeline.tables.values())
    for name in pipeline.after:
        view = state.view(name)
        if view.latest is None:
            continue  # refused by `barrier`
        writer = Pipeline.from_json(view.latest.definition)
        sinks = [sink.name for sink in writer.sinks if tables & set(sink.asset_uris())]
        if lost := [each for each in compare_all(state, parts, writer, sinks, view) if each.went_back]:
            raise _upstream_went_back(pipeline, lost)


def readers(state: StateTable, pipeline: Pipeline, sinks: Iterable[str]) -> list[str]:
    """The pipelines that read a target of these sinks up to this pipeline's checkpoints."""
    written = {uri for name in sinks for uri in pipeline.sink(name).asset_uris()}
    found = []
    for name in state.pipelines():
        with suppress(OutcomeUnknown):  # its rows are damaged, which it says itself
            latest = state.view(name).latest
            if latest and pipeline.name in latest.definition.get("after", ()):
                reader = Pipeline.from_json(latest.definition)
                found += [name] if written & set(reader.tables.values()) else []
    return found


# ---- words


def refused_commit(parts: Parts, error: TargetWentBack, now: View, checkpoint: Checkpoint, sink: str) -> TargetWentBack:
    """The error of a decided checkpoint whose target went back, with what is missing and the ways out."""
    name, missing = checkpoint.pipeline, ""
    with suppress(Exception):  # the refusal stands, whatever can be told of it
        comparison = _look(parts, Pipeline.from_json(checkpoint.definition), now, sink)
        missing = _missing(comparison) if comparison and comparison.went_back else ""
    code, recover = error.code or WENT_BACK, f"onceonly recover {name}"
    ways_out = f"Record that it is there again: {_command(name, sink)}. Then: {recover}"
    if code != IS_BACK:
        ways_out = (
            f"Bring the target back (mount its volume, restore its newest copy), then: {recover}. If those rows are "
            f"lost: {_command(name, sink)}"
        )
    return TargetWentBack(
        f"{name} epoch {checkpoint.epoch}: sink '{sink}' was not published, because its target "
        f"{'is there again' if code == IS_BACK else 'went back'}.",
        f"{first_sentence(error)}{missing}",
        f"The decision stands and nothing was deleted. {ways_out}",
        code=code,
    )


def _went_back(state: StateTable, lost: Sequence[Comparison]) -> ActionNeeded:
    pipeline, sinks = lost[0].pipeline, [each.sink for each in lost]
    stopped = readers(state, pipeline, sinks)
    behind = f" Pipelines that read it stop as well: {', '.join(stopped)}." if stopped else ""
    return ActionNeeded(
        f"{pipeline.name}: {_targets(sinks)} {_what_happened(lost)}.",
        f"{_whys(lost)}{behind}",
        f"{_ways_out(lost)} Nothing was published.",
        code=_code(lost),
    )


def _upstream_went_back(pipeline: Pipeline, lost: Sequence[Comparison]) -> ActionNeeded:
    writer, sinks = lost[0].pipeline.name, [each.sink for each in lost]
    return ActionNeeded(
        f"{pipeline.name}: {_targets(sinks)} of '{writer}', which it reads, {_what_happened(lost)}.",
        _whys(lost),
        f"{_ways_out(lost)} Nothing was published.",
        code=_code(lost),
    )


def _not_accepted(pipeline: str, sink: str, why: str) -> TargetWentBack:
    what = f"{pipeline}: what the target of sink '{sink}' has is not recorded to its end."
    return TargetWentBack(what, why, f"Record it: {_command(pipeline, sink)}", code=IS_BACK)


def _what_happened(lost: Sequence[Comparison]) -> str:
    is_are = "is" if len(lost) == 1 else "are"
    return f"{is_are} there again" if _code(lost) == IS_BACK else "went back"


def _code(lost: Sequence[Comparison]) -> str:
    return IS_BACK if all(each.is_back for each in lost) else WENT_BACK


def _targets(sinks: Sequence[str]) -> str:
    if len(sinks) == 1:
        return f"the target of sink '{sinks[0]}'"
    return f"the targets of sinks {', '.join(map(repr, sinks))}"


def _whys(lost: Sequence[Comparison]) -> str:
    return " ".join(f"Sink '{each.sink}' ({each.last.target}): {_why(each)}" for each in lost)


def _why(comparison: Comparison) -> str:
    if comparison.is_back:
        accepted = "It was accepted that its rows are missing, and it is there again."
        return f"{accepted}{_missing(comparison)}{_found(comparison)}"
    return f"{comparison.history.why.rstrip('.')}.{_missing(comparison) or NOTHING_MISSING}{_found(comparison)}"


def _found(comparison: Comparison) -> str:
    found = comparison.found()
    return f" It shows {named(found)}, recorded as missing." if found else ""


def _ways_out(lost: Sequence[Comparison]) -> str:
    commands = ", ".join(_command(each.view.pipeline, each.sink) for each in lost)
    if all(each.is_back for each in lost):
        return f"Record that it is there again: {commands}."
    return (
        "Bring the target back (mount its volume, restore its newest copy) and run again: nothing is published "
        f"twice. If those rows are lost: {commands}."
    )


def _command(pipeline: str, sink: str) -> str:
    return f"onceonly accept-loss {pipeline} {sink} --reason …"


def _missing(comparison: Comparison) -> str:
    missing = comparison.missing()
    if not missing:
        return ""
    rows = lost_rows(missing, comparison.sink)
    counted = f" ({count(rows, 'row')})" if rows is not None else ""
    return f" Missing there: {named(missing)}{counted}."


def named(checkpoints: Sequence[Checkpoint]) -> str:
    """'epoch 5', 'epochs 5, 6', with their intervals; of many the first ones and the last one."""
    if len(checkpoints) == 1:
        return f"epoch {_named(checkpoints[0])}"
    if len(checkpoints) <= MAX_NAMED:
        return f"epochs {', '.join(map(_named, checkpoints))}"
    first = ", ".join(map(_named, checkpoints[: MAX_NAMED - 1]))
    return f"{count(len(checkpoints), 'checkpoint')}: epochs {first} … {_named(checkpoints[-1])}"


def _named(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.epoch} {checkpoint.interval}" if checkpoint.interval else str(checkpoint.epoch)


def lost_rows(checkpoints: Sequence[Checkpoint], sink: str) -> int | None:
    """How many rows are missing; None: the sink does not count them. What was replaced or taken back does not count."""
    total = 0
    for checkpoint in checkpoints:
        rows = checkpoint.handles[sink].get("rows")
        if _is_superseded(checkpoint, checkpoints):
            continue
        if rows is None:
            return None
        total += rows
    return total


def _is_superseded(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> bool:
    """Whether one of these has replaced it or taken it back: whatever does is decided later, so it is one of them."""
    for each in checkpoints:
        if each.replaces == checkpoint.epoch:
            return True
        if each.rewinds_to is not None and each.rewinds_to < checkpoint.epoch < each.epoch:
            return True
    return False


def _silent(pipeline: str, sink: str, error: Exception) -> NotCommitted:
    return NotCommitted(
        f"{pipeline}: whether the target of sink '{sink}' still has what was published to it is not known.",
        first_sentence(error),
        "Retry when the target answers. Nothing was published.",
        code=SILENT,
    )
