"""Transforms by dotted path: found before any work, loaded in the Spark job.

A definition lies in the state table, and whoever can write there could name any function that is installed. So the
code has to be the project's own, or that of a package which the settings name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.settings import Settings

INSTALLED = {"site-packages", "dist-packages"}  # folders of an environment, which may lie within the project


def load(dotted: str, settings: Settings) -> Callable[..., Any]:
    """The function at `package.module:function`, looked up in the project first.

    Nothing of a module is run before it is known to be allowed.

    Raises:
        InvalidPipeline: it does not import, is no function, or is not the project's own.
    """
    module_name, _, name = dotted.partition(":")
    if str(settings.project) not in sys.path:
        sys.path.insert(0, str(settings.project))
    try:
        _check_allowed(dotted, module_name, settings)
        function = getattr(importlib.import_module(module_name), name)
        if inspect.isroutine(function) or inspect.isclass(function):
            _check_allowed(dotted, function.__module__ or "", settings)  # it may have been imported from elsewhere
    except InvalidPipeline:
        raise
    except Exception as error:
        raise InvalidPipeline(
            f"the transform '{dotted}' does not import.",
            f"{type(error).__name__}: {error}",
            f"Check the path (searched: {settings.project} and the environment). Nothing was written.",
        ) from error
    if not callable(function):
        raise InvalidPipeline(f"the transform '{dotted}' is a {type(function).__name__}, not a function.")
    return function  # type: ignore[no-any-return]


def _check_allowed(dotted: str, module: str, settings: Settings) -> None:
    """Refuse a module of another origin; its packages first, because looking into one runs its code."""
    if any(module == package or module.startswith(f"{package}.") for package in settings.transforms):
        return
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{name}'")
        leads_on = _is_bare_folder(spec) and depth < len(parts)
        if not leads_on and not _is_ours(spec, settings.project):
            raise _foreign(dotted, name, spec, settings)


def folders(settings: Settings) -> list[Path]:
    """Where code of the user's own is: the project, and the packages that the settings name, as far as loaded."""
    files = (getattr(sys.modules.get(package), "__file__", None) for package in settings.transforms)
    return [settings.project, *(Path(file).parent for file in files if file)]


def _is_bare_folder(spec: ModuleSpec) -> bool:
    """A package without an `__init__`: nothing of it runs, and what is in it is looked at by itself."""
    return spec.origin is None and spec.submodule_search_locations is not None


def _is_ours(spec: ModuleSpec, project: Path) -> bool:
    """Whether its file, wherever links lead, is the project's and not of an environment within it."""
    if not spec.has_location or not spec.origin:
        return False
    file, root = Path(spec.origin).resolve(), project.resolve()
    if not file.is_relative_to(root) or INSTALLED & set(file.relative_to(root).parts):
        return False
    return not any(file.is_relative_to(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))


def _foreign(dotted: str, module: str, spec: ModuleSpec, settings: Settings) -> InvalidPipeline:
    where = f"below {settings.project}"
    packages = f" or of {', '.join(settings.transforms)}" if settings.transforms else ""
    return InvalidPipeline(
        f"'{dotted}' is not code of the project.",
        f"'{module}' comes from {spec.origin or 'several folders'}; what runs has to be {where}{packages}, because "
        "anyone who can write to the state table can name a function.",
        f"Move it there, or set ONCEONLY_TRANSFORMS to its package (here: {module.split('.')[0]}) for every process. "
        "Nothing was written.",
    )


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
