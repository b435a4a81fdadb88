"""Which log checkpoint a table's transaction identifiers are read from, and when nothing is said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codes import raises
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as DeltaTxn

from onceonly.delta import log_summary
from onceonly.errors import OutcomeUnknown
from onceonly.storage.paths import local_path

UUID = "80a083e8-7026-4e79-81be-64bd76c43a11"


def shown(table: DeltaTable) -> dict[str, int]:
    found = log_summary.read(table.table_uri)
    assert found is not None
    return dict(found.txns)


def row(app_id: str, version: int) -> dict[str, object]:
    return {"txn": {"appId": app_id, "version": version}, "add": None}


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    """Versions 0 to 4; number n is written by app 'n'."""
    for number in range(5):
        stamp = CommitProperties(app_transactions=[DeltaTxn(str(number), number)])
        write_deltalake(str(tmp_path), pa.table({"n": [number]}), mode="append", commit_properties=stamp)
    return DeltaTable(str(tmp_path))


def folder(table: DeltaTable) -> Path:
    return (local_path(table.table_uri) or Path()) / "_delta_log"


def put(table: DeltaTable, name: str, *rows: dict[str, object]) -> None:
    path = folder(table) / name
    schema = pa.schema(
        [
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64())])),
            ("add", pa.struct([("path", pa.string())])),
        ]
    )
    if name.endswith(".json"):
        path.write_text("\n".join(json.dumps(entry) for entry in rows))
    else:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), path)


def test_without_one_every_entry_is_read(table: DeltaTable) -> None:
    assert shown(table) == {str(number): number for number in range(5)}


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
    assert shown(table) == {**{f"of {place}": place for place in range(len(names))}, "4": 4}


def test_one_of_which_a_part_is_missing_or_empty_does_not_count(table: DeltaTable) -> None:
    put(table, f"{3:020}.checkpoint.{1:010}.{2:010}.parquet", row("part", 1))
    (folder(table) / f"{3:020}.checkpoint.parquet").touch()  # as a power failure leaves it
    put(table, f"{1:020}.checkpoint.parquet", row("whole", 1))
    assert shown(table) == {"whole": 1, "2": 2, "3": 3, "4": 4}


@pytest.mark.parametrize("checkpoint", [False, True])
def test_it_names_the_table_and_its_version_as_a_table_library_does(table: DeltaTable, checkpoint: bool) -> None:
    if checkpoint:
        table.create_checkpoint()
        for entry in sorted(folder(table).glob("*.json"))[:-1]:  # as a cleanup does
            entry.unlink()
    found = log_summary.read(table.table_uri)
    assert found is not None and (found.version, found.table_id) == (4, table.metadata().id)
    assert {app: DeltaTable(table.table_uri).transaction_version(app) for app in found.txns} == found.txns


def test_what_is_quoted_in_a_files_statistics_is_no_identifier(table: DeltaTable) -> None:
    stats = json.dumps({"minValues": {"text": json.dumps({"txn": {"appId": "forged", "version": 9}})}})
    put(table, f"{5:020}.json", {"add": {"path": "x", "partitionValues": {"txn": "metaData"}, "stats": stats}})
    assert "forged" not in shown(table)


def test_where_no_table_is_there_is_no_head(tmp_path: Path) -> None:
    assert log_summary.read(str(tmp_path)) is log_summary.read(str(tmp_path / "missing")) is None


@pytest.mark.parametrize("damage", ["an entry is missing", "the log checkpoint is damaged", "an entry is damaged"])
def test_a_log_that_is_not_whole_says_nothing(table: DeltaTable, damage: str) -> None:
    if damage == "an entry is missing":
        (folder(table) / f"{2:020}.json").unlink()
    elif damage == "the log checkpoint is damaged":
        (folder(table) / f"{3:020}.checkpoint.parquet").write_bytes(b"PAR1")
    else:
        (folder(table) / f"{4:020}.json").write_text('{"txn":')
    with raises(OutcomeUnknown, "table-unreadable"):
        log_summary.read(table.table_uri)
