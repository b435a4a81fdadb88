"""Stages rows for a Delta table: creates the target, checks it and the rows, and writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline import catalogs
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink
from onceonly.sinks.delta import arbitrated, head, log, plain
from onceonly.sinks.delta.errors import first_line
from onceonly.sinks.staging.row_types import nullable
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.storage.arbitration import TRIAL_PREFIX
from onceonly.storage.paths import local_path, spark_uri

MANAGED = "catalog-managed"  # as delta-rs says it of a table that it does not open
# The staged table's log has one entry, which one task reads instead of Delta's default of 50.
WRITE_SETTINGS = {"spark.databricks.delta.snapshotPartitions": "1", **PARQUET_TIMES}


def target(config: DeltaSink, uri: str, rows: Any) -> log.Table:
    """Open the table at `uri`, created from the rows' schema on first use.

    Raises:
        InvalidPipeline: something else is there, or the table has another partitioning.
    """
    table = open_target(config, uri)
    arbitrated.require(config.name, uri, table)
    if table is None:
        refuse_foreign_folder(config.name, uri)
        table = _create(config, uri, rows)
    check(config, table)
    return table


def open_target(config: DeltaSink, uri: str, by: Callable[[str], log.Table | None] = head.table) -> log.Table | None:
    """Open the table at `uri`, if there is one.

    Args:
        by: opens it; None: there is none.
    Raises:
        InvalidPipeline: delta-rs cannot find one there or open it, or its catalog manages it.
        NotCommitted: there is none, and a catalog has named it.
    """
    local = local_path(uri)
    if local and unquote(str(local)) != str(local):
        raise InvalidPipeline(
            f"sink '{config.name}': there can be no table at {local}.",
            "delta-rs decodes '%' and two digits in any path, as in a URI.",
            "Choose another name for the folder. Nothing was written.",
        )
    try:
        table = by(uri)
    except DeltaError as error:
        if MANAGED in str(error):
            raise catalogs.refuse_managed(f"sink '{config.name}'", uri, MANAGED) from error
        if "object store" in str(error):  # which does not answer: that is not the table's fault
            raise
        raise InvalidPipeline(
            f"sink '{config.name}': the table at {uri} cannot be opened.",
            first_line(error),
            "Its log is damaged, or it has a feature that delta-rs does not know. Repair it, or choose another table. "
            "Nothing was written.",
            code="table-unreadable",
        ) from error
    if table is None and config.table:
        raise another_by_name(config, None)
    return table


def check(config: DeltaSink, table: log.Table) -> None:
    """Refuse a table that the sink cannot write to as its configuration says. Raises InvalidPipeline."""
    table_id = str(table.metadata().id) if config.table else None
    if config.table and table_id != config.table_id:
        raise another_by_name(config, table_id)
    check_table(config, table)
    check_replaceable(config, table)


def not_looked_up(config: DeltaSink) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{config.name}': the table '{config.table}' has not been looked up.",
        "The plan of each checkpoint does that.",
        "Plan it with Airflow or `onceonly run`. Nothing was written.",
    )


def another_by_name(config: DeltaSink, table_id: str | None) -> NotCommitted:
    """Describe that another table is at the place of a name, or none.

    A table is never made in place of one that somebody has dropped: a catalog would not know it.
    """
    return NotCommitted(
        f"sink '{config.name}': the table '{config.table}' is not at {config.path} any more.",
        f"The plan found the table with the id {config.table_id} there, and now there is {table_id or 'none'}.",
        "Was it dropped or created again? The next plan looks its name up again. Nothing was written.",
    )


def refuse_foreign_folder(sink: str, uri: str) -> None:
    """Refuse a folder that is no table and holds something else than staged folders and trials of the store."""
    foreign = []
    for info in log.entries(uri):
        name = info.base_name
        if name and name != "_delta_log" and not name.startswith((log.STAGED, TRIAL_PREFIX)):
            foreign.append(name)
    if foreign:
        raise InvalidPipeline(
            f"sink '{sink}': {uri} is not a Delta table.",
            f"The folder contains {count(len(foreign), 'other item')}, such as '{min(foreign)}'.",
            "Choose an empty folder or a Delta table. Nothing was written.",
        )


def check_table(config: DeltaSink, table: log.Table) -> None:
    """Refuse a table with another partitioning, one that deletes transaction identifiers, or a catalog's."""
    catalogs.check_not_managed(f"sink '{config.name}'", table.table_uri, table.protocol().writer_features or ())
    if expiry := table.metadata().configuration.get("delta.setTransactionRetentionDuration"):
        raise InvalidPipeline(
            f"sink '{config.name}': the table deletes transaction identifiers ({expiry}).",
            "They are the evidence of what was published. A commit that is repeated after that would publish again.",
            "ALTER TABLE … UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration'). Nothing was written.",
        )
    partition_columns = list(table.metadata().partition_columns)
    if config.partition_by and list(config.partition_by) != partition_columns:
        raise InvalidPipeline(
            f"sink '{config.name}': the table is partitioned by {partition_columns or 'nothing'}, and "
            f"the pipeline has {list(config.partition_by)}.",
            "A table's partitioning cannot be changed by appending.",
            "Set DeltaSink(partition_by=…) to the table's columns. Nothing was written.",
        )


