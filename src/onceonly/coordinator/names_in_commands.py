"""Names in the commands of messages: sinks and sources do not know of which pipeline they are, and leave them blank."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from onceonly.errors import OnceonlyError

FIRST_ARGUMENTS = ("name", "pipeline")  # of a step: the pipeline, or its name; "epoch" may follow
C = TypeVar("C")


def name_in_commands(coordinator: type[C]) -> type[C]:
    """Let errors of a coordinator's steps name the pipeline, and the epoch if there is one, in their commands."""
    for name, step in list(vars(coordinator).items()):
        if name.startswith("_") or not inspect.isfunction(step):
            continue
        parameters = list(inspect.signature(step).parameters)
        if parameters[1] in FIRST_ARGUMENTS:
            setattr(coordinator, name, _with_names(step, parameters[1:3]))
    return coordinator


def _with_names(step: Callable[..., Any], parameters: list[str]) -> Callable[..., Any]:
    @wraps(step)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step(self, *args, **kwargs)
        except OnceonlyError as error:
            arguments = {**dict(zip(parameters, args, strict=False)), **kwargs}
            pipeline = arguments[parameters[0]]
            error.naming(getattr(pipeline, "name", pipeline), arguments.get("epoch"))
            raise

    return call
