"""Text that is UTF-8. Spark keeps the bytes of a string as they are, and writes them; other readers refuse the file."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from onceonly.errors import InvalidPipeline

RAISED = re.compile(r"onceonly: in the rows for sink '(.+?)' column '(.+?)' is not UTF-8(?: \((.+?)\))?\.")
PLACE = ("topic", "partition", "offset")  # columns that say which record a row was made of


def is_valid(text: Column) -> Column:
    """Whether a string is valid UTF-8; null for null."""
    if hasattr(F, "is_valid_utf8"):  # since Spark 4
        return F.is_valid_utf8(text)
    return F.encode(F.decode(text.cast("binary"), "UTF-8"), "UTF-8") == text.cast("binary")


def checked(rows: DataFrame, sink: str) -> DataFrame:
    """The same rows; one with a text that is not UTF-8, at any depth, fails whatever reads it. See `explained`."""
    if len({name.lower() for name in rows.columns}) < len(rows.columns):
        return rows  # two columns of one name, which the sink refuses
    place = [name for name in PLACE if name in rows.columns]
    where = F.concat_ws(", ", *(F.concat(F.lit(f"{name} "), F.col(name).cast("string")) for name in place))
    columns = []
    for field in rows.schema:
        column = F.col(f"`{field.name.replace('`', '``')}`")
        is_bad = _is_bad(field.dataType, column)
        if is_bad is not None:
            told = f"onceonly: in the rows for sink '{sink}' column '{field.name}' is not UTF-8"
            text = F.concat(F.lit(f"{told} ("), where, F.lit(").")) if place else F.lit(f"{told}.")
            column = F.when(F.coalesce(is_bad, F.lit(False)), F.raise_error(text)).otherwise(column)
        columns.append(column.alias(field.name, metadata=field.metadata))
    return rows.select(*columns)


def explained(error: BaseException) -> InvalidPipeline | None:
    """What to tell of an error that `checked` has caused; None: it is another one."""
    found = next((match for text in _texts(error) if (match := RAISED.search(text))), None)
    if found is None:
        return None
    where = f" It was made of the record at {found[3]}." if found[3] else ""
    return InvalidPipeline(
        f"sink '{found[1]}': a text is not UTF-8.",
        f"Column '{found[2]}' of a row holds bytes that are no UTF-8. Spark would write them as they are, and other "
        f"readers refuse such a file.{where}",
        "Keep these bytes as BINARY, or replace what is no text in the transform (make_valid_utf8). Nothing was "
        "published.",
        code="text-not-utf8",
    )


def _texts(error: BaseException | None) -> list[str]:
    """Of the error and of those that caused it."""
    texts: list[str] = []
    while error is not None and len(texts) < 20:
        texts.append(str(error))
        error = error.__cause__ or error.__context__
    return texts


def _is_bad(kind: DataType, column: Column) -> Column | None:
    """Whether some text in it is not UTF-8. None: there is no text in it."""
    match kind:
        case StringType():
            return ~is_valid(column)
        case ArrayType():
            return _some(kind.elementType, column)
        case MapType():
            return _either(_some(kind.keyType, F.map_keys(column)), _some(kind.valueType, F.map_values(column)))
        case StructType():
            return _either(*(_is_bad(field.dataType, column.getField(field.name)) for field in kind))
        case _:
            return None


def _some(kind: DataType, column: Column) -> Column | None:
    if _is_bad(kind, F.lit(None)) is None:
        return None

    def is_bad(item: Column) -> Column:
        found = _is_bad(kind, item)
        assert found is not None
        return F.coalesce(found, F.lit(False))

    return F.exists(column, is_bad)


def _either(*conditions: Column | None) -> Column | None:
    some = [F.coalesce(each, F.lit(False)) for each in conditions if each is not None]
    return reduce(or_, some) if some else None
