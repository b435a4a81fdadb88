"""The story of some records, sink by sink: which checkpoints have written their rows where, and what is in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import has_data
from onceonly.views import formatting, queries

if TYPE_CHECKING:
    from onceonly.statetable.table import StateTable
    from onceonly.statetable.view import View

STATE_KIND = "state"  # of a sink that holds application state, which no repair writes


class Deed(Enum):
    """What a checkpoint has done with the rows of one sink."""

    WRITTEN = "written"  # the first rows of these records there
    REPLACED = "replaced"  # in place of the rows that were in force
    ONCE_MORE = "once more"  # beside the rows that were in force
    ADDED = "added"  # by a later checkpoint, where none were in force
    KEPT = "kept"  # the rows in force stay as they are
    MISSING = "missing"  # written once; the target has lost them
    GIVEN_UP = "given up"
    ABORTED = "aborted"
    PENDING = "pending"  # not published yet: the state of the checkpoint says how far it is


LOST_DEEDS = (Deed.MISSING, Deed.GIVEN_UP)


@dataclass(frozen=True)
class Part:
    """What one checkpoint has done in one sink.

    Args:
        earlier: the epochs whose rows were in force there before.
        rows: that it has written or staged there; None: it has none, or the sink does not count them.
        later: the epoch that has replaced its rows there, or has written again what is missing; None: none has.
        lost: the last earlier epoch whose rows were lost or given up there; None: there is none.
    """

    deed: Deed
    earlier: tuple[int, ...] = ()
    rows: int | None = None
    is_in_force: bool = False
    later: int | None = None
    lost: int | None = None


@dataclass(frozen=True)
class Story:
    """All checkpoints of the same records, the oldest first, and what each has done in which sink.

    Args:
        sinks: of all of these checkpoints, and of the pipeline as it is now.
        parts: by epoch and sink. A sink in which a checkpoint has neither written nor kept anything has none.
        in_force: by sink, the epochs whose rows it shows, the oldest first; only a sink that has some.
        lacking: sinks that show no rows of these records, though another sink does.
    """

    checkpoints: tuple[Checkpoint, ...]
    sinks: tuple[str, ...]
    parts: Mapping[tuple[int, str], Part]
    in_force: Mapping[str, tuple[int, ...]]
    lacking: tuple[str, ...]

    @property
    def has_repairs(self) -> bool:
        """Whether there is more to say than a checkpoint says by itself: others, or a sink to complete."""
        return len(self.checkpoints) > 1 or bool(self.lacking)

    def find_writer(self, sink: str) -> int | None:
        """Return the epoch of the checkpoint that is under way and writes the rows of a sink; None: there is none."""
        for checkpoint in self.checkpoints:
            if not checkpoint.state.is_settled and sink in checkpoint.sinks:
                return checkpoint.epoch
        return None

    def part(self, epoch: int, sink: str) -> Part | None:
        return self.parts.get((epoch, sink))


def read_story(state_table: StateTable, checkpoint: Checkpoint) -> Story:
    """Return the story of the records of a checkpoint."""
    if checkpoint.rewinds_to is not None:  # it has taken rows back, and written none
        return Story((checkpoint,), checkpoint.definition.sink_names, {}, {}, ())
    view = state_table.view(checkpoint.pipeline)
    checkpoints = _list_checkpoints(view, checkpoint)
    latest = view.newest or checkpoint
    sinks = dict.fromkeys(latest.definition.sink_names)
    for written in checkpoints:
        sinks |= dict.fromkeys(written.definition.sink_names)
    parts: dict[tuple[int, str], Part] = {}
    in_force: dict[str, tuple[int, ...]] = {}
    is_rewound = view.is_rewound(checkpoint.epoch)
    for sink in sinks:
        epochs = () if is_rewound else _find_shown(checkpoints, sink)
        if epochs:
            in_force[sink] = epochs
        parts |= _list_parts(checkpoints, sink, epochs)
    lacking = _list_lacking(latest, checkpoints, in_force)
    return Story(tuple(checkpoints), tuple(sinks), parts, in_force, lacking)


def count_rows_in_force(committed: Checkpoint, repairs: Sequence[Checkpoint]) -> dict[str, int | None]:
    """Return by sink the rows of a checkpoint's records that are in force; None where a sink does not count them.

    Args:
        repairs: of that checkpoint, the oldest first.
    """
    by_sink = queries.rows_by_sink(committed)
    for repair in repairs:
        for sink, rows in queries.rows_by_sink(repair).items():
            if not repair.is_shown_by(sink):
                continue
            earlier = by_sink.get(sink, 0) if sink in repair.again else 0
            by_sink[sink] = None if rows is None or earlier is None else earlier + rows
    return by_sink


def describe_part(part: Part | None, checkpoint: Checkpoint) -> str:
    """Return '10 rows in place of epoch 1' or 'kept epoch 1'; empty where the checkpoint has done nothing."""
    if part is None:
        return ""
    earlier = f"epoch {', '.join(map(str, part.earlier))}"
    if part.deed is Deed.KEPT:
        return f"{'kept' if checkpoint.state.is_settled else 'keeps'} {earlier}"
    rows = "rows" if part.rows is None else formatting.count_rows({"": part.rows})
    if part.deed is Deed.PENDING:
        state = formatting.state(checkpoint)
        return state if part.rows is None else f"{state}: {rows}"
    added = "added" if part.lost is None else "written again"
    words = {
        Deed.WRITTEN: rows,
        Deed.REPLACED: f"{rows} in place of {earlier}",
        Deed.ONCE_MORE: f"{rows} once more, beside {earlier}",
        Deed.ADDED: f"{rows} {added}",
        Deed.MISSING: f"{rows} lost by the target",
        Deed.GIVEN_UP: "given up, not published",
        Deed.ABORTED: "aborted",
    }
    text = words[part.deed]
    if part.later is None:
        return text
    what = "written again" if part.deed in LOST_DEEDS else "replaced"
    return f"{text}; {what} by epoch {part.later}"


def how_to_complete(story: Story) -> str:
    """Say how the sinks get their rows that lack them; empty where none does, or a checkpoint is under way for it."""
    waiting = [sink for sink in story.sinks if story.find_writer(sink) is None]
    lost = [sink for sink in waiting if (sink in story.lacking or sink in story.in_force) and _has_lost(story, sink)]
    advice = [f"Write again what it lacks: onceonly repair FILE.py:NAME {sink} --reason …" for sink in lost]
    new = [sink for sink in waiting if sink in story.lacking and sink not in lost]
    return " ".join([*advice, _how_to_add(story, new)]).strip()


def list_lost(story: Story) -> list[str]:
    """List the sinks that show the rows of an earlier checkpoint, because they have lost the last ones."""
    return [sink for sink in story.sinks if sink in story.in_force and _has_lost(story, sink)]


def _has_lost(story: Story, sink: str) -> bool:
    """Whether the last rows that were decided for the sink are not there."""
    parts = [story.part(checkpoint.epoch, sink) for checkpoint in story.checkpoints]
    decided = [part.deed for part in parts if part and part.deed not in (Deed.KEPT, Deed.ABORTED, Deed.PENDING)]
    return decided[-1:] != [] and decided[-1] in LOST_DEEDS


def _how_to_add(story: Story, lacking: Sequence[str]) -> str:
    if not lacking:
        return ""
    interval, epoch = story.checkpoints[0].interval, story.checkpoints[0].origin
    if interval is None:
        which = f"--epoch {epoch}"
    else:
        which = f"--interval {queries.iso(interval.start)} {queries.iso(interval.end)}"
    only = " ".join(f"--only {sink}" for sink in lacking)
    return f"Complete it: onceonly run FILE.py:NAME {which} {only} --reason …"


def story_json(story: Story) -> dict[str, Any]:
    """Return the keys "story", "in_force" and "lacking" of a checkpoint's JSON."""
    entries = []
    for checkpoint in story.checkpoints:
        parts = {}
        for sink in story.sinks:
            part = story.part(checkpoint.epoch, sink)
            if part:
                parts[sink] = {
                    "did": part.deed.value,
                    "earlier": list(part.earlier),
                    "rows": part.rows,
                    "in_force": part.is_in_force,
                }
        entries.append(
            {
                "epoch": checkpoint.epoch,
                "state": checkpoint.state.value,
                "planned_at": queries.iso(checkpoint.planned_at),
                "requested_by": dict(checkpoint.requested_by) or None,
                "continued_by": list(map(dict, checkpoint.continued_by)),
                "sinks": parts,
            }
        )
    in_force = {sink: list(epochs) for sink, epochs in story.in_force.items()}
    return {"story": entries, "in_force": in_force, "lacking": list(story.lacking)}


