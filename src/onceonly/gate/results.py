"""What is found by judging rows by one expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from onceonly.counts import count

SHOWN_VALUES = 20


@dataclass(frozen=True)
class Judged:
    """The result of one expectation.

    Args:
        observed: figures only: values of rows are not copied to where every user can see them.
        details: plain JSON, as Great Expectations' pages show it.
    """

    ok: bool
    observed: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """How many rows, or values, there are, and which are unexpected. `missing`: those that are not judged."""

    rows: int = 0
    missing: int = 0
    unexpected: int = 0
    samples: tuple[tuple[str, int], ...] = ()  # as people read them, and how often

    def plus(self, other: Tally) -> Tally:
        samples = Counter(dict(self.samples))
        samples.update(dict(other.samples))
        return Tally(
            self.rows + other.rows,
            self.missing + other.missing,
            self.unexpected + other.unexpected,
            chosen(samples),
        )

    def judged(self, mostly: Fraction) -> Judged:
        judged_rows = self.rows - self.missing
        ok = not judged_rows or Fraction(judged_rows - self.unexpected, judged_rows) >= mostly
        values = [value for value, times in self.samples for _ in range(times)][:SHOWN_VALUES]
        details = {
            "element_count": self.rows,
            "unexpected_count": self.unexpected,
            "unexpected_percent": _percent(self.unexpected, judged_rows),
            "partial_unexpected_list": values,
            "missing_count": self.missing,
            "missing_percent": _percent(self.missing, self.rows),
            "unexpected_percent_total": _percent(self.unexpected, self.rows),
            "unexpected_percent_nonmissing": _percent(self.unexpected, judged_rows),
            "partial_unexpected_counts": [{"value": value, "count": times} for value, times in self.samples],
        }
        return Judged(ok, f"{self.unexpected:,} of {count(self.rows, 'row')}", details)


def chosen(samples: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Return those that are shown: the first ones by their text, however the rows were split."""
    return tuple(sorted(samples.items())[:SHOWN_VALUES])


def figure(ok: bool, observed: Any, is_value: bool = False) -> Judged:
    """Return the result for one figure.

    Args:
        observed: as a person reads it; None: there are no rows of which it could be.
        is_value: it is the value of a row, and no number.
    """
    shown = "none" if observed is None else str(observed)
    return Judged(ok, "see Data Docs" if is_value and observed is not None else shown, {"observed_value": observed})


def listed(ok: bool, values: Sequence[str], summary: str) -> Judged:
    """Return the result for several values of rows."""
    return Judged(ok, summary, {"observed_value": list(values)})


def _percent(part: int, whole: int) -> float | None:
    return part / whole * 100 if whole else None
