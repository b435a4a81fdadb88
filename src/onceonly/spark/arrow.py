"""Python functions of whole Arrow arrays as columns of Spark, which has them since 4.1. Nothing here starts Spark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onceonly.errors import InvalidPipeline

SINCE = (4, 1)


def udf(function: Callable[..., Any], type_: Any) -> Callable[..., Any]:
    """Raises InvalidPipeline: PySpark is older."""
    require()
    from pyspark.sql.pandas.functions import arrow_udf

    made: Any = arrow_udf  # whose overloads know no struct
    found: Callable[..., Any] = made(function, type_)
    return found


def is_available() -> bool:
    """Whether the installed PySpark has such functions, or is said elsewhere to be missing."""
    try:
        return _is_new_enough(version("pyspark"))
    except PackageNotFoundError:
        return True


def require() -> None:
    """Before any work: refuse a PySpark that has no such functions.

    Raises:
        InvalidPipeline: it is older than 4.1.
    """
    try:
        found = version("pyspark")
    except PackageNotFoundError:  # that is said elsewhere
        return
    if not _is_new_enough(found):
        raise InvalidPipeline(
            f"PySpark {found} cannot read or write these records.",
            "Protobuf, JSON Schema and Debezium need a kind of Python function that Spark has since 4.1.",
            "Use PySpark 4.1 or newer: pip install -U 'onceonly[spark]'. Nothing was written.",
        )


def _is_new_enough(version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) >= SINCE
