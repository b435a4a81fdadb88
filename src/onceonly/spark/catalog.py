"""Looking tables up by their names, in whatever catalogs a session of Spark has: Hive's, Glue's, Unity's.

Source: Delta's docs, "DESCRIBE DETAIL"; Delta protocol, "Catalog-managed tables".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted, first_sentence
from onceonly.pipeline.catalogs import CatalogTable, check_not_managed
from onceonly.waits import wait_for

SCHEMES = {"s3a": "s3", "s3n": "s3"}  # what Spark calls otherwise
SUPPORTED_SCHEMES = ("file", "s3", "gs", "abfs", "abfss", "az", "hdfs")
NO_TABLE = ("NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE", "DELTA_MISSING_DELTA_TABLE")  # in the names of errors
CREATE = "CREATE TABLE {} (…) USING delta"


def find(spark: Any, names: Iterable[str]) -> dict[str, CatalogTable]:
    """Find where these tables are now.

    Raises:
        InvalidPipeline: there is no such table, or it cannot be written to and read by its folder.
        NotCommitted: the catalog gave no answer.
    """
    tables = {}
    for name in sorted(names):
        detail = _describe(spark, name)
        tables[name] = _to_table(name, detail)
    return tables


def _describe(spark: Any, name: str) -> Mapping[str, Any]:
    """Return the row of DESCRIBE DETAIL. Raises as `find`."""
    quoted = ".".join(f"`{part}`" for part in name.split("."))
    try:
        with wait_for(f"Spark's catalog, asked for table '{name}'"):
            return dict(spark.sql(f"DESCRIBE DETAIL {quoted}").collect()[0].asDict())
    except Exception as error:  # of Spark, or of what it reaches the catalog by
        raise _explain_error(name, quoted, error) from error


def _explain_error(name: str, quoted: str, error: Exception) -> InvalidPipeline | NotCommitted:
    why = first_sentence(error)[:500]
    if any(word in why for word in NO_TABLE):
        return InvalidPipeline(
            f"no Spark catalog has a table '{name}'.",
            why,
            f"Create it, as in {CREATE.format(quoted)}, or correct its name: the catalogs are those of Spark's own "
            f"configuration ({name_page('catalogs')}). Nothing was written.",
            code="table-not-in-catalog",
        )
    if "VIEW" in why:
        return InvalidPipeline(
            f"'{name}' is a view.", why, "Name the Delta table. Nothing was written.", code="not-a-delta-table"
        )
    return NotCommitted(
        f"the catalog could not be queried for the location of table '{name}'.",
        why,
        "See Spark's log, and try again. Nothing was written.",
        code="catalog-unreachable",
    )


def _to_table(name: str, detail: Mapping[str, Any]) -> CatalogTable:
    """Return the table's path and id. Raises InvalidPipeline: it is no Delta table, or cannot be reached."""
    if detail.get("format") != "delta" or not detail.get("id"):
        raise InvalidPipeline(
            f"the table '{name}' is not a Delta table.",
            f"Its format is {detail.get('format')}.",
            "Name a Delta table. Nothing was written.",
            code="not-a-delta-table",
        )
    check_not_managed(f"table '{name}'", str(detail["location"]), detail.get("tableFeatures") or ())
    return CatalogTable(_to_path(name, str(detail["location"])), str(detail["id"]))


def _to_path(name: str, location: str) -> str:
    """Return a location as a path or URI. Hadoop writes its paths literally: '%' and '#' have no special meaning."""
    spark_scheme, _, rest = location.partition(":")
    scheme = SCHEMES.get(spark_scheme, spark_scheme)
    if scheme not in SUPPORTED_SCHEMES:
        raise InvalidPipeline(
            f"the location of table '{name}' can only be reached from its own platform.",
            f"Its location is {location}: the commit, and recovery, write to it without Spark.",
            "Use an external table in an object store. Nothing was written.",
            code="storage-unsupported",
        )
    return rest.removeprefix("//") if scheme == "file" else f"{scheme}:{rest}"
