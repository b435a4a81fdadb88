"""The keytab of a connection: its content in base64, as the form of Airflow's Spark provider expects, or a path."""

from __future__ import annotations

import base64
import os
from contextlib import ExitStack
from functools import cache

from onceonly.errors import InvalidPipeline
from onceonly.runtime.properties import hidden_file

BEGIN = b"\x05"  # of every keytab: its format's version
_open_files = ExitStack()


def path(conn_id: str, field: str) -> str:
    """Return the path of the keytab in that field, which spark-submit can be given.

    Raises:
        InvalidPipeline: it is neither a keytab nor an absolute path. The value of the field is not shown.
    """
    content = content_of(field)
    if content:
        return _write_hidden_file(content)
    if field.startswith(("/", "file:/", "local:/")):
        return field
    raise InvalidPipeline(
        f"the Airflow connection '{conn_id}' has a keytab that cannot be used.",
        "It is neither the content of a keytab in base64 nor an absolute path.",
        "Use the output of `base64 etl.keytab`, or the path of the file on Airflow's workers. Nothing was written.",
    )


def content_of(field: str) -> bytes:
    """Return the keytab that a field holds in base64; nothing where it is a path."""
    try:
        content = base64.b64decode("".join(field.split()), validate=True)
    except ValueError:
        return b""
    return content if content.startswith(BEGIN) else b""


@cache
def _write_hidden_file(content: bytes) -> str:
    """Return the path of a file that nobody else can read.

    It is for this process and those that it starts, and exists as long as this one lives.
    """
    name, inherited = _open_files.enter_context(hidden_file(content))
    return f"/proc/{os.getpid()}/fd/{inherited[0]}" if inherited else name
