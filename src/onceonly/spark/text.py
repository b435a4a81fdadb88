"""The check that text is UTF-8. Spark writes the bytes of a string as they are, and other readers refuse the file."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from onceonly.errors import InvalidPipeline
from onceonly.spark import jvm_jar
from onceonly.spark.row_files import quote_name
from onceonly.spark.topics import PLACE

FAILURE_PATTERN = re.compile(r"onceonly: in the rows for sink '(.+?)' column '(.+?)' is not UTF-8(?: \((.+?)\))?\.")
MAX_CAUSES = 20  # of one error that are read
CATALOG, JAR_CATALOG = "onceonly_functions", "onceonly.text.Functions"

IsValid = Callable[[Column], Column]  # of a string: whether it is valid UTF-8; null, or true, of null


def find_check(spark: Any) -> IsValid:
    """Return the fastest check that a session has: that of the jar takes a third of the time of Spark's own, or less.

    Raises:
        InvalidPipeline: the session has another version of the jar than this package.
    """
    if not jvm_jar.is_in_session(spark):
        return is_valid
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", JAR_CATALOG)
    return lambda text: F.call_function(f"{CATALOG}.is_utf8", text)


def is_valid(text: Column) -> Column:
    """Return whether a string is valid UTF-8, by Spark's own functions; null for null."""
    if hasattr(F, "is_valid_utf8"):  # since Spark 4
        return F.is_valid_utf8(text)
    return F.encode(F.decode(text.cast("binary"), "UTF-8"), "UTF-8") == text.cast("binary")


def check_text(rows: DataFrame, sink: str, check: IsValid = is_valid) -> DataFrame:
    """Return the same rows; one with a text that is not UTF-8, at any depth, fails whatever reads it.

    See `explain_text_error`.

    Args:
        check: one that `find_check` returns.
    """
    if len({name.lower() for name in rows.columns}) < len(rows.columns):
        return rows  # two columns of one name, which the sink refuses
    failures = {}
    for field in rows.schema:
        is_bad = _is_bad(field.dataType, F.col(quote_name(field.name)), check)
        if is_bad is not None:
            failures[field.name] = F.coalesce(is_bad, F.lit(False))
    if not failures:
        return rows
    columns, place = [], _describe_place(rows)
    for field in rows.schema:
        column = F.col(quote_name(field.name))
        if field.name in failures:
            failure = F.raise_error(F.concat(F.lit(_failure_message(sink, field.name)), place))
            column = F.when(failures[field.name], failure).otherwise(column).alias(field.name, metadata=field.metadata)
        columns.append(column)
    return rows.select(*columns)


def _failure_message(sink: str, column: str) -> str:
    """Return the beginning of a text that FAILURE_PATTERN matches."""
    return f"onceonly: in the rows for sink '{sink}' column '{column}' is not UTF-8"


def _describe_place(rows: DataFrame) -> Column:
    """Return the end of such a text: the record of a row, where the row shows it."""
    place = [F.concat(F.lit(f"{name} "), F.col(name).cast("string")) for name in PLACE if name in rows.columns]
    if not place:
        return F.lit(".")
    return F.concat(F.lit(" ("), F.concat_ws(", ", *place), F.lit(")."))


def explain_text_error(error: BaseException) -> InvalidPipeline | None:
    """Return the error to raise for one that `check_text` has caused; None: it is another one."""
    match = _find_failure(error)
    if match is None:
        return None
    sink, column, position = match.groups()
    origin = f" It was made of the record at {position}." if position else ""
    return InvalidPipeline(
        f"sink '{sink}': a text is not UTF-8.",
        f"Column '{column}' of a row holds bytes that are no UTF-8. Spark would write them as they are, and other "
        f"readers refuse such a file.{origin}",
        "Keep these bytes as BINARY, or replace what is no text in the transform (make_valid_utf8). Nothing was "
        "published.",
        code="text-not-utf8",
    )


def _find_failure(error: BaseException) -> re.Match[str] | None:
    for text in _list_messages(error):
        match = FAILURE_PATTERN.search(text)
        if match:
            return match
    return None


def _list_messages(error: BaseException | None) -> list[str]:
    """Return the texts of the error and of those that caused it."""
    texts: list[str] = []
    while error is not None and len(texts) < MAX_CAUSES:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return texts


def _is_bad(kind: DataType, column: Column, check: IsValid) -> Column | None:
    """Return whether some text in it is not UTF-8. None: there is no text in it."""
    match kind:
        case StringType():
            return ~check(column)
        case ArrayType():
            return _has_bad_item(kind.elementType, column, check)
        case MapType():
            has_bad_key = _has_bad_item(kind.keyType, F.map_keys(column), check)
            has_bad_value = _has_bad_item(kind.valueType, F.map_values(column), check)
            return _join_by_or(has_bad_key, has_bad_value)
        case StructType():
            return _has_bad_field(kind, column, check)
        case _:
            return None


def _has_bad_field(kind: StructType, column: Column, check: IsValid) -> Column | None:
    conditions = []
    for field in kind:
        conditions.append(_is_bad(field.dataType, column.getField(field.name), check))
    return _join_by_or(*conditions)


def _has_bad_item(kind: DataType, items: Column, check: IsValid) -> Column | None:
    if _is_bad(kind, F.lit(None), check) is None:
        return None

    def is_bad(item: Column) -> Column:
        is_bad_item = _is_bad(kind, item, check)
        assert is_bad_item is not None
        return F.coalesce(is_bad_item, F.lit(False))

    return F.exists(items, is_bad)


def _join_by_or(*conditions: Column | None) -> Column | None:
    """Return whether one of the conditions is true; None: there are none."""
    columns = [F.coalesce(condition, F.lit(False)) for condition in conditions if condition is not None]
    return reduce(or_, columns) if columns else None
