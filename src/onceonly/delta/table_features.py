"""The features of Delta's protocol: what a table demands of its readers and writers, and who has it.

Source: Delta protocol, "Table Features", "Reader Version Requirements", "Writer Version Requirements".
"""

from __future__ import annotations

from typing import Any

from onceonly.delta import table_snapshot

# Writer features under which adding plain files is all that an append is. Others go through Spark.
APPENDABLE = {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
APPENDABLE |= {"deletionVectors"}
# Features of tables that Delta 4.4 on Spark writes. An older one may not: a rehearsal finds that before the decision.
SPARK_WRITABLE = {"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "columnMapping"}
SPARK_WRITABLE |= {
    "identityColumns",
    "timestampNtz",
    "deletionVectors",
    "domainMetadata",
    "v2Checkpoint",
    "rowTracking",
}
SPARK_WRITABLE |= {"icebergCompatV1", "icebergCompatV2", "icebergCompatV3", "clustering", "inCommitTimestamp"}
SPARK_WRITABLE |= {
    "inCommitTimestamp-preview",
    "typeWidening",
    "typeWidening-preview",
    "variantType",
    "variantType-preview",
}
SPARK_WRITABLE |= {"variantShredding", "variantShredding-preview", "vacuumProtocolCheck", "allowColumnDefaults"}
SPARK_WRITABLE |= {"checkpointProtection", "materializePartitionColumns", "geospatial"}
LAST_WRITER_VERSION = 7  # of the writer
# Reader features that do not change what a data file means.
SOURCE_READABLE = {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
TYPE_FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}  # of readers and writers
WRITER_VERSIONS = {  # versions of the writer, before features were named
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
}
LAST_APPENDABLE_VERSION = (
    4  # of the writer, before features were named: generated columns and change data feed included
)
NAMED_FEATURES_VERSION = 7  # the version of the writer from which on they are


def find_unsupported(table: table_snapshot.Table) -> str | None:
    """Say what stands against adding files through delta-rs; None: they can be added."""
    protocol = table.protocol()
    features = set(protocol.writer_features or [])
    if features - APPENDABLE:
        return ", ".join(sorted(features - APPENDABLE))
    if protocol.min_writer_version < 7 and protocol.min_writer_version > LAST_APPENDABLE_VERSION:
        return f"writer version {protocol.min_writer_version}"
    return None


def type_features(kind: Any) -> set[str]:
    """Return the features without which a table cannot have columns of these types, at any depth."""
    if isinstance(kind, str):
        return {TYPE_FEATURES[kind]} if kind in TYPE_FEATURES else set()
    return set().union(*map(type_features, table_snapshot.inner_types(kind)))


def with_features(protocol: dict[str, Any], features: set[str]) -> dict[str, Any]:
    """Return the protocol with these features, whose names it can tell from the last versions on."""
    if features <= set(protocol.get("writerFeatures") or ()):
        return protocol
    writer_features = protocol.get("writerFeatures")
    if writer_features is None:
        writer_features = [name for name, version in WRITER_VERSIONS.items() if version <= protocol["minWriterVersion"]]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*(protocol.get("readerFeatures") or ()), *features}),
        "writerFeatures": sorted({*writer_features, *features}),
    }


def protocol_action(protocol: Any) -> dict[str, Any]:
    action = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
    if (
        protocol.min_reader_version >= 3
    ):  # required from there on, also where it is empty, which deltalake shows as None
        action["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= 7:
        action["writerFeatures"] = protocol.writer_features or []
    return action