def describe_done(state_table: StateTable, checkpoint: Checkpoint, request: str, only: Sequence[str]) -> str:
    """Say why a request for some sinks has nothing to do; empty where that has another reason.

    Args:
        checkpoint: what the plan has come to.
        request: its name, by which it is done once.
        only: the sinks that it completes; empty: it replaces rows, or has them come once more.
    """
    story = read_story(state_table, checkpoint)
    for earlier in reversed(story.checkpoints):
        if earlier.requested_by and earlier.request == request and earlier.state is State.COMMITTED:
            names = ", ".join(earlier.sinks)
            return f"this request is done, by epoch {earlier.epoch} ({names}); another reason makes another request"
    places = [f"'{sink}' (epoch {story.in_force[sink][-1]})" for sink in only if sink in story.in_force]
    if not places or len(places) < len(only):
        return ""
    return f"the rows are already in {', '.join(places)}"


def _list_checkpoints(view: View, checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return the checkpoints of the same records, the oldest first."""
    if checkpoint.interval is not None:
        planned = view.planned_for(checkpoint.interval)
        return [other for other in planned if other.interval == checkpoint.interval]
    return [view.require(checkpoint.origin), *view.repairs_of(checkpoint.origin)]


def _find_shown(checkpoints: Sequence[Checkpoint], sink: str) -> tuple[int, ...]:
    """Return the epochs whose rows a sink shows: the last ones, and those beside which they came once more."""
    epochs = []
    for checkpoint in reversed(checkpoints):
        if checkpoint.is_shown_by(sink):
            epochs.append(checkpoint.epoch)
            if sink not in checkpoint.again:
                break
    return tuple(reversed(epochs))


def _list_parts(checkpoints: Sequence[Checkpoint], sink: str, in_force: tuple[int, ...]) -> dict[tuple[int, str], Part]:
    """Return by epoch and sink what each checkpoint has done in this one."""
    parts = {}
    for number, checkpoint in enumerate(checkpoints):
        earlier = _find_shown(checkpoints[:number], sink)
        if sink in checkpoint.sinks:
            rows = queries.rows_by_sink(checkpoint).get(sink)
            is_in_force = checkpoint.epoch in in_force
            deed, later = _find_deed(checkpoint, sink, earlier), None
            if not is_in_force and deed not in (Deed.ABORTED, Deed.PENDING):
                later = _find_later(checkpoints[number + 1 :], sink, deed)
            lost = _find_lost(checkpoints[:number], sink)
            parts[checkpoint.epoch, sink] = Part(deed, earlier, rows, is_in_force, later, lost)
        elif checkpoint.is_repair and earlier and checkpoint.state is not State.ABORTED:
            parts[checkpoint.epoch, sink] = Part(Deed.KEPT, earlier)
    return parts


def _find_later(later: Sequence[Checkpoint], sink: str, deed: Deed) -> int | None:
    """Find the epoch whose rows have come in place of these; what came beside others is in place of lost rows."""
    for checkpoint in later:
        if checkpoint.is_shown_by(sink) and (sink not in checkpoint.again or deed in LOST_DEEDS):
            return checkpoint.epoch
    return None


def _find_lost(earlier: Sequence[Checkpoint], sink: str) -> int | None:
    for checkpoint in reversed(earlier):
        if sink in checkpoint.missing or sink in checkpoint.given_up:
            return checkpoint.epoch
    return None


def _find_deed(checkpoint: Checkpoint, sink: str, earlier: tuple[int, ...]) -> Deed:
    if sink in checkpoint.missing:
        return Deed.MISSING
    if sink in checkpoint.given_up:
        return Deed.GIVEN_UP
    if checkpoint.state is State.ABORTED:
        return Deed.ABORTED
    if sink not in checkpoint.published and (checkpoint.handles or not checkpoint.state.is_settled):
        return Deed.PENDING
    if sink in checkpoint.again:
        return Deed.ONCE_MORE
    if earlier:
        return Deed.REPLACED
    return Deed.WRITTEN if checkpoint.replaces is None else Deed.ADDED


def _list_lacking(
    latest: Checkpoint, checkpoints: Sequence[Checkpoint], in_force: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Return the sinks of the pipeline as it is now that show no rows, though others do; none that keeps state."""
    if not in_force or not has_data(checkpoints[0].ranges):
        return ()
    sinks = latest.definition.json["sinks"]
    return tuple(sink["name"] for sink in sinks if sink["name"] not in in_force and sink["kind"] != STATE_KIND)
