"""The files of a pipeline's table, as its log names them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

OF_A_FILE = ["path", "size_bytes", "num_records", "min.seq", "max.seq"]


def list_files(table: DeltaTable) -> list[dict[str, Any]]:
    """Return the log's record of each file, with the keys of `OF_A_FILE`, in the order of their rows."""
    adds = pa.table(table.get_add_actions(flatten=True))
    files: list[dict[str, Any]] = adds.select(OF_A_FILE).to_pylist() if adds.num_rows else []
    return sorted(files, key=lambda file: file["min.seq"])


def select_small(files: list[dict[str, Any]], full: int) -> list[dict[str, Any]]:
    """Return, of all files of a table, those after the last one of `full` bytes or more.

    Files before it are never merged, even if a single row filled it.
    """
    last = max((file["max.seq"] for file in files if file["size_bytes"] >= full), default=0)
    return [file for file in files if file["max.seq"] > last]


def list_obsolete(table: DeltaTable) -> list[str]:
    """Return the files that merges took out of the table longer ago than it keeps them for readers of older versions.

    A log checkpoint forgets them. Files that no entry names are never among them: a stopped process may be about to
    name one.
    """
    return [path for path in table.vacuum(dry_run=True) if "/" not in path]