def check_replaceable(config: DeltaSink, table: log.Table) -> None:
    """If the sink replaces rows, refuse a table from which files cannot be removed."""
    if config.replace and (why := only_appends(table)):
        raise InvalidPipeline(
            f"sink '{config.name}': nothing in the table can be replaced.",
            why,
            "Remove DeltaSink(replace=…), or use another table. Nothing was written.",
        )


def only_appends(table: log.Table) -> str | None:
    """Say why files cannot be removed from it; None if they can."""
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        return "The table only allows appends (delta.appendOnly)."
    unsupported = log.takes_plain_append(table)
    if unsupported:
        return f"The table is written through Spark (delta-rs does not support {unsupported})."
    return None


def check_covered(config: DeltaSink, staged_uri: str) -> None:
    """Refuse staged rows that do not match the condition: running again would not replace but duplicate them."""
    if not config.replace or config.replace == PARTITIONS:
        return
    staged = DeltaTable(staged_uri)
    condition: list[Any] = list(config.replace)
    covered = set(staged.file_uris(file_pruning_predicate=condition))
    if outside := sorted(set(staged.file_uris()) - covered):
        raise InvalidPipeline(
            f"sink '{config.name}': rows do not match the condition by which they replace others.",
            f"{len(outside):,} of {count(len(covered) + len(outside), 'file')}, such as "
            f"{outside[0].removeprefix(staged_uri)}, outside of {condition}.",
            "Filter the transform's output, or change DeltaSink(replace=…). Nothing is staged.",
        )


def write(uri: str, rows: Any, is_small_batch: bool = False) -> None:
    """Write all rows in one Delta commit: with Spark, unless they are few rows of a small batch.

    The staged table refuses rows that the target would refuse.
    """
    if is_small_batch and plain.write(uri, rows):
        return
    with temporary_conf(rows.sparkSession, WRITE_SETTINGS):
        rows.write.format("delta").mode("append").save(spark_uri(uri))


def require_same_for_spark(config: DeltaSink, uri: str, spark: Any) -> None:
    """Require that Spark sees the staged table, if it has written nothing to it.

    Was there nothing to write, or did Spark write elsewhere? It makes what is not there.

    Raises:
        NotCommitted: by that URI, Spark knows another folder.
    """
    staged_id = str(DeltaTable(uri).metadata().id)
    spark_id = spark.sql(f"DESCRIBE DETAIL delta.`{spark_uri(uri)}`").collect()[0]["id"]
    if spark_id != staged_id:
        raise NotCommitted(
            f"sink '{config.name}': Spark does not write to {uri}, where its rows were to be staged.",
            f"The table created there has the id {staged_id}, and the one that Spark sees has {spark_id}.",
            "Does the path have characters with a meaning in URIs? Use another one. Nothing was published.",
        )


def _create(config: DeltaSink, uri: str, rows: Any) -> DeltaTable:
    columns = rows.schema.names
    missing = [name for name in config.partition_by if name not in columns]
    if missing:
        raise InvalidPipeline(
            f"sink '{config.name}': there is no column {missing} to partition by.",
            f"The transform's output has {columns}.",
            "Change DeltaSink(partition_by=…) or the transform. Nothing was written.",
        )
    schema = Schema.from_json(json.dumps(nullable(json.loads(rows.schema.json()))))
    try:
        return DeltaTable.create(uri, schema, mode="error", partition_by=list(config.partition_by))
    except DeltaError:
        table_of_another = log.open_table(uri)  # another process may have created it meanwhile
        if table_of_another is None:
            raise
        return table_of_another
