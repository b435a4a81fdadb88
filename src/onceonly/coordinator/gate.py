"""The gate between stage and commit: one verdict per attempt, and what may follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onceonly.checkpoint.commands import how_to_run
from onceonly.checkpoint.data_docs import find_address
from onceonly.checkpoint.interfaces import Findings, Parts
from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.coordinator.manual import Action, Seen
from onceonly.coordinator.messages import fenced_error, how_to_settle, reason_in_brackets, require_attempt
from onceonly.errors import GateFailed, GateHeld, InvalidPipeline, NotCommitted, OnceonlyError, first_sentence
from onceonly.statetable.table import Transitions
from onceonly.statetable.view import View

MAX_CHECKS_NAMED = 3  # failed ones, in an error


class Gatekeeper:
    """Has staged rows examined, and records the verdict, or the approval of what the gate holds."""

    def __init__(self, transitions: Transitions, parts: Parts) -> None:
        self._transitions, self._parts = transitions, parts

    def examine(self, name: str, epoch: int, by: str, attempt: int | None = None) -> Checkpoint:
        """Return the checkpoint with a verdict on its current attempt: the one that is recorded first, whoever asks."""
        checkpoint = self._transitions.state_table.view(name).require(epoch)
        require_attempt(checkpoint, attempt)
        if checkpoint.gate is None or checkpoint.verdict or checkpoint.state in (State.COMMITTING, State.COMMITTED):
            return checkpoint
        _check_staged(checkpoint)
        inspector = self._parts.inspector(checkpoint.definition.pipeline)
        try:
            findings = inspector.examine(checkpoint)
        except Exception as error:
            now = self._current(self._transitions.state_table.view(name), checkpoint)  # what failed may be its abort
            if now.verdict:
                return now
            raise _classify_error(error, checkpoint) from error
        now = self._record(checkpoint, findings, by)
        if now.verdict != _body(findings, by):
            inspector.forget(findings)
        return now

    def _record(self, checkpoint: Checkpoint, findings: Findings, by: str) -> Checkpoint:
        def decide(view: View) -> Row | None:
            if self._current(view, checkpoint).verdict:
                return None
            return view.row(checkpoint.epoch, Event.VERDICT, checkpoint.attempt, body=_body(findings, by))

        return self._transitions.change(checkpoint.pipeline, decide).require(checkpoint.epoch)

    def _current(self, view: View, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint as it is now; a verdict counts for the rows that were examined and for no others.

        Raises:
            Fenced: another attempt is current, or it is neither staged nor judged.
        """
        now = view.require(checkpoint.epoch)
        if now.attempt != checkpoint.attempt or (now.state is not State.STAGED and not now.verdict):
            raise fenced_error(now, f"attempt {now.attempt} is current and attempt {checkpoint.attempt} was examined")
        return now

    def approve(self, name: str, epoch: int, who: str, reason: str, seen: Seen | None) -> Checkpoint:
        """Record the approval of what the gate failed; the first one counts."""
        action = Action.on_checkpoint(Event.APPROVED, epoch, who, reason, seen)

        def decide(view: View) -> Row | None:
            now = view.require(epoch)
            if now.approved and now.state is not State.ABORTING:
                return None
            if not now.is_held:
                raise _not_held_error(now)
            return view.row(epoch, Event.APPROVED, now.attempt, body=action.body)

        return self._transitions.change(name, action.guard(decide)).require(epoch)


def require_passed(checkpoint: Checkpoint) -> None:
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
            f"Clear the gate task in Airflow, or, when the run has ended: onceonly recover {checkpoint.pipeline}",
            code="verdict-missing",
        )
    if checkpoint.verdict["outcome"] == "failed":
        what = f"{name}: the gate failed the staged rows of attempt {checkpoint.attempt}. Nothing was published."
        why, todo = _join_failed_checks(checkpoint.verdict), _what_to_do(checkpoint)
        if checkpoint.is_held:
            raise GateHeld(what, why, todo, code="gate-held")
        raise GateFailed(what, why, todo, code="gate-failed")


