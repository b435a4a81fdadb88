"""What a gate sees of staged files, in this process: the types that the handle knows, and no guess."""

import json
import os
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from codes import raises
from deltalake import DeltaTable, Schema, convert_to_deltalake
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.file_handles import make_handle

from onceonly.delta import table_files
from onceonly.errors import InvalidPipeline
from onceonly.gate import bounds
from onceonly.sinks.delta import staged_table
from onceonly.sinks.files import gate_view
from onceonly.spark import row_files
from onceonly.storage.local import LocalFiles

NESTED = {"type": "map", "keyType": "integer", "valueType": {"type": "array", "elementType": "decimal(5,2)"}}


def struct(**kinds) -> dict:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


def read_batches(folder: Path, *parts: Any, **more: Any) -> pa.RecordBatchReader | None:
    return gate_view.batches(LocalFiles(), make_handle(*parts, **more), str(folder))


def seen(folder: Path, format: str, files: dict[str, str], by=(), **kinds) -> list[dict]:
    """Of files with that text."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, newline="")
    rows = read_batches(folder, format, struct(**kinds), tuple(by))
    return sorted(rows.read_all().to_pylist(), key=lambda row: str(row))


def test_csv_has_nulls_that_are_no_empty_text(tmp_path):
    text = 'carrier,delay\nUA,1\n,2\n"",\n'
    assert seen(tmp_path, "csv", {"a.csv": text}, carrier="string", delay="integer") == [
        {"carrier": "", "delay": None},
        {"carrier": "UA", "delay": 1},
        {"carrier": None, "delay": 2},
    ]


@pytest.mark.parametrize(
    ("kind", "first", "then", "value"),
    [
        ("string", "", "007", "007"),
        ("string", "", "true", "true"),
        ("double", "1", "1.5", 1.5),
        ("double", "-Infinity", "1E10", 1e10),
        ("decimal(38,18)", "", "0E-18", Decimal(0)),
        ("boolean", "", "true", True),
        ("date", "", "2013-01-01", date(2013, 1, 1)),
        ("timestamp", "", "2013-01-01T00:00:00.000001Z", datetime(2013, 1, 1, 0, 0, 0, 1, UTC)),
        ("timestamp_ntz", "", "2733-01-01T00:00:00.000001", datetime(2733, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_what_a_column_of_csv_is_no_file_decides(tmp_path, kind, first, then, value):
    files = {"a.csv": f"n,c\n1,{first}\n", "b.csv": f"n,c\n2,{then}\n"}
    assert seen(tmp_path, "csv", files, n="integer", c=kind)[1] == {"n": 2, "c": value}


def test_json_has_the_types_that_it_was_made_of(tmp_path):
    row = {
        "at": "2013-01-01T00:00:00.000001Z",
        "exact": "E",
        "not": "NaN",
        "raw": "/w==",
        "named": {"7": ["D", None]},
        "pair": {"on": "2013-01-01"},
    }
    text = json.dumps(row).replace('"E"', "12345678901234567890.123456789012345678").replace('"D"', "0.10")
    files = {"a.json": json.dumps(dict.fromkeys(row)) + "\n" + text + "\n"}
    kinds = {"at": "timestamp", "exact": "decimal(38,18)", "not": "double", "raw": "binary", "named": NESTED}
    rows = seen(tmp_path, "json", files, **kinds, pair=struct(on="date"))
    [found] = [row for row in rows if row["at"]]
    assert found.pop("not") != found, "NaN"
    assert found == {
        "at": datetime(2013, 1, 1, 0, 0, 0, 1, UTC),
        "exact": Decimal("12345678901234567890.123456789012345678"),
        "raw": b"\xff",
        "named": [("7", [Decimal("0.10"), None])],
        "pair": {"on": date(2013, 1, 1)},
    }
    assert dict.fromkeys(row) in rows


@pytest.mark.parametrize("format", ["csv", "json"])
def test_names_of_folders_have_the_types_of_their_columns(tmp_path, format):
    text = {"csv": "n\n1\n", "json": '{"n": 1}\n'}[format]
    files = {f"code=007/at=2013-01-01 12%3A00%3A00/a.{format}": text, f"code={HIVE}/at={HIVE}/a.{format}": text}
    assert seen(tmp_path, format, files, ["code", "at"], n="integer", code="string", at="timestamp") == [
        {"n": 1, "code": "007", "at": datetime(2013, 1, 1, 12, tzinfo=UTC)},
        {"n": 1, "code": None, "at": None},
    ]


HIVE = "__HIVE_DEFAULT_PARTITION__"


def test_times_after_2262_are_what_they_are(tmp_path):
    """Spark writes them as INT96, which others read as nanoseconds."""
    late = datetime(2733, 1, 1, tzinfo=UTC)
    table = pa.table({"at": pa.array([late], pa.timestamp("us", "UTC"))})
    pq.write_table(table, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True, store_schema=False)
    assert seen(tmp_path, "parquet", {}, at="timestamp") == [{"at": late}]
    convert_to_deltalake(str(tmp_path))
    assert staged_table.read_batches(str(tmp_path)).read_all()["at"].to_pylist() == [late.replace(tzinfo=None)]


def test_a_column_to_partition_by_can_be_fresh(tmp_path):
    os.makedirs(tmp_path / "day=2013-01-01")
    pq.write_table(pa.table({"n": [1]}), tmp_path / "day=2013-01-01" / "a.parquet")
    rows = read_batches(tmp_path, "parquet", struct(n="long", day="date"), ("day",))
    assert bounds.find_newest(rows, "files", "day") == datetime(2013, 1, 1, 23, 59, 59, 999999, UTC)


def test_what_only_spark_can_read_is_not_read_here(tmp_path):
    assert read_batches(tmp_path, "csv", struct(a="interval day to second")) is None
    assert read_batches(tmp_path, "avro", struct(a="long")) is None
    with raises(InvalidPipeline, "no-such-column"):
        bounds.find_newest(None, "files", "day")


def test_a_handle_that_knows_no_types_is_read_as_before(tmp_path):
    (tmp_path / "a.csv").write_text("n\n7\n")
    assert read_batches(tmp_path, "csv").read_all().to_pylist() == [{"n": 7}]


def test_no_file_has_the_columns_all_the_same(tmp_path):
    assert seen(tmp_path, "csv", {}, n="integer") == []


def test_types_that_a_format_widens_are_known(tmp_path):
    kinds = struct(n="byte", named=NESTED, many={"type": "array", "elementType": struct(n="short")})
    [tiny, named, many] = row_files.in_avro(kinds)["fields"]
    assert (tiny["type"], many["type"]["elementType"]["fields"][0]["type"]) == ("integer", "integer")
    assert named["type"] == NESTED
    assert row_files.in_json(kinds)["fields"][1]["type"] == {**NESTED, "keyType": "string"}
    assert row_files.in_json(kinds)["fields"][0]["type"] == "byte"


@settings(deadline=None, max_examples=30)
@given(
    rows=st.lists(
        st.tuples(st.none() | st.text(st.sampled_from('a0,"\n\r\t \\#'), max_size=4), st.none() | st.integers(-9, 9))
    )
)
def test_csv_is_seen_as_it_was_written(tmp_path_factory, rows):
    """Text in quotes, nothing for null: as Spark writes it."""
    quoted = ['"' + text.replace('"', '""') + '"' if text is not None else "" for text, _ in rows]
    lines = [f"{text},{'' if n is None else n}\n" for text, (_, n) in zip(quoted, rows, strict=True)]
    found = seen(tmp_path_factory.mktemp("csv"), "csv", {"a.csv": "t,n\n" + "".join(lines)}, t="string", n="integer")
    assert found == sorted(({"t": text, "n": n} for text, n in rows), key=str)


# ---- rows that pyarrow alone would not read


@pytest.mark.parametrize("format", ["csv", "json"])
def test_a_row_may_be_as_large_as_its_file(tmp_path, format):
    large, file = "x" * (3 << 20), tmp_path / f"a.{format}"
    rows = [{"a": "small", "b": 1}, {"a": large, "b": 2}]
    lines = ["a,b", *(f"{row['a']},{row['b']}" for row in rows)] if format == "csv" else map(json.dumps, rows)
    file.write_text("".join(f"{line}\n" for line in lines))
    found = read_batches(tmp_path, format, struct(a="string", b="long"), sizes=(1, file.stat().st_size))
    assert found.read_all().to_pylist() == rows


LATIN = "caf\xe9".encode("latin-1")
NESTED_TEXT = {
    "texts": {"type": "array", "elementType": "string", "containsNull": True},
    "named": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": True},
    "pair": struct(text="string", raw="binary"),
}


TEXT_TYPES = {  # of Arrow: with bytes in the place of text, and with text
    "texts": [pa.list_(kind) for kind in (pa.binary(), pa.string())],
    "named": [pa.map_(kind, kind) for kind in (pa.binary(), pa.string())],
    "pair": [pa.struct({"text": kind, "raw": pa.binary()}) for kind in (pa.binary(), pa.string())],
}


def latin() -> pa.Table:
    """As Spark writes `CAST(bytes AS STRING)`: text that is none, beside text, nulls and bytes."""
    row = {"texts": [LATIN, None, b"tea"], "named": [(LATIN, LATIN)], "pair": {"text": LATIN, "raw": LATIN}}
    nested = {
        name: pa.array([row[name], None, row[name]], as_bytes).cast(kind, safe=False)
        for name, (as_bytes, kind) in TEXT_TYPES.items()
    }
    return pa.table({"n": [1, 2, 3], "text": as_text([LATIN, None, b"tea"]), **nested})


def as_text(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary()).cast(pa.string(), safe=False)


SHOWN = {
    "texts": ["caf\ufffd", None, "tea"],
    "named": [("caf\ufffd", "caf\ufffd")],
    "pair": {"text": "caf\ufffd", "raw": LATIN},
}
NO_NESTED = dict.fromkeys(SHOWN)


def test_text_that_is_none_is_shown(tmp_path):
    pq.write_table(latin(), tmp_path / "a.parquet", store_schema=False)
    schema = struct(n="long", text="string", **NESTED_TEXT)
    rows = read_batches(tmp_path, "parquet", schema).read_all()
    assert rows.to_pylist() == [
        {"n": 1, "text": "caf\ufffd", **SHOWN},
        {"n": 2, "text": None, **NO_NESTED},
        {"n": 3, "text": "tea", **SHOWN},
    ]


@pytest.mark.parametrize("through", ["the disk", "its storage layer"])
def test_so_it_is_in_a_delta_table(tmp_path, monkeypatch, through):
    if through == "its storage layer":
        monkeypatch.setattr(table_files, "local_path", lambda uri: None)
    schema = Schema.from_json(json.dumps(struct(n="long", text="string", day="string")))
    table = DeltaTable.create(str(tmp_path), schema, partition_by=["day"])
    text = pa.table({"n": [1, 2], "text": as_text([b"tea", LATIN])})
    adds = []
    for day, value in {"day=a%20b": "a b", "day=__HIVE_DEFAULT_PARTITION__": None}.items():
        (tmp_path / day).mkdir()
        pq.write_table(text, tmp_path / day / "a.parquet", store_schema=False)
        size = (tmp_path / day / "a.parquet").stat().st_size
        adds.append(AddAction(f"{day}/a.parquet", size, {"day": value}, 1, True, "{}"))
    table.create_write_transaction(adds, "append", table.schema(), partition_by=["day"])
    found = staged_table.read_batches(str(tmp_path)).read_all().sort_by([("day", "ascending"), ("n", "ascending")])
    one = [{"n": 1, "text": "tea"}, {"n": 2, "text": "caf\ufffd"}]
    assert found.to_pylist() == [{**row, "day": day} for day in ("a b", None) for row in one]
