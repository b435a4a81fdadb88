"""Delta log entries and files, below what a table library offers: the one module that knows how a log is laid out.

Source: Delta protocol, "Delta Log Entries", "Change Metadata", "Add File".
"""

from __future__ import annotations

import hashlib
import io
import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from onceonly.checkpoint.model import canonical
from onceonly.sinks.delta import statistics
from onceonly.sinks.delta.look import Look
from onceonly.storage import durability
from onceonly.storage.objects import WRITTEN, Objects
from onceonly.storage.paths import local_path

Table = DeltaTable | Look
Where = list[list[tuple[str, str, Any]]]  # alternatives, each of (partition column, operator, value)
LOG = "_delta_log"
# In a staged table's first entry: the target's version, before which it cannot have been published.
TARGET_VERSION_KEY = "onceonly"
STAGED = "staged-"  # not a hidden name: VACUUM of the target must see, and in time delete, what was never published
COPIES = "merge-"  # folders in a staged one: copies that a merge or a rehearsal has written

# Writer features under which adding plain files is all that an append is. Others go through Spark.
PLAIN_APPEND = {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
PLAIN_APPEND |= {"deletionVectors"}
TYPE_FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}  # of readers and writers
SINCE = {  # versions of the writer, before features were named
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
}
LAST_PLAIN_VERSION = 4  # of the writer, before features were named: generated columns and change data feed included
PER_TABLE = ("delta.autoOptimize.autoCompact", "delta.checkpointInterval")  # settings that a staged table must not have


def open_table(uri: str) -> DeltaTable | None:
    """Open the table there; None: there is none."""
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def file_system(uri: str) -> pafs.FileSystem:
    """Return the folder of a table; on an object store through the same layer (and credentials) as the table itself."""
    if path := local_path(uri):
        return pafs.SubTreeFileSystem(str(path), pafs.LocalFileSystem())
    return pafs.PyFileSystem(DeltaStorageHandler(uri))


def write(files: pafs.FileSystem, path: str, text: str) -> None:
    """Write a file of the table in one call, in place of one of that name."""
    data = text.encode()
    with files.open_output_stream(path, buffer_size=len(data) + 1) as out:
        out.write(data)  # from within a buffer that holds it all: delta-rs takes bytes, pyarrow would hand it a Buffer


def entries(uri: str, folder: str = "", recursive: bool = False) -> list[pafs.FileInfo]:
    """List what a folder of the table holds; nothing, where the table's own folder is not there.

    (delta-rs refuses to list that.)
    """
    selector = pafs.FileSelector(folder, recursive=recursive, allow_not_found=True)
    try:
        infos: list[pafs.FileInfo] = file_system(uri).get_file_info(selector)
    except TableNotFoundError:
        return []
    return infos


def entry(version: int) -> str:
    """Return the path of the log entry of a version."""
    return f"{LOG}/{version:020}.json"


def lines(files: pafs.FileSystem, path: str) -> Iterator[bytes]:
    """Yield the actions of a log entry, one by one: it may name as many files as the table has."""
    with files.open_input_stream(path) as stream:
        yield from io.BufferedReader(stream)


def identify_version(files: pafs.FileSystem, version: int) -> dict[str, Any] | None:
    """Return what identifies that version of a table: its number, and a digest (SHA-256) of its log entry.

    None: its log entry is no longer there.
    """
    try:
        with files.open_input_stream(entry(version)) as stream:
            return {"version": version, "entry": hashlib.file_digest(io.BufferedReader(stream), "sha256").hexdigest()}
    except FileNotFoundError:
        return None


def column_names(table: Table) -> list[str]:
    """Return the names of the table's columns, in their order."""
    return [field.name for field in table.schema().fields]


def column_fields(table: Table) -> list[dict[str, Any]]:
    """Return the table's columns in the JSON form of a schema: name, type, nullable, metadata."""
    fields: list[dict[str, Any]] = json.loads(table.schema().to_json())["fields"]
    return fields


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
    schema["fields"] = [field for field in schema["fields"] if field["name"] not in set(without)]
    shape = [schema, metadata.partition_columns, constraints, protocol.min_writer_version, features]
    return hashlib.sha256(canonical(shape).encode()).hexdigest()[:16]


def takes_plain_append(table: Table) -> str | None:
    """Say what stands against adding files through delta-rs; None: they can be added."""
    protocol = table.protocol()
    features = set(protocol.writer_features or [])
    if features - PLAIN_APPEND:
        return ", ".join(sorted(features - PLAIN_APPEND))
    if protocol.min_writer_version < 7 and protocol.min_writer_version > LAST_PLAIN_VERSION:
        return f"writer version {protocol.min_writer_version}"
    return None


