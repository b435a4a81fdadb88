"""What definitions have in common: their validation, the error for an invalid one, and what is stored of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from onceonly.errors import InvalidPipeline

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
PREFIX = re.compile(r"[A-Za-z0-9._]{1,64}")
OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in", "not in")
CONNECTION = re.compile(r"[A-Za-z0-9._-]{1,200}")


def check_connection(connection: str | None, bootstrap: str | None) -> None:
    """Check that a definition names a connection, and does not contain one: it is stored with every checkpoint.

    Raises:
        InvalidPipeline: not a connection id (the text is not repeated: it may contain a secret), or both are given.
    """
    if connection is not None and not CONNECTION.fullmatch(connection):
        raise option_error(
            "connection",
            "is not an Airflow connection id",
            "Pass an id, as in connection='kafka_default'.",
            code="option-invalid",
        )
    if connection is not None and bootstrap is not None:
        raise option_error(
            f"connection '{connection}'",
            "is set together with bootstrap",
            "Remove one of them.",
            code="options-conflict",
        )


def parse_condition(sink: str, part: Any) -> tuple[str, str, Any]:
    """Return one part of a sink's `replace` as (column, operator, value). Raises InvalidPipeline."""
    if isinstance(part, (list, tuple)) and len(part) == 3 and part[1] in OPERATORS:
        column, operator, value = part
        if operator.endswith("in") and isinstance(value, (list, tuple)):
            return column, operator, tuple(value)
        if isinstance(value, (str, int, float)):
            return column, operator, value
    raise option_error(
        f"sink '{sink}'",
        f"replaces where {part!r}",
        f'Write it as in replace=[("day", "=", "2013-01-01")]; operators: {", ".join(OPERATORS)}.',
        code="option-invalid",
    )


def omit_defaults(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a source or sink without those that have the default with which they are not stored."""
    stored = {}
    for name, value in fields.items():
        if name not in defaults or value != defaults[name]:
            stored[name] = value
    return stored


def option_error(what: str, why: str, todo: str, *, code: str) -> InvalidPipeline:
    """Return the error for a definition: what is wrong in it, why, and what to do.

    Args:
        code: of the fault, as `onceonly explain` takes it.
    """
    return InvalidPipeline(f"{what} {why}.", todo=todo, code=code)
