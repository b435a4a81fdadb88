"""Text that is UTF-8. Spark keeps the bytes of a string as they are, and writes them; other readers refuse the file."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def is_valid(text: Column) -> Column:
    """Whether a string is valid UTF-8; null for null."""
    if hasattr(F, "is_valid_utf8"):  # since Spark 4
        return F.is_valid_utf8(text)
    return F.encode(F.decode(text.cast("binary"), "UTF-8"), "UTF-8") == text.cast("binary")
