"""Compares the columns of rows with those of a Delta table, and determines the permitted changes of the table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import DeltaTable, Field

from onceonly.checkpoint.model import Transaction
from onceonly.delta import commits, table_features, table_snapshot
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.handle import Change, DeltaHandle
from onceonly.sinks.staging.row_types import nullable, refuse_duplicates

WIDENING = "delta.enableTypeWidening"
WIDER = {  # what Delta widens automatically; source: Delta docs, "Type widening"
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
FOREIGN = ("interval", "calendar", "time(")  # beginnings of Spark's types that a Delta table cannot have
COMPUTED = {  # key in a column's metadata -> the feature of writers; source: Delta protocol
    "delta.generationExpression": "generatedColumns",
    "delta.identity.start": "identityColumns",
    "CURRENT_DEFAULT": "allowColumnDefaults",
}
SINCE = {"generatedColumns": 4, "identityColumns": 6}  # versions of the writer, before features were named


def with_transaction(config: DeltaSink, rows: Any, txn: Transaction) -> Any:
    """Return the rows with the column that names the transaction which publishes them, if the sink has one.

    Raises:
        InvalidPipeline: the transform returns a column of that name.
    """
    column = config.checkpoint_column
    if column is None:
        return rows
    if column.lower() in map(str.lower, rows.schema.names):
        raise InvalidPipeline(
            f"sink '{config.name}': the rows have a column '{column}'.",
            "It is the sink's checkpoint_column, which the sink fills in.",
            "Remove it from the transform's output, or change DeltaSink(checkpoint_column=…). Nothing was staged.",
            code="columns-unsuitable",
        )
    from pyspark.sql import functions as F

    return rows.withColumn(column, F.lit(txn.name))


def check_rows(config: DeltaSink, rows: Any) -> None:
    """Refuse rows that no table can have.

    Raises:
        InvalidPipeline: two columns have one name, or a type is not one of Delta's; names each column.
    """
    refuse_duplicates(config.name, rows)
    foreign = []
    for field in json.loads(rows.schema.json())["fields"]:
        kind = _find_foreign_type(field["type"])
        if kind:
            foreign.append(f"'{field['name']}' is {kind}")
    if foreign:
        raise InvalidPipeline(
            f"sink '{config.name}': a Delta table cannot hold the rows.",
            f"Columns: {'; '.join(foreign)}.",
            "Cast them in the transform, an interval for example to a number or to text. Nothing was staged.",
            code="column-type",
        )


def check(config: DeltaSink, table: table_snapshot.Table, rows: Any) -> Change:
    """Compare the columns and types of the rows with the table's. Generated columns may be missing.

    Raises:
        InvalidPipeline: they do not match; names each column.
    """
    row_types = table_snapshot.types_by_name(json.loads(rows.schema.json())["fields"])
    fields = table_snapshot.column_fields(table)
    table_types = table_snapshot.types_by_name(fields)
    new = [name for name in row_types if name not in table_types]
    differing = []
    for name, kind in table_types.items():
        if name in row_types and nullable(row_types[name]) != nullable(kind):
            differing.append(name)
    problems = _describe_missing(fields, row_types, computed_columns(table))
    for name in new:
        problems += _why_not_added(config, table, name, row_types[name])
    for name in differing:
        problems += _why_not_widened(config, table, name, row_types[name], table_types[name])
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows do not match the table.",
            f"Columns: {'; '.join(problems)}.",
            "Change the transform's output (select, cast) or the table. Nothing was staged.",
            code="columns-differ",
        )
    added = []
    for name in new:
        added.append({"name": name, "type": nullable(row_types[name]), "nullable": True, "metadata": {}})
    return Change(added, {name: row_types[name] for name in differing})


def _describe_missing(fields: list[dict[str, Any]], row_types: dict[str, Any], filled_in: set[str]) -> list[str]:
    missing = []
    for field in fields:
        if field["name"] not in row_types and field["name"] not in filled_in:
            missing.append(f"'{field['name']}' is missing{_without_feature(field)}")
    return missing


def computed_columns(table: table_snapshot.Table) -> set[str]:
    """Return the columns that the table fills in: generated ones, identities, and those with a default.

    Without the feature in the table's protocol, writers pass over what a column says of that, and would store null.
    """
    protocol = table.protocol()
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version < table_features.NAMED_FEATURES_VERSION:
        features = {name for name, since in SINCE.items() if since <= protocol.min_writer_version}
    computed = set()
    for field in table_snapshot.column_fields(table):
        if features.intersection(_features_of(field)):
            computed.add(field["name"])
    return computed


def left_out(table: table_snapshot.Table, rows: Any) -> list[str]:
    """Return the columns that the table fills in because the rows do not have them."""
    return sorted(computed_columns(table) - set(rows.schema.names))


def names(fields: Sequence[Mapping[str, Any]]) -> list[str]:
    return [field["name"] for field in fields]


# ---- at the commit


def add(target: DeltaTable, handle: DeltaHandle) -> bool:
    """Add the new columns, in a commit before that of the rows. Returns whether there were any."""
    column_names = table_snapshot.column_names(target)
    new = []
    for field in handle.added:
        if field["name"] not in column_names:
            new.append(Field.from_json(json.dumps(field)))
    if not new or is_altered(target, handle):
        return False
    with commits.hold_shared(target.table_uri):
        target.alter.add_columns(new)
    return True


def is_altered(target: table_snapshot.Table, handle: DeltaHandle) -> bool:
    """Return whether the table was altered since staging. A column to be added may exist by now, with another type."""
    kinds = table_snapshot.types_by_name(table_snapshot.column_fields(target))
    for field in handle.added:
        if nullable(kinds.get(field["name"], field["type"])) != field["type"]:
            return True
    return bool(table_snapshot.fingerprint(target, names(handle.added)) != handle.fingerprint)


# ---- columns and types


def _why_not_added(config: DeltaSink, table: table_snapshot.Table, name: str, kind: Any) -> list[str]:
    """Say why a column cannot be added to the table; empty: it can."""
    if not config.add_columns:
        return [f"'{name}' is not in the table (DeltaSink(add_columns=True) would add it)"]
    unsupported = table_features.find_unsupported(table)
    if unsupported:
        return [f"'{name}' cannot be added, because delta-rs does not support {unsupported} (use ALTER TABLE)"]
    missing = table_features.type_features(kind) - set(table.protocol().writer_features or ())
    if missing:
        features = ", ".join(sorted(missing))
        return [f"'{name}' cannot be added, because the table's protocol does not have {features} (use ALTER TABLE)"]
    return []


def _why_not_widened(
    config: DeltaSink, table: table_snapshot.Table, name: str, row_type: Any, table_type: Any
) -> list[str]:
    """Say why a column cannot get the wider type of the rows; empty: it can."""
    difference = f"'{name}' is {_type_name(row_type)}, the table has {_type_name(table_type)}"
    if not isinstance(table_type, str) or row_type not in WIDER.get(table_type, ()):
        return [difference]
    if not config.widen:
        return [f"{difference} (DeltaSink(widen=True) would widen it)"]
    if table.metadata().configuration.get(WIDENING) != "true":
        return [f"{difference} (to allow it: ALTER TABLE … SET TBLPROPERTIES ('{WIDENING}' = 'true'))"]
    return []


def _find_foreign_type(kind: Any) -> str | None:
    """Find a type that Delta does not have, at any depth; None: there is none."""
    if isinstance(kind, str):
        return kind if kind.startswith(FOREIGN) else None
    if kind["type"] == "udt":
        return _find_foreign_type(kind["sqlType"])
    for inner_type in table_snapshot.inner_types(kind):
        foreign = _find_foreign_type(inner_type)
        if foreign:
            return foreign
    return None


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind.get("type", kind))


def _features_of(field: dict[str, Any]) -> set[str]:
    """Return the features by which writers fill in a column, as far as it says that they shall."""
    return {feature for key, feature in COMPUTED.items() if key in field["metadata"]}


def _without_feature(field: dict[str, Any]) -> str:
    features = sorted(_features_of(field))
    return f" (to fill it in, the table's protocol would need {', '.join(features)})" if features else ""
