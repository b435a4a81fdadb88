"""Opening files for Spark: the one place where this package does it.

Spark can be set to skip files that are missing or damaged (`spark.sql.files.ignoreMissingFiles`, `ignoreCorruptFiles`),
and clusters often are. Rows then disappear without an error. Readers of plain files can be told otherwise by options.
Readers of Delta tables take no options, so the session's settings are switched off, too.
"""

from __future__ import annotations

import re
from typing import Any

from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted, first_sentence

SKIPPING_SETTINGS = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
# `mergeSchema` reads every footer, and would add columns that the schema of the read does not have.
FILE_OPTIONS = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mergeSchema": "false"}
GLOB_CHARACTERS = re.compile(r"([{}*?\[\]\\])")


def strict_reader(spark: Any) -> Any:
    """Return a DataFrameReader for which a file that cannot be read is an error.

    Raises:
        InvalidPipeline: the session skips files, and refuses to be set otherwise. Nothing was read.
    """
    switch_off_skipping(spark)
    return spark.read.options(**FILE_OPTIONS)


def switch_off_skipping(spark: Any) -> None:
    """Let no read of this session skip files, from now on. A user's own reads get the errors that they would miss.

    A lazy DataFrame is read under the settings of the moment in which it is executed. So this is called again after
    foreign code (a transform) has had the session.

    Raises:
        InvalidPipeline: the session refuses to be set.
    """
    for setting in SKIPPING_SETTINGS:
        if str(spark.conf.get(setting, "false")).lower() == "false":
            continue
        try:
            spark.conf.set(setting, "false")
        except Exception as error:
            raise InvalidPipeline(
                f"Spark is set to skip files that it cannot read ({setting}).",
                f"Rows would be missing without an error, and the session refuses to be set otherwise: "
                f"{first_sentence(error)[:300]}",
                f"Set {setting}=false in Spark's configuration. Nothing was written.",
                code="spark-skips-files",
            ) from error


def escape_glob(path: str) -> str:
    """Return the path as Spark takes it for that of one file, whatever is in it."""
    return GLOB_CHARACTERS.sub(r"\\\1", path)


def quote_name(name: str) -> str:
    """Return a column's name as Spark takes it for that of one column, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def require_rows(found: int, expected: int, what: str) -> None:
    """Refuse rows that were read back in another number than they were written.

    Args:
        what: was read, such as "sink 'lake': the staged rows".
    Raises:
        NotCommitted: the numbers differ.
    """
    if found == expected:
        return
    raise NotCommitted(
        f"{what} are not the rows that were written.",
        f"{count(expected, 'row')} had been written, and {found:,} can be read. Files were damaged, removed or added.",
        "Restore the files from a copy. If the checkpoint is not decided yet, abort it and run it again. "
        "Nothing was published.",
        code="rows-differ",
    )
