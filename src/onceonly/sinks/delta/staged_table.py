"""A staged table: a nested table inside the target's folder, with rows that no reader of the target sees.

Its log has the creation, which repeats what the target enforces, and one write. Source: Delta protocol, "Change
Metadata", "Add File and Remove File".
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from onceonly.counts import count
from onceonly.delta import log_files, statistics, table_features, table_files, table_snapshot
from onceonly.delta.table_snapshot import TableSnapshot
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.sinks import PARTITIONS, DeltaSink
from onceonly.sinks.delta import in_process_writer, parquet_writer
from onceonly.sinks.staging import row_text, row_types
from onceonly.spark.conf import PARQUET_TIMES, temporary_conf
from onceonly.storage.objects import WRITTEN, Objects
from onceonly.storage.paths import local_path, spark_uri

# In a staged table's first entry: the target's version, before which it cannot have been published.
TARGET_VERSION_KEY = "onceonly"
COPY_PREFIX = "merge-"  # folders in a staged one: copies that a merge or a rehearsal has written
SETTINGS_OF_TARGET = (
    "delta.autoOptimize.autoCompact",
    "delta.checkpointInterval",
)  # settings that a staged table must not have
# The staged table's log has one entry, which one task reads instead of Delta's default of 50.
WRITE_SETTINGS = {"spark.databricks.delta.snapshotPartitions": "1", **PARQUET_TIMES}


def create(
    target: table_snapshot.Table,
    folder: str,
    plain: bool,
    added: list[dict[str, Any]],
    widened: dict[str, str],
    enforce: bool = True,
    partitioned: bool = True,
) -> str:
    """Create an empty table inside the target that enforces what the target enforces; returns its URI.

    With `plain` it has the target's protocol and settings; without (publishing through Spark, which applies the
    target's features itself) only its columns, and the features that their types need.

    Args:
        added: columns that the target is going to have.
        widened: name -> type that a column of it is going to have.
        enforce: without it, only the types are checked: the rows come from the target.
        partitioned: without it, it has only the columns that the target's files have, and no partitions.
    """
    metadata, protocol = target.metadata(), target.protocol()
    schema = json.loads(target.schema().to_json())
    for field in schema["fields"]:
        field["type"] = widened.get(field["name"], field["type"])
    schema["fields"] += added
    partition_columns = list(metadata.partition_columns) if partitioned else []
    if not partitioned:
        schema["fields"] = table_snapshot.without_columns(schema["fields"], metadata.partition_columns)
    configuration: dict[str, str] = {}
    table_schema = _without_column_metadata(schema)
    if plain and enforce:
        for name, value in metadata.configuration.items():
            if name not in SETTINGS_OF_TARGET:
                configuration[name] = value
        table_schema = schema
    base_protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if plain:
        base_protocol = table_features.protocol_action(protocol)
    actions = [
        {"protocol": table_features.with_features(base_protocol, table_features.type_features(schema))},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(table_schema),
                "partitionColumns": partition_columns,
                "configuration": configuration,
                "createdTime": int(time.time() * 1000),
            }
        },
    ]
    uri = target.table_uri.rstrip("/")
    commit_info = {
        "timestamp": int(time.time() * 1000),
        "operation": "CREATE TABLE",
        TARGET_VERSION_KEY: _identify_newest_version(target),
    }
    text = "\n".join(map(json.dumps, [{"commitInfo": commit_info}, *actions]))
    if local_path(uri):
        files = table_files.open_folder(uri)
        files.create_dir(f"{folder}/{log_files.LOG_FOLDER}", recursive=True)
        table_files.write_text(files, f"{folder}/{log_files.entry_path(0)}", text)
    else:
        Objects(f"{uri}/{folder}").write(log_files.entry_path(0), text.encode())
    return f"{uri}/{folder}"


def _identify_newest_version(target: table_snapshot.Table) -> dict[str, Any] | None:
    if isinstance(target, TableSnapshot):
        return {"version": target.version(), "entry": target.digest} if target.digest else None
    return table_files.identify_version(table_files.open_folder(target.table_uri), target.version())


def _without_column_metadata(schema: dict[str, Any]) -> dict[str, Any]:
    """Return columns and types alone: no generation expressions, identities or physical names."""
    fields = []
    for column in schema["fields"]:
        fields.append({**column, "metadata": {}})
    return {**schema, "fields": fields}


def write(uri: str, rows: Any, is_small_batch: bool = False) -> None:
    """Write all rows in one Delta commit: with Spark, unless they are few rows of a small batch.

    The staged table refuses rows that the target would refuse: where that is more than a matter of columns and types,
    Delta's own writer does it.
    """
    if is_small_batch and in_process_writer.write(uri, rows):
        return
    if parquet_writer.write(uri, rows):
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
            code="storage-not-shared",
        )


def check_condition(config: DeltaSink, staged_uri: str) -> None:
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
            code="rows-outside-condition",
        )


def read_adds(target_uri: str, folder: str, version: int) -> list[dict[str, Any]]:
    """Read the add actions of the staged table's only write; paths as in that log. No rows: Spark writes no entry."""
    try:
        return parse_adds(_read_lines(target_uri, folder, log_files.entry_path(version)), folder)
    except FileNotFoundError:
        return []