def create_staged(
    target: Table,
    folder: str,
    plain: bool,
    added: list[dict[str, Any]],
    widened: dict[str, str],
    enforce: bool = True,
) -> str:
    """Create an empty table inside the target that enforces what the target enforces; returns its URI.

    With `plain` it has the target's protocol and settings; without (publishing through Spark, which applies the
    target's features itself) only its columns, and the features that their types need.

    Args:
        added: columns that the target is going to have.
        widened: name -> type that a column of it is going to have.
        enforce: without it, only the types are checked: the rows come from the target.
    """
    metadata, protocol = target.metadata(), target.protocol()
    schema = json.loads(target.schema().to_json())
    for field in schema["fields"]:
        field["type"] = widened.get(field["name"], field["type"])
    schema["fields"] += added
    configuration: dict[str, str] = {}
    table_schema = _without_column_metadata(schema)
    if plain and enforce:
        configuration = {name: value for name, value in metadata.configuration.items() if name not in PER_TABLE}
        table_schema = schema
    base_protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if plain:
        base_protocol = _protocol_action(protocol)
    actions = [
        {"protocol": _with_features(base_protocol, type_features(schema))},
        {
            "metaData": {
                "id": str(uuid.uuid4()),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(table_schema),
                "partitionColumns": list(metadata.partition_columns),
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
        files = file_system(uri)
        files.create_dir(f"{folder}/{LOG}", recursive=True)
        write(files, f"{folder}/{entry(0)}", text)
    else:
        Objects(f"{uri}/{folder}").write(entry(0), text.encode())
    return f"{uri}/{folder}"


def _identify_newest_version(target: Table) -> dict[str, Any] | None:
    if isinstance(target, Look):
        return {"version": target.version(), "entry": target.digest} if target.digest else None
    return identify_version(file_system(target.table_uri), target.version())


def rows_folder(handle: Mapping[str, Any]) -> str:
    """Return the folder with the staged rows: the transaction's, or the copy in it that a rehearsal has made."""
    if "copied" in handle:
        return f"{handle['folder']}/{handle['copied']}"
    return str(handle["folder"])


def staged_adds(target_uri: str, folder: str, version: int) -> list[dict[str, Any]]:
    """Read the add actions of the staged table's only write; paths as in that log. No rows: Spark writes no entry."""
    try:
        return adds_of(_staged_lines(target_uri, folder, entry(version)), folder)
    except FileNotFoundError:
        return []


def adds_of(lines: Iterable[bytes], folder: str) -> list[dict[str, Any]]:
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


def _staged_lines(target_uri: str, folder: str, path: str) -> Iterator[bytes]:
    if local_path(target_uri):
        return lines(file_system(target_uri), f"{folder}/{path}")
    return iter(Objects(f"{target_uri.rstrip('/')}/{folder}").read(path, WRITTEN).splitlines())


def as_target_adds(adds: list[dict[str, Any]], folder: str, target: Table) -> list[AddAction]:
    """Return actions that add the same files to the target: with its paths, and statistics that a commit may tell.

    delta-rs encodes a path again, so they go in decoded.
    """
    actions = []
    for add in statistics.with_settled_statistics(adds, target):
        action = AddAction(
            path=f"{folder}/{unquote(add['path'])}",
            size=add["size"],
            partition_values=add["partitionValues"],
            modification_time=add["modificationTime"],
            data_change=True,
            stats=add.get("stats") or "{}",
        )
        actions.append(action)
    return actions


def active_files(table: DeltaTable) -> dict[str, int]:
    """Return path (as in the log) -> size of the files that the table's rows are in."""
    adds = table.get_add_actions()
    return dict(zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True))


def in_folder(files: dict[str, int], folder: str) -> dict[str, int]:
    """Select the files in a staged folder."""
    return {path: size for path, size in files.items() if path.startswith(f"{folder}/")}


def deleted_in_part(table: DeltaTable, files: Iterable[str]) -> list[str]:
    """Select the files of which a deletion vector hides rows, by their names, which hold a UUID.

    In the log the vector is part of a file's identity, which a `RemoveAction` cannot name.
    """
    if "deletionVectors" not in (table.protocol().reader_features or []):
        return []
    uris = pa.RecordBatchReader.from_stream(table.deletion_vectors()).read_all()["filepath"].to_pylist()
    names = set(map(_file_name, uris))
    return sorted(path for path in files if _file_name(path) in names)


def _file_name(uri: str) -> str:
    return unquote(uri).rpartition("/")[2]


def in_partitions(files: dict[str, int], table: DeltaTable, where: Where) -> dict[str, int]:
    """Select the files of the partitions that match; `files` are all that the table has."""
    paths = dict(zip(sorted(table.file_uris()), sorted(files, key=unquote), strict=True))  # one prefix: one order
    if not where:
        return {}
    return {paths[uri]: files[paths[uri]] for uri in table.file_uris(file_pruning_predicate=where)}


def partitions(adds: list[dict[str, Any]]) -> Where:
    """Return a predicate for just the partitions that add actions are in."""
    where: Where = []
    for partition in {tuple(sorted(add["partitionValues"].items())) for add in adds}:
        where.append([(column, "=", value or "") for column, value in partition])  # "" is null
    return where


def as_removes(files: dict[str, int]) -> list[RemoveAction]:
    """Return actions that remove those files from the table (paths decoded, as above). A VACUUM deletes them."""
    now = int(time.time() * 1000)
    return [RemoveAction(unquote(path), True, now, size) for path, size in sorted(files.items())]


def count(adds: list[dict[str, Any]], staged_uri: str) -> tuple[int, int]:
    """Return (rows, bytes) of add actions; a Spark that collects no statistics leaves the rows to be counted."""
    rows = size = 0
    for add in adds:
        rows += _count_rows(add, staged_uri)
        size += add["size"]
    return rows, size


def _count_rows(add: dict[str, Any], staged_uri: str) -> int:
    rows = json.loads(add.get("stats") or "{}").get("numRecords")
    if rows is None:
        with file_system(staged_uri).open_input_file(unquote(add["path"])) as file:
            rows = pq.read_metadata(file).num_rows
    return int(rows)


def missing_files(target_uri: str, folder: str, adds: list[dict[str, Any]]) -> list[str]:
    """List the staged files that are missing or have another size (a VACUUM deletes what was not published in time).

    The entry that lists them is one of them: it may be in the memory of this process, and no longer in the store.
    """
    sizes = {info.path: info.size for info in entries(target_uri, folder, recursive=True)}
    missing = missing_among(adds, folder, sizes)
    log_entry = f"{folder}/{entry(1)}"
    if adds and log_entry not in sizes:
        missing.append(log_entry)
    return missing


def missing_among(adds: list[dict[str, Any]], folder: str, sizes: dict[str, int]) -> list[str]:
    """List those of `adds` that are missing or have another size.

    Args:
        sizes: of the files that exist, by path in the target.
    """
    missing = set()
    for add in adds:
        path = f"{folder}/{unquote(add['path'])}"
        if sizes.get(path) != add["size"]:
            missing.add(path)
    return sorted(missing)


def keep(target_uri: str, folder: str | None = None) -> None:
    """Make the table's log, and what is staged in `folder`, survive a power failure from now on.

    Raises:
        OSError: they may not. Nothing may follow from them.
    """
    local = local_path(target_uri)
    if local and folder:
        durability.sync_tree(local / folder)
    if local:
        durability.Log(local).keep()


def type_features(kind: Any) -> set[str]:
    """Return the features without which a table cannot have columns of these types, at any depth."""
    if isinstance(kind, str):
        return {TYPE_FEATURES[kind]} if kind in TYPE_FEATURES else set()
    return set().union(*map(type_features, inner_types(kind)))


def _with_features(protocol: dict[str, Any], features: set[str]) -> dict[str, Any]:
    """Return the protocol with these features, whose names it can tell from the last versions on."""
    if features <= set(protocol.get("writerFeatures") or ()):
        return protocol
    writer_features = protocol.get("writerFeatures")
    if writer_features is None:
        writer_features = [name for name, version in SINCE.items() if version <= protocol["minWriterVersion"]]
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": sorted({*(protocol.get("readerFeatures") or ()), *features}),
        "writerFeatures": sorted({*writer_features, *features}),
    }


def _protocol_action(protocol: Any) -> dict[str, Any]:
    action = {"minReaderVersion": protocol.min_reader_version, "minWriterVersion": protocol.min_writer_version}
    if (
        protocol.min_reader_version >= 3
    ):  # required from there on, also where it is empty, which deltalake shows as None
        action["readerFeatures"] = protocol.reader_features or []
    if protocol.min_writer_version >= 7:
        action["writerFeatures"] = protocol.writer_features or []
    return action


def _without_column_metadata(schema: dict[str, Any]) -> dict[str, Any]:
    """Return columns and types alone: no generation expressions, identities or physical names."""
    return {**schema, "fields": [{**column, "metadata": {}} for column in schema["fields"]]}
