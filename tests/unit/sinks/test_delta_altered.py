"""A table that was changed between staging and publishing: by others who add the same column, or delete rows."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake
from unit.lightdelta import LightDelta, transaction

from onceonly.checkpoint.model import Handle
from onceonly.delta import table_files, table_snapshot, txn_identifiers
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.sinks.delta import spark_append, staged_table

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def numbers(lake: LightDelta) -> list[int]:
    """As delta-rs's engine reads them, which knows deletion vectors."""
    rows = QueryBuilder().register("lake", DeltaTable(lake.uri)).execute("SELECT n FROM lake")
    return sorted(pa.RecordBatchReader.from_stream(rows).read_all()["n"].to_pylist())


# ---- a column that others have added meanwhile


def staged_with(lake: LightDelta, epoch: int, kind: str, rows: pa.Table) -> Handle:
    """Rows with a column `more`, of a Delta type, that the table has not."""
    target, txn = DeltaTable(lake.uri), transaction(epoch)
    added = [{"name": "more", "type": kind, "nullable": True, "metadata": {}}]
    folder = txn_identifiers.STAGED_PREFIX + txn.name
    write_deltalake(staged_table.create(target, folder, True, added, {}), rows, mode="append")
    return {
        **{"kind": "delta", "uri": lake.uri, "table_id": target.metadata().id, "publish": "delta-rs"},
        **{"app_id": txn.app_id, "folder": folder, "files": 1, "rows": rows.num_rows, "bytes": 1, "added": added},
        "fingerprint": table_snapshot.fingerprint(target, ["more"]),
    }


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    lake = LightDelta(tmp_path / "lake")
    DeltaTable.create(lake.uri, Schema.from_arrow(pa.schema([("n", pa.int64())])))
    return lake


def test_a_column_that_was_added_with_another_type_meanwhile_is_left_to_spark(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two intervals that were staged side by side: delta-rs would add the file, and nobody could read the table."""
    first = staged_with(lake, 1, "long", pa.table({"n": [1], "more": [1]}))
    second = staged_with(lake, 2, "string", pa.table({"n": [2], "more": ["two"]}))
    lake.commit(first, 1, None)

    def refused(*given: Any) -> Any:
        raise CannotPublish("Spark refuses them.", code="test-refused")

    monkeypatch.setattr(spark_append, "publish", refused)
    with raises(CannotPublish, "test-refused"):
        lake.commit(second, 2, None)
    assert DeltaTable(lake.uri).to_pyarrow_table().to_pylist() == [{"n": 1, "more": 1}]


def test_a_column_that_was_added_with_the_same_type_meanwhile_is_taken(lake: LightDelta) -> None:
    first, second = (staged_with(lake, n, "long", pa.table({"n": [n], "more": [n]})) for n in (1, 2))
    lake.commit(first, 1, None)
    lake.commit(second, 2, None)
    assert lake.numbers() == [1, 2]


# ---- a Spark that collects no statistics


def test_rows_are_counted_where_no_statistics_tell_them(lake: LightDelta) -> None:
    """A gate asked of "no rows" would let all of them through."""
    staged = staged_table.create(DeltaTable(lake.uri), f"staged-{transaction().name}", True, [], {})
    write_deltalake(staged, pa.table({"n": [1, 2, 3]}), mode="append")
    adds = staged_table.read_adds(lake.uri, f"staged-{transaction().name}", 1)
    assert table_files.count_rows_and_bytes(adds, staged)[0] == 3
    for stats in (None, "{}", '{"minValues": {"n": 1}}'):
        assert table_files.count_rows_and_bytes([{**add, "stats": stats} for add in adds], staged)[0] == 3


# ---- rows that others have deleted by a deletion vector


def delete_first_row(lake: LightDelta, path: str) -> None:
    """As Spark does it: the same file again, with a deletion vector, in the place of the file without one."""
    log = Path(lake.uri, "_delta_log")
    entries = sorted(log.glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    add = next(action["add"] for action in actions if action.get("add", {}).get("path") == path)
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    changes = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}},
        {"add": {**add, "deletionVector": vector(), "stats": '{"numRecords": 3, "tightBounds": false}'}},
    ]
    (log / f"{len(entries):020}.json").write_text("\n".join(map(json.dumps, changes)))


def vector() -> dict[str, Any]:
    """An inline one of row 0. Source: Delta protocol, "Deletion Vector Format"; Roaring, "Extension for 64-bit"."""
    bitmap = struct.pack("<IIHHIH", 12346, 1, 0, 0, 16, 0)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    padded, text = data + b"\0" * (-len(data) % 4), ""
    for (word,) in struct.iter_unpack(">I", padded):
        text += "".join(Z85[word // 85**power % 85] for power in (4, 3, 2, 1, 0))
    return {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 1}


def published(lake: LightDelta) -> Handle:
    """Rows 1, 2 and 3, of which somebody has deleted the first."""
    handle = lake.stage(transaction(1), [1, 2, 3])
    lake.commit(handle, 1, None)
    (path,) = table_files.list_active_files(DeltaTable(lake.uri))
    delete_first_row(lake, path)
    assert numbers(lake) == [2, 3]
    return handle


def test_a_file_of_which_rows_were_deleted_is_replaced_with_its_partition(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs's removal leaves such a file in the table: its rows would be there beside those in their place."""
    monkeypatch.setattr(table_files, "select_in_partitions", lambda files, *_: files)  # the table has none
    published(lake)
    new = {**lake.stage(transaction(2), [4]), "where": "partitions"}
    lake.commit(new, 2, None)
    assert numbers(lake) == [4]
    assert lake.commit(new, 2, None).already


@pytest.mark.parametrize("how", ["replaces", "retracts"])
def test_a_file_of_which_rows_were_deleted_is_not_taken_out(lake: LightDelta, how: str) -> None:
    """The deleted rows would come back with those of the records."""
    old = published(lake)
    more = {"replaces": old, "retracts": [old]}[how]
    new = {**lake.stage(transaction(2), [4]), how: more}
    new["fingerprint"] = table_snapshot.fingerprint(DeltaTable(lake.uri))
    with raises(CannotPublish, "replaced-rows-changed"):
        lake.commit(new, 2, None)
    assert numbers(lake) == [2, 3]
    with raises(InvalidPipeline, "published-rows-fixed"):
        lake.check_replace(old)


def test_rows_are_appended_beside_it(lake: LightDelta) -> None:
    published(lake)
    lake.commit(lake.stage(transaction(2), [4]), 2, None)
    assert numbers(lake) == [2, 3, 4]
