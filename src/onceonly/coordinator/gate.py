"""The gate between stage and commit: one verdict per attempt, and what may follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Findings, Parts
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import because, fenced, how_to_settle, require_attempt
from onceonly.errors import GateFailed, GateHeld, InvalidPipeline, NotCommitted, OnceonlyError, first_sentence
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.transitions import Transitions
from onceonly.statetable.view import View

SHOWN = 3  # failed checks that an error names


class Gatekeeper:
    """Has staged rows examined, and records the verdict, or the approval of what the gate holds."""

    def __init__(self, transitions: Transitions, parts: Parts) -> None:
        self._transitions, self._parts = transitions, parts

    def examine(self, name: str, epoch: int, by: str, attempt: int | None = None) -> Checkpoint:
        """The checkpoint with a verdict on its current attempt: the one that is recorded first, whoever asks.

        Args:
            attempt: the only one to examine; None: whichever is current.

        Raises:
            NotCommitted: nothing is staged.
            Fenced: it was aborted, or staged again, meanwhile.
        """
        seen = self._transitions.state.view(name).require(epoch)
        require_attempt(seen, attempt)
        if seen.gate is None or seen.verdict or seen.state in (State.COMMITTING, State.COMMITTED):
            return seen
        _check_staged(seen)
        inspector = self._parts.inspector(Pipeline.from_json(seen.definition))
        try:
            examined = inspector.examine(seen)
        except Exception as error:
            now = self._current(self._transitions.state.view(name), seen)  # what failed may be its abort
            if now.verdict:
                return now
            raise _classified(error, seen) from error
        judged = self._record(seen, examined, by)
        if judged.verdict != _body(examined, by):
            inspector.forget(examined)
        return judged

    def _record(self, seen: Checkpoint, examined: Findings, by: str) -> Checkpoint:
        def decide(view: View) -> Row | None:
            if self._current(view, seen).verdict:
                return None
            return view.row(seen.epoch, Event.VERDICT, seen.attempt, body=_body(examined, by))

        return self._transitions.change(seen.pipeline, decide).require(seen.epoch)

    def _current(self, view: View, seen: Checkpoint) -> Checkpoint:
        """It as it is now; a verdict counts for the rows that were examined and for no others."""
        now = view.require(seen.epoch)
        if now.attempt != seen.attempt or (now.state is not State.STAGED and not now.verdict):
            raise fenced(now, f"attempt {now.attempt} is current and attempt {seen.attempt} was examined")
        return now

    def approve(self, name: str, epoch: int, who: str, reason: str, seen: Seen | None) -> Checkpoint:
        """Record the approval of what the gate failed; the first one counts.

        Raises:
            InvalidPipeline: it is not held, or has changed since the person looked.
        """
        action = Action.on_checkpoint(Event.APPROVED, epoch, who, reason, seen)

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if now.approved and now.state is not State.ABORTING:
                return None
            if not now.held:
                raise _not_held(now)
            return view.row(epoch, Event.APPROVED, now.attempt, body=action.body)

        return self._transitions.change(name, action.guard(decide)).require(epoch)


def require(checkpoint: Checkpoint) -> None:
    """Refuse what the gate has not let through.

    Raises:
        GateFailed: it failed the attempt, and nobody has approved it.
        NotCommitted: there is no verdict yet.
    """
    name = f"{checkpoint.pipeline} epoch {checkpoint.epoch}"
    if checkpoint.gate is None or checkpoint.approved:
        return
    if checkpoint.verdict is None:
        raise NotCommitted(
            f"{name} cannot be published yet.",
            "Its pipeline has a gate, and there is no verdict on what is staged.",
            f"Clear the gate task, or, when the run has ended: onceonly recover {checkpoint.pipeline}",
        )
    if checkpoint.verdict["outcome"] == "failed":
        failed = GateHeld if checkpoint.held else GateFailed
        raise failed(
            f"{name}: the gate failed the staged rows of attempt {checkpoint.attempt}. Nothing was published.",
            _in_a_line(checkpoint.verdict),
            _what_to_do(checkpoint),
        )


def failed_checks(verdict: Mapping[str, Any]) -> list[str]:
    """The checks that are not ok, critical ones first: "sink 'delays': carrier is not null (3 of 40 rows)"."""
    found = [
        (each["severity"] != "critical", f"sink '{sink}': {each['what']} ({each['observed']})")
        for sink, examined in verdict.get("sinks", {}).items()
        for each in examined["checks"]
        if not each["ok"]
    ]
    return [words for _, words in sorted(found, key=lambda pair: pair[0])]


def _in_a_line(verdict: Mapping[str, Any]) -> str:
    """The failed checks in one line, at most SHOWN of them."""
    lines = failed_checks(verdict)
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return "; ".join(lines[:SHOWN]) + more + ("." if lines else "")


def outcome(checks: Iterable[Mapping[str, Any]]) -> str:
    """'failed' by one critical check; a warning lets the rows through and is shown."""
    severities = {each["severity"] for each in checks if not each["ok"]}
    return "failed" if "critical" in severities else "warning" if "warning" in severities else "passed"


def _body(examined: Findings, by: str) -> dict[str, Any]:
    checks = [each for sink in examined.sinks.values() for each in sink["checks"]]
    return {"outcome": outcome(checks), "sinks": dict(examined.sinks), "docs": examined.docs, "by": by}


def _check_staged(checkpoint: Checkpoint) -> None:
    if checkpoint.state is not State.STAGED:
        raise NotCommitted(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch} has nothing that its gate could examine.",
            f"It is {checkpoint.state.value}, not staged{because(checkpoint)}.",
            f"Stage it again: clear its stage task. onceonly describe {checkpoint.pipeline} {checkpoint.epoch}",
        )


def _classified(error: Exception, checkpoint: Checkpoint) -> OnceonlyError:
    """Examining publishes nothing, so any error of it is surely "not committed"."""
    if isinstance(error, OnceonlyError):
        return error
    return NotCommitted(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: its gate could not examine what is staged.",
        first_sentence(error)[:500],
        "There is no verdict and nothing was published. Fix the cause and run the gate again.",
    )


def _what_to_do(checkpoint: Checkpoint) -> str:
    where = checkpoint.verdict and checkpoint.verdict["docs"]
    look = f"Look: {where}\n" if where else ""
    if checkpoint.held:
        return look + how_to_settle(checkpoint)
    return f"{look}Fix the data, the transform or the suite and run it again: it uses the same offsets."


def _not_held(checkpoint: Checkpoint) -> InvalidPipeline:
    outcome = checkpoint.verdict["outcome"] if checkpoint.verdict else "none"
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} does not wait for an approval.",
        f"It is {checkpoint.state.value}, its verdict: {outcome}. Only what a gate failed with on_fail='hold' does.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
    )
