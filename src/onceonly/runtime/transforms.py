"""Transforms by dotted path: checked before any work, loaded in the Spark job.

A definition is stored in the state table. Anyone who can write there could name any installed function. So a transform
has to be code of the project, or of a package that the settings name.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.settings import Settings
from onceonly.waits import wait_for

INSTALLED = {"site-packages", "dist-packages"}  # folders of an environment, which may lie within the project


def load(dotted: str, settings: Settings) -> Callable[..., Any]:
    """Return the function at `package.module:function`, searched in the project first.

    No code of a module runs before the module is known to be allowed.

    Raises:
        InvalidPipeline: it cannot be imported, is not a function, or is not code of the project.
    """
    module_name, _, name = dotted.partition(":")
    _search_in(settings.project)
    try:
        _check_allowed(dotted, module_name, settings)
        with wait_for(f"{module_name}, which is imported"):
            function = getattr(importlib.import_module(module_name), name)
        if inspect.isroutine(function) or inspect.isclass(function):
            _check_allowed(dotted, function.__module__ or "", settings)  # it may have been imported from elsewhere
    except InvalidPipeline:
        raise
    except Exception as error:
        raise _not_importable_error(dotted, error, settings) from error
    if not callable(function):
        raise InvalidPipeline(
            f"the transform '{dotted}' is not a function.",
            f"It is of type {type(function).__name__}.",
            "Name a function of one DataFrame. Nothing was written.",
            code="transform-not-function",
        )
    return function  # type: ignore[no-any-return]


def refuse_missing(dotted: str, settings: Settings) -> None:
    """Refuse a transform whose module is not there, without running the module.

    Raises:
        InvalidPipeline: there is no such module, or it is not code of the project.
    """
    _search_in(settings.project)
    try:
        _check_allowed(dotted, dotted.partition(":")[0], settings)
    except InvalidPipeline:
        raise
    except Exception as error:
        raise _not_importable_error(dotted, error, settings) from error


def _search_in(project: Path) -> None:
    """Let Python search the project's modules before all others."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))


def _not_importable_error(dotted: str, error: Exception, settings: Settings) -> InvalidPipeline:
    return InvalidPipeline(
        f"the transform '{dotted}' cannot be imported.",
        f"{type(error).__name__}: {error}{_describe_line(error, settings.project)}",
        f"{_how_to_import(error, settings.project)} Nothing was written.",
        code="transform-not-importable",
    )


def _describe_line(error: Exception, project: Path) -> str:
    """Return ' (file, line 3)', where the project's own code failed; empty if it did not."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(f"{project}/")]
    if not frames:
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


def _how_to_import(error: Exception, project: Path) -> str:
    if isinstance(error, ImportError) and str(error.name).split(".")[0] == "pyspark":
        return "Install it: pip install 'onceonly[spark]'."
    return f"Check the path (searched: {project} and the environment), or fix the error in the module."


def _check_allowed(dotted: str, module: str, settings: Settings) -> None:
    """Refuse a module of another origin. Its packages are checked first: finding a module runs its packages' code."""
    for package in settings.transforms:
        if module == package or module.startswith(f"{package}."):
            return
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named '{name}'")
        is_parent = _is_bare_folder(spec) and depth < len(parts)
        if not is_parent and not _is_of_project(spec, settings.project):
            raise _foreign_rows_error(dotted, name, spec, settings)


def list_own_folders(settings: Settings) -> list[Path]:
    """Return where code of the user's own is: the project, and the packages that the settings name, if loaded."""
    own_folders = [settings.project]
    for package in settings.transforms:
        file = getattr(sys.modules.get(package), "__file__", None)
        if file:
            own_folders.append(Path(file).parent)
    return own_folders


def _is_bare_folder(spec: ModuleSpec) -> bool:
    """Return whether it is a package without `__init__`: it has no code, and its modules are checked themselves."""
    return spec.origin is None and spec.submodule_search_locations is not None


def _is_of_project(spec: ModuleSpec, project: Path) -> bool:
    """Return whether its file, after resolving links, belongs to the project, and to no environment inside of it."""
    if not spec.has_location or not spec.origin:
        return False
    file, root = Path(spec.origin).resolve(), project.resolve()
    if not file.is_relative_to(root) or INSTALLED & set(file.relative_to(root).parts):
        return False
    standard_library = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    return not any(file.is_relative_to(folder) for folder in standard_library)


def _foreign_rows_error(dotted: str, module: str, spec: ModuleSpec, settings: Settings) -> InvalidPipeline:
    where = f"below {settings.project}"
    packages = f" or of {', '.join(settings.transforms)}" if settings.transforms else ""
    return InvalidPipeline(
        f"'{dotted}' is not code of the project.",
        f"'{module}' comes from {spec.origin or 'several folders'}. Only code {where}{packages} is run, because anyone "
        "who can write to the state table can name a function.",
        f"Move it there, or set ONCEONLY_TRANSFORMS to its package (here: {module.split('.')[0]}) for every process. "
        "Nothing was written.",
        code="transform-foreign",
    )


def select_outputs(pipeline: Pipeline, result: Any) -> Mapping[str, Any]:
    """Return a DataFrame per sink, from the transform's result.

    A single DataFrame is for every sink but that of dead letters. Dead letters may be in a dict, by the sink's name.
    """
    state, changes = pipeline.state, {}
    if state:
        if not (isinstance(result, tuple) and len(result) == 2):
            raise InvalidPipeline(
                f"the transform '{pipeline.transform}' returned no state changes.",
                f"It returned {type(result).__name__}.",
                f"With a StateSink ('{state.name}') the transform must return (outputs, changes). Nothing was staged.",
                code="transform-result-invalid",
            )
        result, changes = result[0], {state.name: result[1]}
    if isinstance(result, Mapping):
        rows_by_sink = {**result, **changes}
    else:
        rows_by_sink = {**_rows_for_each_sink(pipeline, result), **changes}
    for name, rows in rows_by_sink.items():
        if not (hasattr(rows, "write") and hasattr(rows, "schema")):
            raise InvalidPipeline(
                f"the transform '{pipeline.transform}' returned no DataFrame for '{name}'.",
                f"It returned {type(rows).__name__}.",
                "Return a DataFrame, or a dict of DataFrames by sink name. Nothing was staged.",
                code="transform-result-invalid",
            )
    return rows_by_sink


def _rows_for_each_sink(pipeline: Pipeline, rows: Any) -> dict[str, Any]:
    """Return the same rows for every sink but those of state and of dead letters."""
    rows_by_sink = {}
    for sink in pipeline.sinks:
        if sink is not pipeline.state and sink.name != pipeline.dead_letters:
            rows_by_sink[sink.name] = rows
    return rows_by_sink
