"""Checks the rows of a sink that merges, and reduces them to the newest change of each key."""

from __future__ import annotations

import json
from typing import Any

from onceonly.delta import table_snapshot
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import REFUSED_RECORD, DeltaSink, Merge, list_merge_columns
from onceonly.sinks.delta import staged_table, target_table
from onceonly.sinks.delta.handle import DeltaHandle

ORDERED_TYPES = {"byte", "short", "integer", "long", "string", "date", "timestamp", "timestamp_ntz", "boolean"}
BAD_CHANGE = "onceonly: this change is refused: "  # in the error of the Spark job
TODO = "Nothing was written."
TODOS = {
    BAD_CHANGE: "Keys, order and the column of deletes must not be null, and two different changes of one key must "
    "differ in order. Change the transform, or order by more columns. Nothing was staged.",
    REFUSED_RECORD: "Correct Changes(…) or the connector, or leave the record out in the transform. "
    "Nothing was staged.",
}


def check_columns(config: DeltaSink, rows: Any) -> None:
    """If the sink merges, refuse rows without the columns, or with types that cannot be compared exactly."""
    if (merge := config.merge) is None:
        return
    kinds = table_snapshot.types_by_name(json.loads(rows.schema.json())["fields"])
    problems = [f"'{name}' is missing" for name in list_merge_columns(merge) if name not in kinds]
    for name in (*merge.keys, *merge.order_by):
        if name in kinds and not _is_comparable(kinds[name]):
            problems.append(f"'{name}' is {_type_name(kinds[name])}")
    if merge.deletes in kinds and kinds[merge.deletes] != "boolean":
        problems.append(f"'{merge.deletes}' (deletes) is {_type_name(kinds[merge.deletes])}, not boolean")
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows cannot be merged.",
            f"Columns: {'; '.join(problems)}. Keys and order are integers, decimals, text, booleans, dates or times.",
            f"Change DeltaSink(merge=…) or the transform (cast). {TODO}",
            code="columns-unsuitable",
        )


def check_table(config: DeltaSink, table: table_snapshot.Table) -> None:
    """If the sink merges, refuse a table in which rows cannot be replaced, or that has not the columns."""
    if config.merge is None:
        return
    column_names = table_snapshot.column_names(table)
    missing = [name for name in list_merge_columns(config.merge) if name not in column_names]
    why = why_not_mergeable(table)
    if why is None and missing:
        why = f"It has no column {missing}."
    if why:
        raise InvalidPipeline(
            f"sink '{config.name}': changes cannot be merged into {table.table_uri}.",
            why,
            f"Use another table, or change DeltaSink(merge=…). {TODO}",
            code="rows-not-replaceable",
        )


def why_not_mergeable(table: table_snapshot.Table) -> str | None:
    """Say why single rows cannot be replaced in that table; None if they can."""
    if why := target_table.why_append_only(table):
        return why
    if "deletionVectors" in (table.protocol().writer_features or []):
        return (
            "Its deletion vectors (delta.enableDeletionVectors) are part of a file's identity, "
            "which delta-rs does not support."
        )
    return None


def write(config: DeltaSink, staged: str, rows: Any, is_small_batch: bool = False) -> None:
    """Write the rows of the sink; of changes, the newest of each key.

    Args:
        is_small_batch: see `Sink.stage_small_batch`.
    Raises:
        InvalidPipeline: a change that cannot be merged.
    """
    if config.merge is None:
        return staged_table.write(staged, rows, is_small_batch)
    try:
        staged_table.write(staged, newest(config.merge, rows), is_small_batch)
    except Exception as error:
        raise _explain(config, error) from error


def check_staged(config: DeltaSink, table: table_snapshot.Table, adds: list[dict[str, Any]]) -> None:
    """If the sink merges, refuse values that the table would not give back: no change would find their rows."""
    if config.merge is None:
        return
    partition_values = [add["partitionValues"] for add in adds]
    for name in list_merge_columns(config.merge):
        if any(name in values and not values[name] for values in partition_values):
            raise _not_found_again(
                config,
                f"'{name}' is an empty string in some of them, and the table is partitioned by it: Delta stores "
                "null there, and a row with a null key cannot be found again.",
                name,
            )
    for name, kind in table_snapshot.types_by_name(table_snapshot.column_fields(table)).items():
        if kind != "date" and not str(kind).startswith(("timestamp", "decimal(")):
            continue
        signed_text = _find_signed_text(partition_values, name)
        if signed_text:
            raise _not_found_again(
                config,
                f"'{name}' is {signed_text} in some of them, and the table is partitioned by it: of partitions, "
                "delta-rs does not read back negative decimals, or days outside of the years 1 to 9999.",
                name,
            )


