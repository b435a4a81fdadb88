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
LONGEST = 500  # characters of the error itself
FRAME = re.compile(r'File "([^"]+)", line (\d+)')
CALL_SITE = re.compile(r"(.+?):(\d+)$")
WORKER = "Traceback (most recent call last)"
Site = tuple[str, int]  # file and line


def explained(error: BaseException, folders: Sequence[Path]) -> str:
    """What, into which sink, and where.

    Args:
        folders: of the user's own code; the first one is the project's, and paths in it are shown relative to it.
    """
    what = "\n".join([f"{_name(error)}: {_text(error)}", *getattr(error, "__notes__", ())])
    ours = [site for site in _sites(error) if _is_own(site[0], folders)]
    return f"{what}\nIt comes from {_shown(ours[0], folders[0])}." if ours else what


def _name(error: BaseException) -> str:
    """PySpark's name also of an error of a worker that it now and then hands on as the JVM's."""
    name = type(error).__name__
    return "PythonException" if name == "Py4JJavaError" and WORKER in str(error) else name


def _text(error: BaseException) -> str:
    """The first line; of a traceback in the text, the last one, which says what was raised."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    begun = next((n for n, line in enumerate(lines) if WORKER in line), None)
    if begun is not None:
        after = (line for line in lines[begun + 1 :] if not line.startswith((" ", "\t")))
        return next(after, lines[0]).strip()[:LONGEST]
    return first_cause(str(error))[:LONGEST]


def _sites(error: BaseException) -> Iterator[Site]:
    """The most telling first."""
    for context in _contexts(error):
        if found := CALL_SITE.match(_call_site(context)):
            yield found[1], int(found[2])
    for file, line in reversed(FRAME.findall(str(error))):
        yield file, int(line)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 0


def _contexts(error: BaseException) -> Sequence[Any]:
    ask = getattr(error, "getQueryContext", None)
    return ask() or () if ask else ()


def _call_site(context: Any) -> str:
    """'/project/jobs/flights.py:12'; a context of SQL text has none."""
    try:
        return str(context.callSite()).strip()
    except Exception:  # whatever PySpark raises for the other kind: then there is no line to name
        return ""


def _is_own(file: str, folders: Sequence[Path]) -> bool:
    path = Path(file)
    return not path.is_relative_to(PACKAGE) and any(
        path.is_relative_to(folder) and (n > 0 or not INSTALLED & set(path.relative_to(folder).parts))
        for n, folder in enumerate(folders)
    )


def _shown(site: Site, project: Path) -> str:
    path = Path(site[0])
    return f"{path.relative_to(project) if path.is_relative_to(project) else path}, line {site[1]}"