def parse_adds(lines: Iterable[bytes], folder: str) -> list[dict[str, Any]]:
    """Return the add actions of the log entry of a staged table's write.

    Raises:
        ValueError: it did something else than to add files.
    """
    adds = []
    for action in map(json.loads, lines):
        if "remove" in action or "metaData" in action:
            raise ValueError(f"{folder}: version 1 is not a plain append")
        if "add" in action:
            adds.append(action["add"])
    return adds


def _read_lines(target_uri: str, folder: str, path: str) -> Iterator[bytes]:
    if local_path(target_uri):
        return table_files.read_lines(table_files.open_folder(target_uri), f"{folder}/{path}")
    return iter(Objects(f"{target_uri.rstrip('/')}/{folder}").read(path, WRITTEN).splitlines())


def to_target_adds(adds: list[dict[str, Any]], folder: str, target: table_snapshot.Table) -> list[AddAction]:
    """Return actions that add the same files to the target: with its paths, and statistics that a commit may tell."""
    return to_actions(with_folder(adds, folder), target)


def with_folder(adds: Iterable[Mapping[str, Any]], folder: str) -> list[dict[str, Any]]:
    """Return the add actions of a folder's table with paths in the table around it."""
    return [{**add, "path": f"{folder}/{add['path']}"} for add in adds]


def to_actions(adds: list[dict[str, Any]], target: table_snapshot.Table) -> list[AddAction]:
    """Return what adds these files of the target's folder to it. delta-rs encodes a path again: they go in decoded."""
    actions = []
    for add in statistics.with_settled_statistics(adds, target):
        action = AddAction(
            path=unquote(add["path"]),
            size=add["size"],
            partition_values=add["partitionValues"],
            modification_time=add["modificationTime"],
            data_change=True,
            stats=add.get("stats") or "{}",
        )
        actions.append(action)
    return actions


def list_missing_files(target_uri: str, folder: str, adds: list[dict[str, Any]]) -> list[str]:
    """List the staged files that are missing or have another size (a VACUUM deletes what was not published in time).

    The entry that lists them is one of them: it may be in the memory of this process, and no longer in the store.
    """
    sizes = {info.path: info.size for info in table_files.list_folder(target_uri, folder, recursive=True)}
    missing = table_files.find_missing(adds, folder, sizes)
    log_entry = f"{folder}/{log_files.entry_path(1)}"
    if adds and log_entry not in sizes:
        missing.append(log_entry)
    return missing


def read_batches(uri: str) -> pa.RecordBatchReader | None:
    """Return all rows of a staged table; None if only Spark can read them.

    They are read by pyarrow, because the engine of delta-rs fails on invalid UTF-8.
    """
    table = DeltaTable(uri)
    try:
        schema = row_types.arrow(json.loads(table.schema().to_json()))
    except row_types.OnlySpark:
        return None
    return pa.RecordBatchReader.from_batches(schema, _read_batches(table, schema))


def _read_batches(table: DeltaTable, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.dataset as ds  # with pandas, which takes a second

    paths = sorted(map(unquote, table_files.list_active_files(table)))
    partition_fields = pa.schema([(name, pa.string()) for name in table.metadata().partition_columns])
    stored_fields = pa.schema([field for field in schema if field.name not in partition_fields.names])
    file_format = ds.ParquetFileFormat(read_options=row_types.MICROS)
    partitioning = ds.partitioning(partition_fields, flavor="hive")
    files = table_files.open_folder(table.table_uri)
    all_fields = pa.schema([*stored_fields, *partition_fields])
    rows: Any = ()
    if paths:
        dataset = ds.dataset(paths, all_fields, file_format, files, partitioning, partition_base_dir="")
        rows = dataset.to_batches()
    yield from row_text.batches(rows, schema, stored_fields, row_text.as_it_is)
