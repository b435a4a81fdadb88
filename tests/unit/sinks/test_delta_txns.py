"""Which log checkpoint a table's transaction identifiers are read from."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as DeltaTxn

from onceonly.filesystems.paths import local_path
from onceonly.sinks.delta import txns

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def row(app_id: str, version: int) -> dict[str, object]:
    return {"txn": {"appId": app_id, "version": version}, "add": None}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Versions 0 to 4; number n is written by app 'n'."""
    for number in range(5):
        stamp = CommitProperties(app_transactions=[DeltaTxn(str(number), number)])
        write_deltalake(str(tmp_path), pa.table({"n": [number]}), mode="append", commit_properties=stamp)
    return DeltaTable(str(tmp_path))


def put(table: DeltaTable, name: str, *rows: dict[str, object]) -> None:
    path = (local_path(table.table_uri) or Path()) / "_delta_log" / name
    schema = pa.schema(
        [
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
            ("add", pa.struct([("path", pa.string())])),
        ]
    )
    if name.endswith(".json"):
        path.write_text("\n".join(json.dumps(each) for each in rows))
    else:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), path)


def test_without_one_every_entry_is_read(table: DeltaTable) -> None:
    assert txns.versions(table) == {str(number): number for number in range(5)}


@pytest.mark.parametrize(
    "names",
    [
        [f"{3:020}.checkpoint.parquet"],
        [f"{3:020}.checkpoint.{part:010}.{2:010}.parquet" for part in (1, 2)],
        [f"{3:020}.checkpoint.{UUID}.parquet"],
        [f"{3:020}.checkpoint.{UUID}.json"],
    ],
)
def test_the_last_one_and_what_follows_it(table: DeltaTable, names: list[str]) -> None:
    for place, name in enumerate(names):
        put(table, name, row(f"of {place}", place), {"txn": None, "add": {"path": '"txn"'}})
    put(table, f"{1:020}.checkpoint.parquet", row("long before", 1))
    assert txns.versions(table) == {**{f"of {place}": place for place in range(len(names))}, "4": 4}


def test_one_of_which_a_part_is_missing_or_newer_than_the_snapshot_does_not_count(table: DeltaTable) -> None:
    put(table, f"{3:020}.checkpoint.{1:010}.{2:010}.parquet", row("part", 1))
    put(table, f"{9:020}.checkpoint.parquet", row("newer", 1))
    put(table, f"{1:020}.checkpoint.parquet", row("whole", 1))
    assert txns.versions(table) == {"whole": 1, "2": 2, "3": 3, "4": 4}
