"""Every transaction identifier that a table's log shows; a table library answers only for one that it is told.

Cost: the log entries since the last log checkpoint, and one column of that.
Source: Delta protocol, "Transaction Identifiers", "Checkpoints".
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from onceonly.sinks.delta import log

CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)")


def versions(table: DeltaTable) -> dict[str, int]:
    """App id -> version, as of the snapshot that `table` is."""
    files = log.file_system(table.table_uri)
    names = [info.base_name for info in log.entries(table.table_uri, "_delta_log")]
    start, parts = _last_checkpoint(names, table.version())
    wanted = [*parts, *(f"{number:020}.json" for number in range(start + 1, table.version() + 1))]
    found = (txn for name in wanted for txn in _of_file(files, f"_delta_log/{name}"))
    return {txn["appId"]: txn["version"] for txn in found}


def _last_checkpoint(names: Iterable[str], newest: int) -> tuple[int, list[str]]:
    """(its version, its files), of the last one of which every file is there; -1 where there is none."""
    groups: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name in names:
        if (match := CHECKPOINT.fullmatch(name)) and int(match[1]) <= newest:
            groups[int(match[1]), int(match[2] or 1)].append(name)
    whole = {version: sorted(group) for (version, parts), group in groups.items() if len(group) >= parts}
    last = max(whole, default=-1)
    return last, whole.get(last, [])


def _of_file(files: pafs.FileSystem, path: str) -> list[dict[str, Any]]:
    if path.endswith(".parquet"):
        with files.open_input_file(path) as part:
            found: list[dict[str, Any]] = pq.ParquetFile(part).read(["txn"])["txn"].drop_null().to_pylist()
        return found
    with files.open_input_stream(path) as entry:
        actions = (json.loads(line) for line in entry.read().decode().splitlines() if '"txn"' in line)
        return [action["txn"] for action in actions if action.get("txn")]
