"""Publishing changes into a table, against a MERGE by Spark and one by delta-rs of the same staged changes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.ratio import against, alternate
from benchmarks.results import Result
from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import table_snapshot, txn_identifiers
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.settings import Settings
from onceonly.sinks.delta import staged_table
from onceonly.sinks.delta.handle import store_merge
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.spark.session import session

FILES = 40
ROWS, CHANGES = 10_000_000, 100_000
CONDITION = "t.id = s.id"
NEVER: Any = None


def merge(folder: Path, rows: int = ROWS, changes: int = CHANGES, rounds: int = 3) -> Result:
    """Every side has a copy of its own of the same table, by hard links, each time."""
    table, txn = folder / "table", Transaction("5e1f" * 8, "bench", "lake", 1, 1, "0a1b2c3d4e5f")
    _make(table, rows)
    handle = _stage(table, txn, rows, changes)
    spark, numbers = session(Settings.from_env()), count(1)

    def on_a_copy(publish: Callable[[str], object]) -> Callable[[], None]:
        def work() -> None:
            own = folder / f"copy-{next(numbers)}"
            shutil.copytree(table, own, copy_function=os.link)
            publish(str(own))
            shutil.rmtree(own)

        return work

    sides = {
        "Onceonly": on_a_copy(lambda uri: _ours(uri, handle)),
        "Spark MERGE": on_a_copy(lambda uri: _by_spark(spark, uri, handle)),
        "delta-rs MERGE": on_a_copy(lambda uri: _by_delta_rs(uri, handle)),
    }
    how = f"{changes:,} changes of random keys, merged into a table of {rows:,} rows in {FILES} files."
    return Result("Merging changes", how, against(alternate(sides, rounds)))


def _make(table: Path, rows: int) -> None:
    for start in range(0, rows, rows // FILES):
        write_deltalake(str(table), _rows(range(start, start + rows // FILES), 1), mode="append")


def _stage(table: Path, txn: Transaction, rows: int, changes: int) -> Handle:
    target, folder = DeltaTable(str(table)), txn_identifiers.STAGED_PREFIX + txn.name
    keys = random.Random(16).sample(range(rows + rows // 100), changes)
    write_deltalake(staged_table.create(target, folder, True, [], {}), _rows(keys, 2), mode="append")
    return {
        "table_id": target.metadata().id,
        "fingerprint": table_snapshot.fingerprint(target),
        "app_id": txn.app_id,
        "folder": folder,
        **{"added": [], "publish": "delta-rs", "files": 1, "rows": changes},
        "merge": store_merge(Merge(keys=["id"], order_by=["lsn"])),
    }


def _rows(keys: Any, lsn: int) -> pa.Table:
    names = [f"customer number {key} of many, with some text" for key in keys]
    ids = pa.array(list(keys), pa.int64())
    return pa.table({"id": ids, "lsn": pa.array([lsn] * len(ids), pa.int64()), "name": names})


def _ours(uri: str, handle: Handle) -> None:
    DeltaWriter(DeltaSink("lake", uri), uri, lambda: None).commit({**handle, "uri": uri}, 1, NEVER)


def _by_spark(spark: Any, uri: str, handle: Handle) -> None:
    matched = "WHEN MATCHED AND s.lsn > t.lsn THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    spark.sql(f"MERGE INTO delta.`{uri}` t USING delta.`{uri}/{handle['folder']}` s ON {CONDITION} {matched}")


def _by_delta_rs(uri: str, handle: Handle) -> None:
    changes = DeltaTable(f"{uri}/{handle['folder']}").to_pyarrow_table()
    merging = DeltaTable(uri).merge(changes, CONDITION, source_alias="s", target_alias="t")
    merging.when_matched_update_all("s.lsn > t.lsn").when_not_matched_insert_all().execute()
