"""What it means that a service does not answer, where nothing is published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceonly.errors import NotCommitted, OutcomeUnknown


@contextmanager
def nothing_published() -> Iterator[None]:
    """Raise NotCommitted in place of OutcomeUnknown: what is done in the block publishes nothing, as in `stage`."""
    try:
        yield
    except OutcomeUnknown as error:
        todo = "Nothing was published. Try again when the target can be reached."
        raise NotCommitted(error.what, error.why, todo, error.code) from error
