"""What a probe has seen of each promise, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from onceonly.redaction import hide_credentials

MAX_WORDS = 300  # characters of an error of another library


class Verdict(Enum):
    """Of one promise."""

    KEPT = "kept"
    BROKEN = "broken"
    UNTRIED = "could not be tried"


@dataclass(frozen=True)
class Promise:
    """What Onceonly needs of a place.

    Args:
        name: a stable word, for programs.
        means: what has to hold, for people.
    """

    name: str
    means: str


@dataclass(frozen=True)
class Observation:
    """What one try of a promise has shown.

    Args:
        breach: what broke the promise; empty: it was kept.
        error: why nothing was shown; empty: the try was completed.
        figure: a number that was measured, such as a difference of clocks in seconds.
    """

    promise: str
    breach: str = ""
    error: str = ""
    figure: float | None = None


@dataclass
class Tally:
    """The observations of one promise, counted."""

    tries: int = 0
    breaches: int = 0
    first_breach: str = ""
    errors: int = 0
    first_error: str = ""
    figures: list[float] = field(default_factory=list)

    def add(self, observation: Observation) -> None:
        if observation.error:
            self.errors += 1
            self.first_error = self.first_error or shorten(observation.error)
            return
        self.tries += 1
        if observation.figure is not None:
            self.figures.append(observation.figure)
        if observation.breach:
            self.breaches += 1
            self.first_breach = self.first_breach or shorten(observation.breach)

    @property
    def verdict(self) -> Verdict:
        if self.breaches:
            return Verdict.BROKEN
        return Verdict.KEPT if self.tries else Verdict.UNTRIED

    def describe(self) -> str:
        """Return what was seen, in a sentence."""
        if not self.tries:
            return self.first_error
        words = "1 try" if self.tries == 1 else f"{self.tries:,} tries"
        if self.breaches:
            words = f"{self.breaches:,} of {words}: {self.first_breach}"
        if self.errors:
            words += f"; {self.errors} without an answer: {self.first_error}"
        return words


class Tallies:
    """The observations of one probe, by promise."""

    def __init__(self) -> None:
        self._by_promise: dict[str, Tally] = {}

    def add(self, observations: Iterable[Observation]) -> None:
        for observation in observations:
            self._by_promise.setdefault(observation.promise, Tally()).add(observation)

    def has_errors(self, promise: str) -> bool:
        """Return whether a try of the promise has shown nothing."""
        return promise in self._by_promise and self._by_promise[promise].errors > 0

    def to_json(self) -> dict[str, Any]:
        return {name: vars(tally) for name, tally in self._by_promise.items()}


def read_tallies(data: Mapping[str, Any]) -> dict[str, Tally]:
    """Return what `Tallies.to_json` has made, which may come from another process."""
    return {name: Tally(**fields) for name, fields in data.items()}


@dataclass(frozen=True)
class Finding:
    """One line of a report."""

    promise: Promise
    seen: str
    verdict: Verdict

    def to_json(self) -> dict[str, str]:
        return {
            "promise": self.promise.name,
            "means": self.promise.means,
            "seen": self.seen,
            "verdict": self.verdict.value,
        }


def list_broken(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.verdict is Verdict.BROKEN]


def shorten(words: str) -> str:
    """Return the first line of another library's error, without credentials in addresses."""
    first_line = next(iter(words.strip().splitlines()), "")
    return str(hide_credentials(first_line))[:MAX_WORDS]