def _find_signed_text(partition_values: list[dict[str, Any]], name: str) -> str | None:
    """Find the first value, in the order of texts, of a partition column that begins with a sign; None: none does."""
    signed_texts = []
    for values in partition_values:
        text = values.get(name)
        if text and text[0] in "+-":
            signed_texts.append(text)
    return min(signed_texts, default=None)


def _not_found_again(config: DeltaSink, why: str, name: str) -> InvalidPipeline:
    """Describe rows that no later change would find, because of their value of that partition column."""
    return InvalidPipeline(
        f"sink '{config.name}': the changes cannot be merged.",
        why,
        f"Use another value, or a table that is not partitioned by '{name}'. Nothing was staged.",
        code="merge-partition-value",
    )


def why_irreplaceable(config: DeltaSink, old: DeltaHandle) -> str | None:
    """Say why rows that were published cannot be retracted, if merging is the reason."""
    if old.merge is None and config.merge is None:
        return None
    return "Changes are merged into the table: the rows that they replaced no longer exist."


def refuse(sink: str, target: table_snapshot.Table, handle: DeltaHandle, altered: bool) -> None:
    """Raise CannotPublish unless changes can still be merged into the table."""
    why = "The table was altered since then." if altered else why_not_mergeable(target)
    if why:
        raise CannotPublish(
            f"sink '{sink}': the staged changes cannot be merged into {handle.uri}.",
            why,
            f"Undo that, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH --give-up {sink} "
            "--reason …. "
            f"The staged rows are kept in {handle.folder}.",
            code="staged-rows-refused",
        )


def newest(merge: Merge, rows: Any) -> Any:
    """Reduce to one row per key. The job fails with BAD_CHANGE on a null, and on different changes without an order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from onceonly.spark.row_files import MICROSECOND_FORMATS, quote_name

    row = F.struct(*[rows[quote_name(name)] for name in rows.columns])
    packed = rows.select(row.alias("row"), F.sha2(F.to_json(row, MICROSECOND_FORMATS), 256).alias("text"))
    packed_row = F.col("row")
    keys, key_columns = [], []
    for number, name in enumerate(merge.keys):
        keys.append(packed_row.getField(name).alias(f"key {number}"))
        key_columns.append(F.col(f"`key {number}`"))
    order, newest_first = [], []
    for number, name in enumerate(merge.order_by):
        order.append(packed_row.getField(name).alias(f"order {number}"))
        newest_first.append(F.col(f"`order {number}`").desc())
    # Rows of one key and one order are the same change, or cannot be ordered: their texts differ.
    changes = packed.groupBy(*keys, *order).agg(
        F.first("row").alias("row"), (F.min("text") != F.max("text")).alias("differ")
    )
    checked = changes.withColumn("row", _row_or_error(merge))
    place = F.row_number().over(Window.partitionBy(*key_columns).orderBy(*newest_first))
    return checked.withColumn("place", place).where("place = 1").select("row.*")


def _row_or_error(merge: Merge) -> Any:
    """Return a column with the row, or with an error in its place."""
    from pyspark.sql import functions as F

    row = F.col("row")
    columns = [row.getField(name).alias(name) for name in list_merge_columns(merge)]
    example = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    checked = F.when(
        F.col("differ"), F.raise_error(F.concat(F.lit(f"{BAD_CHANGE}another one has the same order, "), example))
    )
    for name in list_merge_columns(merge):
        message = F.concat(F.lit(f"{BAD_CHANGE}'{name}' is null, "), example)
        checked = checked.when(row.getField(name).isNull(), F.raise_error(message))
    return checked.otherwise(row)


def _explain(config: DeltaSink, error: Exception) -> Exception:
    """Return an error that says what `newest` or a transform has refused; any other error as it is."""
    for mark, todo in TODOS.items():
        if mark in str(error):
            why = str(error).partition(mark)[2].splitlines()[0][:500]
            return InvalidPipeline(
                f"sink '{config.name}': the changes cannot be merged.", why, todo, code="change-invalid"
            )
    return error


def _is_comparable(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in ORDERED_TYPES or kind.startswith("decimal("))


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type", kind))
