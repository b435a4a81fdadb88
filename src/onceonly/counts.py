"""Counts and sizes in sentences: '1 row', '6,000 rows', '1.5 MB'."""

from __future__ import annotations


def count(number: int, what: str) -> str:
    """Return the number with its unit. `what`: the unit in the singular; its plural ends in 's'."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def format_bytes(size: float) -> str:
    """Return a number of bytes in the unit that people would use."""
    if size < 1000:
        return f"{size:.0f} B"
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
