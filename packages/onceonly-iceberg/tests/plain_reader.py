"""Reads a table of a SQLite catalog without PyIceberg: SQL, JSON, Avro and Parquet, as the specification says."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import fastavro
import pyarrow.parquet as pq

DELETED, DATA = 2, 0  # status of a manifest's entry, content of a file


def read_metadata(folder: str) -> dict[str, Any]:
    with closing(sqlite3.connect(f"{folder}/catalog.db")) as db:
        [(location,)] = db.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
    with open(local(location), encoding="utf-8") as file:
        metadata: dict[str, Any] = json.load(file)
    return metadata


def list_files(folder: str, branch: str = "main") -> Iterator[dict[str, Any]]:
    """Yield the data files of a branch's head."""
    metadata = read_metadata(folder)
    head = metadata.get("refs", {}).get(branch)
    if head is None:
        return
    [snapshot] = [one for one in metadata["snapshots"] if one["snapshot-id"] == head["snapshot-id"]]
    for manifest in read_avro(snapshot["manifest-list"]):
        for entry in read_avro(manifest["manifest_path"]):
            if entry["status"] != DELETED:
                assert entry["data_file"]["content"] == DATA, "it has deletes"
                yield entry["data_file"]


def read_column(folder: str, name: str, branch: str = "main") -> list[Any]:
    """Return all values of a column, in order."""
    values = []
    for file in list_files(folder, branch):
        rows = pq.ParquetFile(local(file["file_path"])).read(columns=[name])
        assert rows.num_rows == file["record_count"]
        values += rows[name].to_pylist()
    return sorted(values)


def read_avro(uri: str) -> list[dict[str, Any]]:
    with open(local(uri), "rb") as file:
        return list(fastavro.reader(file))  # type: ignore[arg-type]


def local(uri: str) -> str:
    return uri.removeprefix("file://")
