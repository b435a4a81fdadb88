"""What the last verification of each pipeline has found, in one line. Where it cannot be read, nothing is said."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from onceonly.counts import count
from onceonly.views import formatting
from onceonly.views.queries import iso

if TYPE_CHECKING:
    from onceonly.verification.archive import LastResult


def read_last_results(state_uri: str) -> dict[str, LastResult]:
    """Return by pipeline what its last verification has found; empty where the table of results cannot be read."""
    from onceonly.verification.archive import Archive

    try:
        return Archive(state_uri).read_summaries()
    except Exception:  # it is for display: whoever verifies is told
        return {}


def describe(result: LastResult) -> str:
    """Return 'verified right until 2026-11-27 12:00:00 UTC, checked 2 d ago: 3 checkpoints wrong'."""
    until = "not verified right from the beginning"
    if result.right_until:
        until = f"verified right until {formatting.clock(result.right_until.astimezone(UTC))} UTC"
    text = f"{until}, checked {formatting.age(result.at)} ago"
    if result.wrong_count:
        return f"{text}: {count(result.wrong_count, 'checkpoint')} wrong"
    if result.judgement == "wrong":
        return f"{text}: something is wrong"
    if result.unknown_count:
        return f"{text}: of {count(result.unknown_count, 'checkpoint')} it can no longer be known"
    return text


def to_json(result: LastResult | None) -> dict[str, Any] | None:
    """Return the last verification for programs; None: there was none."""
    if result is None:
        return None
    return {"at": iso(result.at), "judgement": result.judgement, "right_until": _iso(result.right_until)}


def _iso(time: datetime | None) -> str | None:
    return iso(time) if time else None
