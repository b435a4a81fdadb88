"""Transforms by dotted path: found before any work, loaded in the Spark job."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.pipeline import Pipeline


def load(dotted: str, project: Path) -> Callable[..., Any]:
    """The function at `package.module:function`, looked up in the project first.

    Raises:
        InvalidPipeline: it does not import, or is no function.
    """
    module_name, _, name = dotted.partition(":")
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    try:
        function = getattr(importlib.import_module(module_name), name)
    except Exception as error:
        raise InvalidPipeline(
            f"the transform '{dotted}' does not import.",
            f"{type(error).__name__}: {error}",
            f"Check the path (searched: {project} and the environment). Nothing was written.",
        ) from error
    if not callable(function):
        raise InvalidPipeline(f"the transform '{dotted}' is a {type(function).__name__}, not a function.")
    return function  # type: ignore[no-any-return]


def outputs(pipeline: Pipeline, result: Any) -> Mapping[str, Any]:
    """A DataFrame per sink: one DataFrame goes to every sink. State changes go to the StateSink."""
    state, changes = pipeline.state, {}
    if state:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InvalidPipeline(
                f"the transform '{pipeline.transform}' returned no state changes.",
                f"It returned {type(result).__name__}.",
                f"With a StateSink ('{state.name}') return (outputs, changes). Nothing was staged.",
            )
        result, changes = result[0], {state.name: result[1]}
    names = [sink.name for sink in pipeline.sinks if sink is not state]
    named = {**(result if isinstance(result, Mapping) else dict.fromkeys(names, result)), **changes}
    for name, rows in named.items():
        if not (hasattr(rows, "write") and hasattr(rows, "schema")):
            raise InvalidPipeline(
                f"the transform '{pipeline.transform}' returned no DataFrame for '{name}'.",
                f"It returned {type(rows).__name__}.",
                "Return a DataFrame, or a dict of DataFrames by sink name. Nothing was staged.",
            )
    return named
