"""Errors of Spark's workers: Spark passes on their text alone, and the stage raises what they were."""

from __future__ import annotations

import pytest

from onceonly import errors
from onceonly.errors import OnceonlyError
from onceonly.sinks.staging.worker_errors import find_worker_error, worker_error

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OnceonlyError)]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_a_worker_keeps_class_texts_and_code(kind: type[OnceonlyError]) -> None:
    raised = kind('a "row"\nof two lines', "why {not}", "do this", code="row-not-accepted")
    text = f"An error occurred while calling o72.collect.\n{worker_error(raised)}\n\tat A.java"
    rebuilt = find_worker_error(text)
    assert type(rebuilt) is kind
    assert rebuilt is not None
    assert (rebuilt.what, rebuilt.why, rebuilt.todo, rebuilt.code) == (
        raised.what,
        raised.why,
        raised.todo,
        raised.code,
    )