def list_failed_checks(verdict: Mapping[str, Any]) -> list[str]:
    """List the checks that are not ok, critical ones first: "sink 'delays': carrier is not null (3 of 40 rows)"."""
    critical: list[str] = []
    warnings: list[str] = []
    for sink, examined in verdict.get("sinks", {}).items():
        for check in examined["checks"]:
            if check["ok"]:
                continue
            words = f"sink '{sink}': {check['what']} ({check['observed']})"
            if check["severity"] == "critical":
                critical.append(words)
            else:
                warnings.append(words)
    return critical + warnings


def _join_failed_checks(verdict: Mapping[str, Any]) -> str:
    """Write the failed checks in one line, at most MAX_CHECKS_NAMED of them."""
    checks = list_failed_checks(verdict)
    if not checks:
        return ""
    more = ""
    if len(checks) > MAX_CHECKS_NAMED:
        more = f"; and {len(checks) - MAX_CHECKS_NAMED} more"
    return "; ".join(checks[:MAX_CHECKS_NAMED]) + more + "."


def classify_checks(checks: Iterable[Mapping[str, Any]]) -> str:
    """Return 'failed' for one critical check, 'warning' for a warning, which lets the rows through, else 'passed'."""
    severities = {check["severity"] for check in checks if not check["ok"]}
    if "critical" in severities:
        return "failed"
    if "warning" in severities:
        return "warning"
    return "passed"


def _body(findings: Findings, by: str) -> dict[str, Any]:
    checks: list[Mapping[str, Any]] = []
    for sink in findings.sinks.values():
        checks += sink["checks"]
    return {"outcome": classify_checks(checks), "sinks": dict(findings.sinks), "docs": findings.docs, "by": by}


def _check_staged(checkpoint: Checkpoint) -> None:
    if checkpoint.state is not State.STAGED:
        raise NotCommitted(
            f"{checkpoint.pipeline} epoch {checkpoint.epoch} has nothing that its gate could examine.",
            f"It is {checkpoint.state.value}, not staged{reason_in_brackets(checkpoint)}.",
            f"Stage it again: {how_to_run(checkpoint)}",
            code="not-staged",
        )


def _classify_error(error: Exception, checkpoint: Checkpoint) -> OnceonlyError:
    """Return the error of an examination: it publishes nothing, so any error of it is surely "not committed"."""
    if isinstance(error, OnceonlyError):
        return error
    return NotCommitted(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}: its gate could not examine what is staged.",
        first_sentence(error)[:500],
        "There is no verdict and nothing was published. Fix the cause, then clear the gate task in Airflow, or, when "
        f"the run has ended: onceonly recover {checkpoint.pipeline}",
        code="gate-not-run",
    )


def _what_to_do(checkpoint: Checkpoint) -> str:
    where, look = find_address(checkpoint), ""
    if where:
        look = f"Look: {where}\n"
    if checkpoint.is_held:
        return f"{look}{how_to_settle(checkpoint)}. A gate task that is cleared alone repeats this verdict."
    again = f"Then run it again from its stage on, with the same offsets: {how_to_run(checkpoint)}"
    return f"{look}Fix the data, the transform or the suite. {again}. The gate alone would repeat this verdict."


def not_approved_error(checkpoint: Checkpoint) -> InvalidPipeline:
    """Return the error of a request to publish, as approved, what nobody has approved."""
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch}, attempt {checkpoint.attempt}: nobody has approved it.",
        "Only what a person has approved is published on that person's behalf.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
        code="not-approved",
    )


def _not_held_error(checkpoint: Checkpoint) -> InvalidPipeline:
    outcome = "none"
    if checkpoint.verdict:
        outcome = checkpoint.verdict["outcome"]
    return InvalidPipeline(
        f"{checkpoint.pipeline} epoch {checkpoint.epoch} does not wait for an approval.",
        f"It is {checkpoint.state.value}, its verdict: {outcome}. Only what a gate failed with on_fail='hold' does.",
        f"Look first: onceonly describe {checkpoint.pipeline} {checkpoint.epoch}. Nothing was changed.",
        code="not-held",
    )
