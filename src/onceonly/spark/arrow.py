"""Python functions of whole Arrow arrays as columns of Spark, which has them since 4.1. Nothing here starts Spark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onceonly.errors import InvalidPipeline

SINCE = (4, 1)


def udf(function: Callable[..., Any], type_: Any) -> Callable[..., Any]:
    """Make a Spark function of a function of Arrow arrays. Raises InvalidPipeline: PySpark is older."""
    require()
    from pyspark.sql.pandas.functions import arrow_udf

    make_udf: Any = arrow_udf  # whose overloads know no struct
    spark_function: Callable[..., Any] = make_udf(function, type_)
    return spark_function


def is_available() -> bool:
    """Return whether the installed PySpark has such functions, or is reported elsewhere to be missing."""
    try:
        return _is_new_enough(version("pyspark"))
    except PackageNotFoundError:
        return True


def require() -> None:
    """Refuse a PySpark that has no such functions, before any work.

    Raises:
        InvalidPipeline: it is older than 4.1.
    """
    try:
        pyspark_version = version("pyspark")
    except PackageNotFoundError:  # that is reported elsewhere
        return
    if not _is_new_enough(pyspark_version):
        raise InvalidPipeline(
            f"PySpark {pyspark_version} cannot read or write these records.",
            "Protobuf, JSON Schema and Debezium need a kind of Python function that Spark has since 4.1.",
            "Use PySpark 4.1 or newer: pip install -U 'onceonly[spark]'. Nothing was written.",
            code="pyspark-unsupported",
        )


def _is_new_enough(version: str) -> bool:
    return tuple(map(int, version.split(".")[:2])) >= SINCE
