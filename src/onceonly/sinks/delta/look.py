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
    """Of a table."""

    id: str
    partition_columns: list[str]
    configuration: Mapping[str, str]


@dataclass(frozen=True)
class Look:
    """One version of a table on an object store.

    Args:
        told: its `metaData` and `protocol` actions.
        txns: app id -> version.
        digest: SHA-256 of its log entry; None: that is no longer there.
    """

    table_uri: str
    told: Mapping[str, Mapping[str, Any]]
    txns: Mapping[str, int]
    number: int
    digest: str | None  # of the content of its entry

    def version(self) -> int:
        return self.number

    def metadata(self) -> Metadata:
        found = self.told["metaData"]
        return Metadata(found["id"], list(found.get("partitionColumns") or ()), dict(found.get("configuration") or {}))

    def protocol(self) -> ProtocolVersions:
        found = self.told["protocol"]
        features = found.get("writerFeatures"), found.get("readerFeatures")
        return ProtocolVersions(found["minReaderVersion"], found["minWriterVersion"], *features)

    def schema(self) -> Schema:
        return Schema.from_json(json.dumps(json.loads(self.told["metaData"]["schemaString"])))

    def transaction_version(self, app_id: str) -> int | None:
        return self.txns.get(app_id)
