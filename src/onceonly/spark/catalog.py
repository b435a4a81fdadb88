"""Looks tables up by their names, in whatever catalogs a session of Spark has: Hive's, Glue's, Unity's.

Source: Delta's docs, "DESCRIBE DETAIL"; Delta protocol, "Catalog-managed tables".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onceonly.errors import InvalidPipeline, NotCommitted, first_sentence
from onceonly.pipeline.catalogs import Found, refuse_managed

SCHEMES = {"s3a": "s3", "s3n": "s3"}  # what Spark calls otherwise
KNOWN = ("file", "s3", "gs", "abfs", "abfss", "az", "hdfs")
NO_TABLE = ("NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE", "DELTA_MISSING_DELTA_TABLE")  # in the names of errors
CREATE = "CREATE TABLE {} (…) USING delta"


def find(spark: Any, names: Iterable[str]) -> dict[str, Found]:
    """Where these tables are now.

    Raises:
        InvalidPipeline: there is no such table, or it cannot be written to and read by its folder.
        NotCommitted: the catalog gave no answer.
    """
    return {name: _found(name, _detail(spark, name)) for name in sorted(names)}


def _detail(spark: Any, name: str) -> Mapping[str, Any]:
    quoted = ".".join(f"`{part}`" for part in name.split("."))
    try:
        return dict(spark.sql(f"DESCRIBE DETAIL {quoted}").collect()[0].asDict())
    except Exception as error:  # of Spark, or of what it reaches the catalog by
        raise _refused(name, quoted, error) from error


def _refused(name: str, quoted: str, error: Exception) -> InvalidPipeline | NotCommitted:
    first = first_sentence(error)[:500]
    if any(word in first for word in NO_TABLE):
        return InvalidPipeline(
            f"no Spark catalog has a table '{name}'.",
            first,
            f"Create it, as in {CREATE.format(quoted)}, or correct its name: the catalogs are those of Spark's own "
            "configuration (docs/catalogs.md). Nothing was written.",
        )
    if "VIEW" in first:
        return InvalidPipeline(f"'{name}' is a view.", first, "Name the Delta table. Nothing was written.")
    return NotCommitted(
        f"the catalog could not be queried for the location of table '{name}'.",
        first,
        "See Spark's log, and try again. Nothing was written.",
    )


def _found(name: str, detail: Mapping[str, Any]) -> Found:
    if detail.get("format") != "delta" or not detail.get("id"):
        raise InvalidPipeline(
            f"the table '{name}' is not a Delta table.",
            f"Its format is {detail.get('format')}.",
            "Name a Delta table. Nothing was written.",
        )
    refuse_managed(f"table '{name}'", str(detail["location"]), detail.get("tableFeatures") or ())
    return Found(_path(name, str(detail["location"])), str(detail["id"]))


def _path(name: str, location: str) -> str:
    """Hadoop writes its paths literally: '%' and '#' have no special meaning."""
    named, _, rest = location.partition(":")
    scheme = SCHEMES.get(named, named)
    if scheme not in KNOWN:
        raise InvalidPipeline(
            f"the location of table '{name}' can only be reached from its own platform.",
            f"Its location is {location}: the commit, and recovery, write to it without Spark.",
            "Use an external table in an object store. Nothing was written.",
        )
    return rest.removeprefix("//") if scheme == "file" else f"{scheme}:{rest}"
