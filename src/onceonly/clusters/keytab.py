"""The keytab of a connection: its content in base64, as the form of Airflow's Spark provider asks for, or a path."""

from __future__ import annotations

import base64
import os
from contextlib import ExitStack
from functools import cache

from onceonly.clusters.properties import hidden_file
from onceonly.errors import InvalidPipeline

BEGIN = b"\x05"  # of every keytab: its format's version
_kept = ExitStack()


def path(conn_id: str, given: str) -> str:
    """The path of that keytab, which spark-submit can be given.

    Raises:
        InvalidPipeline: it is neither a keytab nor an absolute path. What was given is not shown.
    """
    if content := content_of(given):
        return _file(content)
    if given.startswith(("/", "file:/", "local:/")):
        return given
    raise InvalidPipeline(
        f"the Airflow connection '{conn_id}' has a keytab that cannot be used.",
        "It is neither the content of a keytab in base64 nor an absolute path.",
        "Use the output of `base64 etl.keytab`, or the path of the file on Airflow's workers. Nothing was written.",
    )


def content_of(given: str) -> bytes:
    """What it says in base64; nothing where it is a path."""
    try:
        found = base64.b64decode("".join(given.split()), validate=True)
    except ValueError:
        return b""
    return found if found.startswith(BEGIN) else b""


@cache
def _file(content: bytes) -> str:
    """A file that nobody else can read, for this process and those that it starts, as long as this one lives."""
    name, inherited = _kept.enter_context(hidden_file(content))
    return f"/proc/{os.getpid()}/fd/{inherited[0]}" if inherited else name
