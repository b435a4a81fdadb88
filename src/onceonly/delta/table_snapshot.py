"""A table by its log, as far as an append has to know it, in the words of `DeltaTable`; and its columns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.table import ProtocolVersions

from onceonly.json_values.text import canonical


@dataclass(frozen=True)
class Metadata:
    """What a table's `metaData` action says, as far as an append has to know."""

    id: str
    partition_columns: list[str]
    configuration: Mapping[str, str]


@dataclass(frozen=True)
class TableSnapshot:
    """One version of a table on an object store.

    Args:
        actions: its `metaData` and `protocol`.
        txns: app id -> version.
        digest: SHA-256 of its log entry; None: that is no longer there.
    """

    table_uri: str
    actions: Mapping[str, Mapping[str, Any]]
    txns: Mapping[str, int]
    number: int
    digest: str | None  # of the content of its entry

    def version(self) -> int:
        return self.number

    def metadata(self) -> Metadata:
        action = self.actions["metaData"]
        partition_columns = list(action.get("partitionColumns") or ())
        return Metadata(action["id"], partition_columns, dict(action.get("configuration") or {}))

    def protocol(self) -> ProtocolVersions:
        action = self.actions["protocol"]
        features = action.get("writerFeatures"), action.get("readerFeatures")
        return ProtocolVersions(action["minReaderVersion"], action["minWriterVersion"], *features)

    def schema(self) -> Schema:
        return Schema.from_json(json.dumps(json.loads(self.actions["metaData"]["schemaString"])))

    def transaction_version(self, app_id: str) -> int | None:
        return self.txns.get(app_id)


Table = DeltaTable | TableSnapshot


def column_names(table: Table) -> list[str]:
    """Return the names of the table's columns, in their order."""
    return [field.name for field in table.schema().fields]


def column_fields(table: Table) -> list[dict[str, Any]]:
    """Return the table's columns in the JSON form of a schema: name, type, nullable, metadata."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


def without_columns(fields: Iterable[Mapping[str, Any]], names: Collection[str]) -> list[Mapping[str, Any]]:
    """Return the columns, in the JSON form of a schema, that have other names than these."""
    return [field for field in fields if field["name"] not in names]


def types_by_name(fields: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return name -> type of columns in the JSON form of a schema."""
    return {field["name"]: field["type"] for field in fields}


def inner_types(kind: Mapping[str, Any]) -> list[Any]:
    """Return the types of which a struct, an array or a map consists."""
    types = [field["type"] for field in kind.get("fields", ())]
    for name in ("elementType", "keyType", "valueType"):
        if name in kind:
            types.append(kind[name])
    return types


def fingerprint(table: Table, without: Iterable[str] = ()) -> str:
    """Return a digest that changes with whatever decides if staged files fit.

    That is schema, partitioning, constraints, protocol.

    Args:
        without: columns that do not count.
    """
    metadata, protocol = table.metadata(), table.protocol()
    constraints = {}
    for name, condition in metadata.configuration.items():
        if name.startswith("delta.constraints."):
            constraints[name] = condition
    features = sorted(protocol.writer_features or [])
    schema = json.loads(table.schema().to_json())
    schema["fields"] = without_columns(schema["fields"], set(without))
    shape = [schema, metadata.partition_columns, constraints, protocol.min_writer_version, features]
    return hashlib.sha256(canonical(shape).encode()).hexdigest()[:16]  # stored in handles: it must stay as it is
