"""An error of a transform in two lines: what happened, and at which line of the user's own files.

Columns are evaluated late, so Python's traceback often ends in this package: Spark's query context then names the line
that made the column. A function that Spark runs in a worker has its traceback in the text of the error.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from onceonly.errors import first_cause

PACKAGE = Path(__file__).parents[1]  # this one, which may lie within a project, too
INSTALLED = {"site-packages", "dist-packages"}  # of an environment within the project: not the user's own
MAX_ERROR_CHARACTERS = 500  # of the error itself
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
CALL_SITE = re.compile(r"(.+?):(\d+)$")
WORKER = "Traceback (most recent call last)"
Site = tuple[str, int]  # file and line


def explain(error: BaseException, folders: Sequence[Path]) -> str:
    """Return what happened, into which sink, and where.

    Args:
        folders: of the user's own code; the first one is the project's, and paths in it are shown relative to it.
    """
    what = "\n".join([f"{_name(error)}: {_first_line(error)}", *getattr(error, "__notes__", ())])
    own_sites = [site for site in _sites(error) if _is_own(site[0], folders)]
    if not own_sites:
        return what
    return f"{what}\nIt comes from {_format_site(own_sites[0], folders[0])}."


def _name(error: BaseException) -> str:
    """Return the error's class; PySpark's name also for a worker's error that it now and then hands on as the JVM's."""
    name = type(error).__name__
    return "PythonException" if name == "Py4JJavaError" and WORKER in str(error) else name


def _first_line(error: BaseException) -> str:
    """Return the first line; of a traceback in the text, the last one, which says what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    for number, line in enumerate(lines):
        if WORKER in line:
            return _last_line_of_traceback(lines[number + 1 :], lines[0]).strip()[:MAX_ERROR_CHARACTERS]
    return first_cause(str(error))[:MAX_ERROR_CHARACTERS]


def _last_line_of_traceback(lines: Sequence[str], default: str) -> str:
    """Return the first line that is not indented: the frames before it are."""
    for line in lines:
        if not line.startswith((" ", "\t")):
            return line
    return default


def _sites(error: BaseException) -> Iterator[Site]:
    """Yield where the error may come from, the most telling site first."""
    for context in _contexts(error):
        call_site = CALL_SITE.match(_call_site(context))
        if call_site:
            yield call_site[1], int(call_site[2])
    for file, line in reversed(FRAME.findall(str(error))):
        yield file, int(line)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 0


def _contexts(error: BaseException) -> Sequence[Any]:
    get_contexts = getattr(error, "getQueryContext", None)
    if get_contexts is None:
        return ()
    return get_contexts() or ()


def _call_site(context: Any) -> str:
    """Return '/project/jobs/flights.py:12'; a context of SQL text has none."""
    try:
        return str(context.callSite()).strip()
    except Exception:  # whatever PySpark raises for the other kind: then there is no line to name
        return ""


def _is_own(file: str, folders: Sequence[Path]) -> bool:
    """Return whether the file is the user's: in one of the folders, and in no environment within the project."""
    path = Path(file)
    if path.is_relative_to(PACKAGE):
        return False
    for number, folder in enumerate(folders):
        if not path.is_relative_to(folder):
            continue
        is_project = number == 0
        if not is_project or not INSTALLED & set(path.relative_to(folder).parts):
            return True
    return False


def _format_site(site: Site, project: Path) -> str:
    path = Path(site[0])
    if path.is_relative_to(project):
        path = path.relative_to(project)
    return f"{path}, line {site[1]}"
