"""The result of judging rows by one expectation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from onceonly.counts import count

MAX_SHOWN_VALUES = 20


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
            limit_samples(samples),
        )

    def to_result(self, mostly: Fraction) -> Judged:
        judged_rows = self.rows - self.missing
        ok = not judged_rows or Fraction(judged_rows - self.unexpected, judged_rows) >= mostly
        values: list[str] = []
        for value, times in self.samples:
            values += [value] * min(times, MAX_SHOWN_VALUES)
        details = {
            "element_count": self.rows,
            "unexpected_count": self.unexpected,
            "unexpected_percent": _percent(self.unexpected, judged_rows),
            "partial_unexpected_list": values[:MAX_SHOWN_VALUES],
            "missing_count": self.missing,
            "missing_percent": _percent(self.missing, self.rows),
            "unexpected_percent_total": _percent(self.unexpected, self.rows),
            "unexpected_percent_nonmissing": _percent(self.unexpected, judged_rows),
            "partial_unexpected_counts": [{"value": value, "count": times} for value, times in self.samples],
        }
        return Judged(ok, f"{self.unexpected:,} of {count(self.rows, 'row')}", details)


def limit_samples(samples: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Return the samples that are shown: the first ones by their text, however the rows were split."""
    return tuple(sorted(samples.items())[:MAX_SHOWN_VALUES])


def figure_result(ok: bool, observed: Any, is_value: bool = False) -> Judged:
    """Return the result for one figure.

    Args:
        observed: as a person reads it; None: there are no rows of which it could be.
        is_value: it is the value of a row, and no number.
    """
    if observed is None:
        text = "none"
    elif is_value:
        text = "see Data Docs"
    else:
        text = str(observed)
    return Judged(ok, text, {"observed_value": observed})


def values_result(ok: bool, values: Sequence[str], summary: str) -> Judged:
    """Return the result for several values of rows."""
    return Judged(ok, summary, {"observed_value": list(values)})


def _percent(part: int, total: int) -> float | None:
    return part / total * 100 if total else None
