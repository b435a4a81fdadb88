"""Compares the columns of rows with those of a Delta table, and determines the permitted changes of the table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, Field

from onceonly.checkpoint.model import Handle
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import lock, log
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
NAMED_FEATURES = 7  # the version of the writer from which on they are


@dataclass(frozen=True)
class Change:
    """How the commit of the rows changes the table's columns.

    Args:
        added: the fields of new columns.
        widened: name -> type of the columns that get a wider type.
    """

    added: list[dict[str, Any]]
    widened: dict[str, str]


def check_rows(config: DeltaSink, rows: Any) -> None:
    """Refuse rows that no table can have.

    Raises:
        InvalidPipeline: two columns have one name, or a type is not one of Delta's; names each column.
    """
    refuse_duplicates(config.name, rows)
    fields = json.loads(rows.schema.json())["fields"]
    if foreign := [f"'{field['name']}' is {found}" for field in fields if (found := _foreign(field["type"]))]:
        raise InvalidPipeline(
            f"sink '{config.name}': a Delta table cannot hold the rows.",
            f"Columns: {'; '.join(foreign)}.",
            "Cast them in the transform, an interval for example to a number or to text. Nothing was staged.",
            code="column-type",
        )


def check(config: DeltaSink, table: log.Table, rows: Any) -> Change:
    """Compare the columns and types of the rows with the table's. Generated columns may be missing.

    Raises:
        InvalidPipeline: they do not match; names each column.
    """
    have = {field["name"]: field["type"] for field in json.loads(rows.schema.json())["fields"]}
    fields = json.loads(table.schema().to_json())["fields"]
    want = {field["name"]: field["type"] for field in fields}
    filled_in = computed(table)
    other = [name for name in want if name in have and nullable(have[name]) != nullable(want[name])]
    new = [name for name in have if name not in want]
    problems = [
        f"'{field['name']}' is missing{_without_feature(field)}"
        for field in fields
        if field["name"] not in have and field["name"] not in filled_in
    ]
    problems += [why for name in new if (why := _against_adding(config, table, name, have[name]))]
    problems += [why for name in other if (why := _against_widening(config, table, name, have[name], want[name]))]
    if problems:
        raise InvalidPipeline(
            f"sink '{config.name}': the rows do not match the table.",
            f"Columns: {'; '.join(problems)}.",
            "Change the transform's output (select, cast) or the table. Nothing was staged.",
            code="columns-differ",
        )
    added = [{"name": name, "type": nullable(have[name]), "nullable": True, "metadata": {}} for name in new]
    return Change(added, {name: have[name] for name in other})


def computed(table: log.Table) -> set[str]:
    """Columns that the table fills in: generated ones, identities, and those with a default.

    Without the feature in the table's protocol, writers pass over what a column says of that, and would store null.
    """
    protocol = table.protocol()
    features = set(protocol.writer_features or ())
    if protocol.min_writer_version < NAMED_FEATURES:
        features = {name for name, since in SINCE.items() if since <= protocol.min_writer_version}
    fields = json.loads(table.schema().to_json())["fields"]
    return {field["name"] for field in fields if features.intersection(_features_of(field))}


def left_out(table: log.Table, rows: Any) -> list[str]:
    """Columns that the table fills in because the rows do not have them."""
    return sorted(computed(table) - set(rows.schema.names))


def names(fields: list[Any]) -> list[str]:
    return [field["name"] for field in fields]


# ---- at the commit


def add(target: DeltaTable, handle: Handle) -> bool:
    """Add the new columns, in a commit before that of the rows. Returns whether there were any."""
    there = {field.name for field in target.schema().fields}
    new = [Field.from_json(json.dumps(field)) for field in handle["added"] if field["name"] not in there]
    if not new or is_altered(target, handle):
        return False
    with lock.shared(target.table_uri):
        target.alter.add_columns(new)
    return True


def is_altered(target: log.Table, handle: Handle) -> bool:
    """Whether the table was altered since staging. A column to be added may exist by now, with another type."""
    there = {field["name"]: field["type"] for field in json.loads(target.schema().to_json())["fields"]}
    new = handle["added"]
    others = any(nullable(there.get(each["name"], each["type"])) != each["type"] for each in new)
    return others or bool(log.fingerprint(target, names(new)) != handle["fingerprint"])


# ---- columns and types


def _against_adding(config: DeltaSink, table: log.Table, name: str, kind: Any) -> str | None:
    if not config.add_columns:
        return f"'{name}' is not in the table (DeltaSink(add_columns=True) would add it)"
    if against := log.takes_plain_append(table):
        return f"'{name}' cannot be added, because delta-rs does not support {against} (use ALTER TABLE)"
    if missing := log.type_features(kind) - set(table.protocol().writer_features or ()):
        features = ", ".join(sorted(missing))
        return f"'{name}' cannot be added, because the table's protocol does not have {features} (use ALTER TABLE)"
    return None


def _against_widening(config: DeltaSink, table: log.Table, name: str, have: Any, want: Any) -> str | None:
    told = f"'{name}' is {_type(have)}, the table has {_type(want)}"
    if not isinstance(want, str) or have not in WIDER.get(want, ()):
        return told
    if not config.widen:
        return f"{told} (DeltaSink(widen=True) would widen it)"
    if table.metadata().configuration.get(WIDENING) != "true":
        return f"{told} (to allow it: ALTER TABLE … SET TBLPROPERTIES ('{WIDENING}' = 'true'))"
    return None


def _foreign(kind: Any) -> str | None:
    """A type that Delta does not have, at any depth; None: there is none."""
    if isinstance(kind, str):
        return kind if kind.startswith(FOREIGN) else None
    if kind["type"] == "udt":
        return _foreign(kind["sqlType"])
    parts = [field["type"] for field in kind.get("fields", ())]
    parts += [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]
    return next((found for part in parts if (found := _foreign(part))), None)


def _type(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind.get("type", kind))


def _features_of(field: dict[str, Any]) -> set[str]:
    """The features by which writers fill in a column, as far as it says that they shall."""
    return {feature for key, feature in COMPUTED.items() if key in field["metadata"]}


def _without_feature(field: dict[str, Any]) -> str:
    features = sorted(_features_of(field))
    return f" (to fill it in, the table's protocol would need {', '.join(features)})" if features else ""
