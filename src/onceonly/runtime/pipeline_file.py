"""The pipeline that FILE.py:NAME names: an object in a DAG file, or in any other.

Such a file makes its DAG as well, and to import Airflow for it takes seconds. A command that wants the pipeline alone
loads the file without its DAGs: the factories of `onceonly.airflow` ask `is_building_dags`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from pathlib import Path
from shlex import quote
from types import ModuleType

from onceonly.checkpoint.commands import PIPELINE_FILE
from onceonly.errors import InvalidPipeline, OnceonlyError
from onceonly.pipeline.definition import Pipeline
from onceonly.settings import Settings
from onceonly.views import formatting
from onceonly.waits import wait_for

NOT_FOUND = "pipeline-file-not-found"
_building_dags: ContextVar[bool] = ContextVar("onceonly_building_dags", default=True)
DEFINITION = re.compile(
    r"^(\w+)\s*(?::[^=\n]+)?=\s*Pipeline\((?:\s*(?:name\s*=\s*)?['\"](?P<name>[^'\"]*)['\"])?", re.MULTILINE
)


def find_example(project: Path) -> str:
    """Return a pipeline of this project as one would name it here, without running any file; else FILE.py:NAME."""
    for path, variable, _ in _list_definitions(project):
        return f"{formatting.place(str(path))}:{variable}"
    return PIPELINE_FILE


def name_pipeline(text: str, project: Path, pipeline: str) -> str:
    """Return a text with the pipeline's own file in its commands, in place of FILE.py:NAME, where that can be found."""
    if PIPELINE_FILE in text:
        for path, variable, name in _list_definitions(project):
            if name == pipeline:
                return text.replace(PIPELINE_FILE, quote(f"{formatting.place(str(path))}:{variable}"))
    return text


def find_in_project(pipeline: str) -> str:
    """Return what names a pipeline on the command line in the folder of this process's project; else FILE.py:NAME.

    Whoever reads the page or the log of a task is not where the process runs that shows it.
    """
    project = Settings.from_env().project
    for path, variable, name in _list_definitions(project):
        if name == pipeline:
            return f"{path.relative_to(project)}:{variable}"
    return PIPELINE_FILE


def name_in_project(text: str, pipeline: str) -> str:
    """Return a text with what `find_in_project` finds in its commands, in place of FILE.py:NAME."""
    return text.replace(PIPELINE_FILE, quote(find_in_project(pipeline))) if PIPELINE_FILE in text else text


def _list_definitions(project: Path) -> Iterator[tuple[Path, str, str | None]]:
    """Yield file and variable of each pipeline of a project, and its own name where that stands first.

    No file is run.
    """
    for path in sorted(project.glob("dags/**/*.py")) + sorted(project.glob("*.py")):
        for definition in DEFINITION.finditer(path.read_text(errors="replace")):
            yield path, definition[1], definition["name"]


def _what_to_pass(project: Path, file: str = "", name: str = "NAME") -> str:
    target = f"{file}:{name}" if file else find_example(project)
    return f"Pass {target}. Nothing was written."


def is_building_dags() -> bool:
    """Whether the factories of DAGs build them; not in a file that is loaded for its pipeline alone."""
    return _building_dags.get()


def load_without_dags(target: str, project: Path) -> Pipeline:
    """Load as `load`, without the DAG of the file unless something else in it imports Airflow."""
    token = _building_dags.set(False)
    try:
        return load(target, project)
    finally:
        _building_dags.reset(token)


def load(target: str, project: Path) -> Pipeline:
    """Return the pipeline that `target` names, as FILE.py:NAME; without a name, the only one in the file.

    Raises:
        InvalidPipeline: no such file, it cannot be imported, or has no such pipeline.
    """
    file, name = target, ""
    if ":" in target:
        file, _, name = target.rpartition(":")
    path = _require_file(file, project)
    module = _import_module(path, project)
    pipelines = {key: value for key, value in vars(module).items() if isinstance(value, Pipeline)}
    if name in pipelines:
        return pipelines[name]
    if not name and len(pipelines) == 1:
        return next(iter(pipelines.values()))
    missing = f"pipeline '{name}'" if name else "one pipeline"
    why, todo = "It has no onceonly.Pipeline at module level.", _what_to_pass(project, file)
    if pipelines:
        why, todo = f"Its pipelines are: {', '.join(pipelines)}.", _what_to_pass(project, file, next(iter(pipelines)))
    raise InvalidPipeline(f"{path} does not define {missing}.", why, todo, code=NOT_FOUND)


def _require_file(file: str, project: Path) -> Path:
    """Return the path of the file, below the current folder or the project."""
    folders = dict.fromkeys((Path.cwd(), project))  # often the same
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    searched = " and ".join(map(str, folders))
    todo = "Go to the project's folder, or set ONCEONLY_PROJECT to it. Nothing was written."
    if next(_list_definitions(project), None):
        todo = _what_to_pass(project)
    raise InvalidPipeline(f"there is no file '{file}'.", f"Searched: {searched}.", todo, code=NOT_FOUND)


def _import_module(path: Path, project: Path) -> ModuleType:
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    name = f"onceonly_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidPipeline(f"{path} is not a Python file.", todo=_what_to_pass(project), code=NOT_FOUND)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # whatever it prints is not our output
    with wait_for(f"{path}, which is imported"), _explain_errors(path), redirect_stdout(sys.stderr):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _explain_errors(path: Path) -> Iterator[None]:
    """Turn an error of the file itself into one that names its line."""
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
            code="pipeline-file-broken",
        ) from error
