"""A step is one look at, or one change of, something that processes share; between two steps a process is alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
BEFORE, AFTER = "fails before", "fails after"  # answers to a step other than its own: nothing was done, or it was
NEVER, EITHER = (), (BEFORE, AFTER)


@dataclass(frozen=True)
class Point:
    """The step that an actor takes next.

    Args:
        what: in words.
        faults: how it may fail.
    """

    what: str
    faults: tuple[str, ...] = NEVER


class Endless(BaseException):
    """An actor takes more steps than any that ends."""


class Steps:
    """Where actors wait for their turn. Without a scheduler each step is taken at once."""

    def __init__(self) -> None:
        self.actor = "setup"
        self.pace: Callable[[Point], str] | None = None  # gives the turn away; returns how the step is answered
        self.saw: Callable[[Hashable], None] | None = None  # is told what an actor has learned
        self._made: dict[str, int] = {}

    def take(
        self,
        what: str,
        effect: Callable[[], T],
        faults: tuple[str, ...] = NEVER,
        error: Callable[[str], Exception] = ConnectionError,
        seen: Callable[[T], Hashable] = repr,
    ) -> T:
        """Do `effect` as one step of the current actor; what it returns (or raises) is what the actor learns."""
        answer = self.pace(Point(what, faults)) if self.pace else "done"
        if answer == BEFORE:
            self._tell((what, answer))
            raise error(f"broken off before: {what}")
        try:
            result = effect()
        except Exception as raised:
            self._tell((what, repr(raised)))
            raise
        if answer == AFTER:
            self._tell((what, answer))
            raise error(f"broken off after: {what}")
        self._tell((what, seen(result)))
        return result

    def _tell(self, learned: Hashable) -> None:
        if self.saw:
            self.saw(learned)

    def fresh(self) -> str:
        """A name that no other actor makes, and that does not depend on who else is at work."""
        number = self._made[self.actor] = self._made.get(self.actor, 0) + 1
        return f"{number}{self.actor}"


class Made:
    """What takes the place of a random uuid."""

    def __init__(self, name: str) -> None:
        self.hex = name

    def __str__(self) -> str:
        return self.hex


def of(result: Any) -> Hashable:
    """For steps of which the actor learns nothing but that they were done."""
    return None
