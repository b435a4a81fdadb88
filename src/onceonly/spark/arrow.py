"""Python functions of whole Arrow arrays as columns of Spark, which has them since 4.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceonly.errors import InvalidPipeline


def udf(function: Callable[..., Any], type_: Any) -> Callable[..., Any]:
    """Raises InvalidPipeline: PySpark is older."""
    made: Any = _arrow_udf()  # whose overloads know no struct
    found: Callable[..., Any] = made(function, type_)
    return found


def require() -> None:
    """Raises InvalidPipeline: PySpark is older than 4.1."""
    _arrow_udf()


def _arrow_udf() -> Any:
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError:
        from pyspark import __version__

        raise InvalidPipeline(
            f"PySpark {__version__} cannot read or write these records.",
            "Protobuf, JSON Schema and Debezium need Python functions of a kind that Spark has since 4.1.",
            "Use PySpark 4.1 or newer: pip install -U 'onceonly[spark]'. Nothing was written.",
        ) from None
    return arrow_udf
