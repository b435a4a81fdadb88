"""The target of a sink: opened or created, and checked, also for whether its writers exclude each other."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from onceonly.counts import count
from onceonly.delta import log_summary, table_features, table_files, table_snapshot, txn_identifiers
from onceonly.delta.log_files import LOG_FOLDER
from onceonly.delta.table_snapshot import Table, TableSnapshot
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline import catalogs
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.errors import first_line
from onceonly.sinks.staging.row_types import nullable
from onceonly.storage import arbitration
from onceonly.storage.paths import ARBITRATING_SCHEMES, S3_SCHEMES, find_unsafe_setting, local_path

CATALOG_MANAGED = "catalog-managed"  # as delta-rs says it of a table that it does not open
LOCKING_PROVIDER = "AWS_S3_LOCKING_PROVIDER"  # then delta-rs excludes others by a lock outside of the store


def open_or_create(config: DeltaSink, uri: str, rows: Any) -> table_snapshot.Table:
    """Open the table at `uri`, created from the rows' schema on first use.

    Raises:
        InvalidPipeline: something else is there, or the table has another partitioning.
    """
    table = open_existing(config, uri)
    require_exclusive_commits(config.name, uri, table)
    if table is None:
        refuse_foreign_folder(config.name, uri)
        table = _create(config, uri, rows)
    check(config, table)
    return table


def open_existing(
    config: DeltaSink, uri: str, by: Callable[[str], table_snapshot.Table | None] = log_summary.open_snapshot
) -> table_snapshot.Table | None:
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
            code="uri-invalid",
        )
    try:
        table = by(uri)
    except DeltaError as error:
        if CATALOG_MANAGED in str(error):
            raise catalogs.managed_table_error(f"sink '{config.name}'", uri, CATALOG_MANAGED) from error
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
        raise other_named_table_error(config, None)
    return table


def open_with_fixed_columns(config: DeltaSink, uri: str) -> DeltaTable | None:
    """Open the table at `uri`, if there is one and the sink adds no columns to it."""
    if config.add_columns:
        return None
    return table_files.open_table(uri)


def check(config: DeltaSink, table: table_snapshot.Table) -> None:
    """Refuse a table that the sink cannot write to as its configuration says. Raises InvalidPipeline."""
    table_id = str(table.metadata().id) if config.table else None
    if config.table and table_id != config.table_id:
        raise other_named_table_error(config, table_id)
    check_table(config, table)
    check_replaceable(config, table)


def check_table(config: DeltaSink, table: table_snapshot.Table) -> None:
    """Refuse a table with another partitioning, one that deletes transaction identifiers, or a catalog's."""
    catalogs.check_not_managed(f"sink '{config.name}'", table.table_uri, table.protocol().writer_features or ())
    if expiry := table.metadata().configuration.get("delta.setTransactionRetentionDuration"):
        raise InvalidPipeline(
            f"sink '{config.name}': the table deletes transaction identifiers ({expiry}).",
            "They are the evidence of what was published. A commit that is repeated after that would publish again.",
            "ALTER TABLE … UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration'). Nothing was written.",
            code="transaction-retention",
        )
    partition_columns = list(table.metadata().partition_columns)
    if config.partition_by and list(config.partition_by) != partition_columns:
        raise InvalidPipeline(
            f"sink '{config.name}': the table is partitioned by {partition_columns or 'nothing'}, and "
            f"the pipeline has {list(config.partition_by)}.",
            "A table's partitioning cannot be changed by appending.",
            "Set DeltaSink(partition_by=…) to the table's columns. Nothing was written.",
            code="partitioning-differs",
        )


def check_replaceable(config: DeltaSink, table: table_snapshot.Table) -> None:
    """If the sink replaces rows, refuse a table from which files cannot be removed."""
    if config.replace and (why := why_append_only(table)):
        raise InvalidPipeline(
            f"sink '{config.name}': nothing in the table can be replaced.",
            why,
            "Remove DeltaSink(replace=…), or use another table. Nothing was written.",
            code="rows-not-replaceable",
        )


def why_append_only(table: table_snapshot.Table) -> str | None:
    """Say why files cannot be removed from it; None if they can."""
    if table.metadata().configuration.get("delta.appendOnly") == "true":
        return "The table only allows appends (delta.appendOnly)."
    unsupported = table_features.find_unsupported(table)
    if unsupported:
        return f"The table is written through Spark (delta-rs does not support {unsupported})."
    return None


