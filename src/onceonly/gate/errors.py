"""Why an expectation cannot be judged."""

from __future__ import annotations


class Unjudgeable(Exception):
    """No rows of this type can be judged by the expectation, or no rows at all; the text says why."""


class WrongKind(Unjudgeable):
    """The expectation judges columns of other types."""
