"""What an action has made of a checkpoint, in one wording for commands and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import descriptions, formatting, queries

NOTHING_TO_SETTLE = "Nothing to settle: every checkpoint is committed or aborted."
PLAIN, STATE, WAITS, ASIDE = "plain", "state", "waits", "aside"  # how a part of the text is shown


def describe_change(was: str, checkpoint: Checkpoint) -> str:
    """Return 'flights epoch 7: held → committed, 6,000 rows'.

    Args:
        was: the state before, as people see it.
    """
    return "".join(text for text, _ in list_parts(queries.to_json(checkpoint) | {"was": was}))


def list_parts(change: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the parts of `describe_change`, each with how it is shown.

    Args:
        change: the JSON of a checkpoint as it is now, and in "was" the state before.
    """
    state = State(change["state"])
    yield f"{change['pipeline']} epoch {change['epoch']}: {_state_before(change)}", PLAIN
    if change["was"] != change["state"]:
        yield " → ", PLAIN
        yield change["state"], STATE
    elif not state.is_settled:
        yield _why_it_waits(state, change), WAITS
    if state is State.COMMITTED:
        yield f", {formatting.count_rows(change['rows_by_sink'])}", PLAIN
    if state is State.ABORTED and change["reason"]:
        yield f" ({change['reason']})", ASIDE


def _state_before(change: Mapping[str, Any]) -> str:
    if change["held"]:
        return formatting.HELD
    if change["refused"]:
        return formatting.REFUSED
    return str(change["was"])


def _why_it_waits(state: State, change: Mapping[str, Any]) -> str:
    if state is State.COMMITTING:
        return f" still, waiting for {', '.join(change['waiting'])}"
    if change["held"]:
        decide = descriptions.how_to_decide(change["pipeline"], change["epoch"], change["seen"])
        return f" still: its gate failed it. Decide: {decide}"
    if change["refused"]:
        look = f"onceonly describe {change['pipeline']} {change['epoch']}"
        return f" still: sink '{change['refused']['sink']}' refuses it until a person acts. Look: {look}"
    owner = formatting.owner(change["owner"])
    return f" still: its owner ({owner}) is running, or may be; use --force if you know that it has ended"
