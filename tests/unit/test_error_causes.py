"""What people are told of an error of another library is its cause, and never the name of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.world import World

from onceonly.errors import InvalidPipeline, OnceonlyError, first_sentence

CALL = "An error occurred while calling"


class Py4JJavaError(Exception):
    pass


SAVE = Py4JJavaError(f"{CALL} o72.save.\n: java.io.IOException: No space left\n\tat java.base/java.io.File\n")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SAVE, "Py4JJavaError: java.io.IOException: No space left"),
        (
            Py4JJavaError(f"{CALL} z:org.apache.spark.Api. Trace:\npy4j.Py4JException: gone\n"),
            "py4j.Py4JException: gone",
        ),
        (Py4JJavaError(f"{CALL} o72.save."), "Spark's JVM failed"),
        (
            Py4JJavaError(f"{CALL} o1.save.\n: E: e\n\tat x\nCaused by: A: a\nCaused by: B: b\n"),
            "caused by B: b",
        ),
        (
            Py4JJavaError(f"{CALL} o1.load.\n: org.Incompatible.SchemaException: \nFound recursive reference:\n{{}}\n"),
            "org.Incompatible.SchemaException: Found recursive reference:",
        ),
        (ValueError("first\nsecond"), "ValueError: first"),
        (ValueError(), "ValueError"),
        (InvalidPipeline("What.", "Why.", "Todo."), "What. Why."),
    ],
)
def test_first_sentence_tells_the_cause(error: Exception, told: str) -> None:
    assert told in first_sentence(error)
    assert CALL not in first_sentence(error)


@pytest.mark.parametrize("step", ["commit", "rehearse", "discard"])
def test_step_that_fails_in_spark_tells_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    world = World(tmp_path)
    world.plan()
    world.stage()

    def fail(*_: Any) -> None:
        raise SAVE

    monkeypatch.setattr(type(world.lake), step, fail)
    with pytest.raises(OnceonlyError) as error:
        (world.abort if step == "discard" else world.commit)()
    assert CALL not in str(error.value)
    assert "No space left" in str(error.value)
