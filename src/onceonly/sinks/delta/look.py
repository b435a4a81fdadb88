"""What a table is by its log, as far as an append has to know, in the words of `DeltaTable`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import Schema
from deltalake.table import ProtocolVersions


@dataclass(frozen=True)
class Metadata:
    """What a table's `metaData` action says, as far as an append has to know."""

    id: str
    partition_columns: list[str]
    configuration: Mapping[str, str]


@dataclass(frozen=True)
class Look:
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
