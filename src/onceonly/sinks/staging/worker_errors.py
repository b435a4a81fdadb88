"""Errors of Spark's workers: Spark passes on their text alone, from which this process makes them again."""

from __future__ import annotations

import json
import re

from onceonly import errors
from onceonly.errors import OnceonlyError

ERROR_PREFIX = "ONCEONLY-ERROR"  # in the text of an error of a worker
ERROR_IN_TEXT = re.compile(ERROR_PREFIX + r" (\{.*?\})(?=$|\n|\\n)", re.MULTILINE)


def worker_error(error: OnceonlyError) -> RuntimeError:
    """Return the error that a worker raises for `error`: Spark only passes on its text."""
    texts = {"what": error.what, "why": error.why, "todo": error.todo, "code": error.code}
    parts = {"kind": type(error).__name__, **texts}
    return RuntimeError(f"{ERROR_PREFIX} {json.dumps(parts)}")


def find_worker_error(text: str) -> OnceonlyError | None:
    """Return the OnceonlyError that a task has raised, if there is one in the text of Spark's error."""
    match = ERROR_IN_TEXT.search(text)
    if match is None:
        return None
    arguments = json.loads(match[1])
    kind: type[OnceonlyError] = getattr(errors, arguments.pop("kind"))
    return kind(**arguments)
