"""FILE.py:NAME on the command line: the pipeline object in a DAG file (or any other)."""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType

from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.pipeline.definition import Pipeline
from onceonly.views import formatting

DEFINED = re.compile(r"^(\w+)\s*(?::[^=\n]+)?=\s*Pipeline\(", re.MULTILINE)


def example(project: Path) -> str:
    """A pipeline of this project as one would name it here, found without running any file; else FILE.py:NAME."""
    for path in sorted(project.glob("dags/**/*.py")) + sorted(project.glob("*.py")):
        if found := DEFINED.search(path.read_text(errors="replace")):
            return f"{formatting.place(str(path))}:{found[1]}"
    return "FILE.py:NAME"


def _use(project: Path, file: str = "") -> str:
    return f"Pass {f'{file}:NAME' if file else example(project)}. Nothing was written."


def load_alone(target: str, project: Path) -> Pipeline:
    """As `load`, without the DAG of the file where nothing else in it needs Airflow."""
    from onceonly.airflow import dags_later

    with dags_later():
        return load(target, project)


def load(target: str, project: Path) -> Pipeline:
    """The pipeline that `target` names; without a name, the only one in the file.

    Raises:
        InvalidPipeline: no such file, it cannot be imported, or has no such pipeline.
    """
    file, _, name = target.rpartition(":") if ":" in target else (target, "", "")
    path = _find(file, project)
    found = {key: value for key, value in vars(_module(path, project)).items() if isinstance(value, Pipeline)}
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    wanted = f"pipeline '{name}'" if name else "one pipeline"
    why = f"Its pipelines are: {', '.join(found)}." if found else "It has no onceonly.Pipeline at module level."
    use = f"Pass {file}:{next(iter(found))}. Nothing was written." if found else _use(project, file)
    raise InvalidPipeline(f"{path} does not define {wanted}.", why, use)


def _find(file: str, project: Path) -> Path:
    places = dict.fromkeys((Path.cwd(), project))  # often the same
    for place in places:
        if (place / file).is_file():
            return place / file
    searched = " and ".join(map(str, places))
    raise InvalidPipeline(f"there is no file '{file}'.", f"Searched: {searched}.", _use(project))


def _module(path: Path, project: Path) -> ModuleType:
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    name = f"onceonly_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidPipeline(f"{path} is not a Python file.", todo=_use(project))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _explained(path), redirect_stdout(sys.stderr):  # whatever it prints is not our output
        spec.loader.exec_module(module)
    return module


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OnceonlyError:
        raise  # a definition that was refused says why
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" (line {lines[-1]})" if lines else ""
        raise InvalidPipeline(
            f"{path} cannot be loaded.",
            f"{type(error).__name__}: {error}{where}",
            "Fix the file; it is loaded with the project's folder (ONCEONLY_PROJECT) on the path. Nothing was written.",
        ) from error
