"""Counts in sentences: '1 row', '6,000 rows'."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """Return the number with its unit. `what`: the unit in the singular; its plural ends in 's'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