def unknown_path_error(config: DeltaSink) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{config.name}': the table '{config.table}' has not been looked up.",
        "The plan of each checkpoint does that.",
        "Plan it with Airflow or: onceonly run FILE.py:NAME. Nothing was written.",
        code="table-not-looked-up",
    )


def other_named_table_error(config: DeltaSink, table_id: str | None) -> NotCommitted:
    """Describe that another table is at the place of a name, or none.

    A table is never made in place of one that somebody has dropped: a catalog would not know it.
    """
    return NotCommitted(
        f"sink '{config.name}': the table '{config.table}' is not at {config.path} any more.",
        f"The plan found the table with the id {config.table_id} there, and now there is {table_id or 'none'}.",
        "Was it dropped or created again? The next plan looks its name up again. Nothing was written.",
        code="named-table-replaced",
    )


def refuse_foreign_folder(sink: str, uri: str) -> None:
    """Refuse a folder that is no table and holds something else than staged folders and trials of the store."""
    foreign = []
    for info in table_files.list_folder(uri):
        name = info.base_name
        is_own = name == LOG_FOLDER or name.startswith((txn_identifiers.STAGED_PREFIX, arbitration.TRIAL_PREFIX))
        if name and not is_own:
            foreign.append(name)
    if foreign:
        raise InvalidPipeline(
            f"sink '{sink}': {uri} is not a Delta table.",
            f"The folder contains {count(len(foreign), 'other item')}, such as '{min(foreign)}'.",
            "Choose an empty folder or a Delta table. Nothing was written.",
            code="target-unsuitable",
        )


def _create(config: DeltaSink, uri: str, rows: Any) -> DeltaTable:
    columns = rows.schema.names
    missing = [name for name in config.partition_by if name not in columns]
    if missing:
        raise InvalidPipeline(
            f"sink '{config.name}': there is no column {missing} to partition by.",
            f"The transform's output has {columns}.",
            "Change DeltaSink(partition_by=…) or the transform. Nothing was written.",
            code="columns-unsuitable",
        )
    schema = Schema.from_json(json.dumps(nullable(json.loads(rows.schema.json()))))
    try:
        return DeltaTable.create(uri, schema, mode="error", partition_by=list(config.partition_by))
    except DeltaError:
        table_of_another = table_files.open_table(uri)  # another process may have created it meanwhile
        if table_of_another is None:
            raise
        return table_of_another


# ---- whether writers exclude each other


def has_conditional_puts() -> bool:
    """Return whether writers exclude each other by conditional puts: delta-rs may be configured otherwise."""
    puts = os.environ.get("AWS_CONDITIONAL_PUT", "etag").lower()
    return not os.environ.get(LOCKING_PROVIDER) and puts in ("etag", "etag-put-if-not-exists")


def require_exclusive_commits(sink: str, uri: str, table: Table | None) -> None:
    """Refuse a store on which two commits can both win. A table that Onceonly has published to was tried before that.

    Raises:
        InvalidPipeline: nothing was written to the table.
        NotCommitted: the store refuses this login.
        OSError: the store does not answer.
    """
    scheme = urlsplit(uri).scheme.lower()
    if _was_published_to(table) or local_path(uri) or scheme not in ARBITRATING_SCHEMES:
        return
    on_s3 = scheme in S3_SCHEMES
    if on_s3 and os.environ.get(LOCKING_PROVIDER):
        return
    obstacle = find_unsafe_setting(uri)
    if obstacle:
        raise InvalidPipeline(
            f"sink '{sink}': publishing to {uri} is not safe.",
            obstacle,
            f"Unset it, or let delta-rs use a lock ({LOCKING_PROVIDER}). Nothing was written.",
            code="store-not-arbitrating",
        )
    try:
        arbitration.require_put_if_absent(uri, f"the table of sink '{sink}'")
    except PermissionError as error:
        raise NotCommitted(
            f"sink '{sink}': {uri} cannot be written to.",
            f"The store refuses this login. {error}",
            f"Allow it to list, read, write and delete below that path ({name_page('object-stores')}). Nothing was "
            "written.",
            code="folder-not-writable",
        ) from error


def _was_published_to(table: Table | None) -> bool:
    return isinstance(table, TableSnapshot) and any(app_id.startswith("onceonly/") for app_id in table.txns)
