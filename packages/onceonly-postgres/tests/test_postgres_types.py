"""Every value that an accepted type of Spark can have arrives as it is; any other is refused before it is staged.

The table is read by a plain client, which shares no code with the writer.
"""

from __future__ import annotations

import json
import math
import struct
import uuid
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from arrow_rows import ArrowRows
from codes import raises
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from integration.services.postgres import Postgres
from plain_client import execute
from targets import CONNECTION, open_sink

from onceonly.errors import InvalidPipeline
from onceonly.sinks import Sink, Transaction
from onceonly.testing.fakes import FakeReceipts
from onceonly_postgres import PostgresSink, binary_copy
from onceonly_postgres.binary_copy import UnfitValue

pytestmark = pytest.mark.integration

EXACT = Context(prec=200)
NO_NUL = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
WIDE_DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=10, max_value=10**27, min_value=-(10**27))
ZONED = pa.timestamp("us", "UTC")
# column -> its type in PostgreSQL, in Arrow, and its values
COLUMNS: dict[str, tuple[str, pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "small": ("smallint", pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "byte": ("smallint", pa.int8(), st.integers(-128, 127)),
    "number": ("integer", pa.int32(), INT32),
    "wider": ("bigint", pa.int32(), INT32),
    "large": ("bigint", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "single": ("real", pa.float32(), st.floats(width=32)),
    "double": ("double precision", pa.float64(), st.floats()),
    "widened": ("double precision", pa.float32(), st.floats(width=32)),
    "amount": ("numeric(38,10)", pa.decimal128(38, 10), WIDE_DECIMALS),
    "price": (
        "numeric",
        pa.decimal128(9, 2),
        st.decimals(-9999999, 9999999, allow_nan=False, allow_infinity=False, places=2),
    ),
    "whole": ("numeric", pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "words": ("text", pa.string(), NO_NUL),
    "short": ("varchar(20)", pa.string(), NO_NUL),
    "bytes": ("bytea", pa.binary(), st.binary(max_size=20)),
    "day": ("date", pa.date32(), st.dates()),
    "moment": ("timestamptz", ZONED, st.datetimes(timezones=st.just(UTC))),
    "wall": ("timestamp", pa.timestamp("us"), st.datetimes()),
    "key": ("uuid", pa.string(), st.uuids().map(str)),
    "document": ("jsonb", pa.string(), st.dictionaries(NO_NUL, INT32, max_size=3).map(json.dumps)),
    "text_document": ("json", pa.string(), st.dictionaries(NO_NUL, INT32, max_size=3).map(json.dumps)),
    "numbers": ("integer[]", pa.list_(pa.int32()), st.lists(st.none() | INT32, max_size=3)),
    "texts": ("text[]", pa.list_(pa.string()), st.lists(st.none() | NO_NUL, max_size=3)),
    "moments": ("timestamptz[]", pa.list_(ZONED), st.lists(st.datetimes(timezones=st.just(UTC)), max_size=2)),
    "amounts": ("numeric(38,10)[]", pa.list_(pa.decimal128(38, 10)), st.lists(WIDE_DECIMALS, max_size=2)),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, (_, _, values) in COLUMNS.items()}), max_size=8
)
ARROW = pa.schema([(name, arrow_type) for name, (_, arrow_type, _) in COLUMNS.items()])


def make_table(port: int, *columns: str) -> str:
    name = f"typed_{uuid.uuid4().hex[:12]}"
    execute(port, f'CREATE TABLE "{name}" (position int, {", ".join(columns)})')
    return name


def make_sink(table: str) -> Sink:
    return open_sink(PostgresSink("lake", table, CONNECTION))


def publish(table: str, rows: ArrowRows, tmp_path: Any) -> None:
    sink, txn = make_sink(table), Transaction(uuid.uuid4().hex, "flights", "lake", 1, 1, "a")
    handle = json.loads(json.dumps(sink.stage(txn, rows)))
    sink.commit(sink.rehearse(handle, 1), 1, FakeReceipts(tmp_path / txn.state_id))


def comparable(value: Any, arrow_type: pa.DataType) -> Any:
    """Return a value so that equal means the same: NaN equals NaN, and -0.0 is not 0.0."""
    if value is None:
        return None
    if pa.types.is_floating(arrow_type):
        return "nan" if math.isnan(value) else struct.pack(">f" if arrow_type == pa.float32() else ">d", value)
    if pa.types.is_list(arrow_type):
        return [comparable(part, arrow_type.value_type) for part in value]
    if pa.types.is_decimal(arrow_type):
        return str(Decimal(value).quantize(Decimal(1).scaleb(-arrow_type.scale), context=EXACT))
    return value


def column_list(names: list[str]) -> str:
    """Return what a client selects: UUIDs and JSON as text, and times in UTC."""
    texts = {"key", "text_document"}
    return ", ".join(f'"{name}"::text' if name in texts else f'"{name}"' for name in names)


@settings(
    max_examples=15,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=ROWS)
def test_values_arrive_as_they_are(database: Postgres, tmp_path: Any, rows: list[dict[str, Any]]) -> None:
    columns = [f'"{name}" {sql_type}' for name, (sql_type, _, _) in COLUMNS.items()]
    table = make_table(database.port, *columns)
    schema = pa.schema([("position", pa.int32()), *ARROW])
    numbered = [{"position": number, **row} for number, row in enumerate(rows)]
    publish(table, ArrowRows(pa.Table.from_pylist(numbered, schema)), tmp_path)
    read = execute(database.port, f'SELECT {column_list(list(COLUMNS))} FROM "{table}" ORDER BY position')
    assert len(read) == len(rows)
    for row, values in zip(rows, read, strict=True):
        for (name, (_, arrow_type, _)), value in zip(COLUMNS.items(), values, strict=True):
            expected = json.loads(row[name]) if name == "document" and row[name] is not None else row[name]
            assert comparable(value, arrow_type) == comparable(expected, arrow_type), name


@pytest.mark.parametrize(
    ("sql_type", "arrow_type"),
    [
        ("smallint", pa.int32()),
        ("integer", pa.int64()),
        ("real", pa.float64()),
        ("double precision", pa.int64()),
        ("numeric(10,2)", pa.decimal128(10, 3)),
        ("numeric(10,2)", pa.decimal128(11, 2)),
        ("numeric(18)", pa.int64()),
        ("text", pa.int32()),
        ("char(5)", pa.string()),
        ("timestamp", ZONED),
        ("timestamptz", pa.timestamp("us")),
        ("date", pa.string()),
        ("integer[]", pa.list_(pa.int64())),
        ("integer", pa.list_(pa.int32())),
        ("inet", pa.string()),
        ("money", pa.decimal128(10, 2)),
        ("timestamp(0)", pa.timestamp("us")),
        ("timestamptz(3)", ZONED),
        ("timestamp(0)[]", pa.list_(pa.timestamp("us"))),
    ],
)
def test_inexact_type_is_refused(database: Postgres, sql_type: str, arrow_type: pa.DataType) -> None:
    table = make_table(database.port, f"value {sql_type}")
    rows = ArrowRows(pa.table({"value": pa.array([None], arrow_type)}))
    with raises(InvalidPipeline, "postgres-columns-unfit", match="'value'"):
        make_sink(table).stage(Transaction("a" * 32, "flights", "lake", 1, 1, "a"), rows)


FIRST_MICROS = -(2**63)


@pytest.mark.parametrize(
    ("sql_type", "values"),
    [
        ("varchar(3)", pa.array(["abc  "])),
        ("text", pa.array(["a\0b"])),
        ("uuid", pa.array(["no uuid"])),
        ("json", pa.array(["{"])),
        ("jsonb", pa.array(["{"])),
        ("date", pa.array([-(2**31)], pa.int32()).cast(pa.date32())),
        ("timestamptz", pa.array([FIRST_MICROS], pa.int64()).cast(ZONED)),
        ("timestamp", pa.array([-290_000 * 365 * 86_400_000_000], pa.int64()).cast(pa.timestamp("us"))),
        ("integer NOT NULL", pa.array([None], pa.int32())),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unfit_value_is_refused(database: Postgres, sql_type: str, values: pa.Array) -> None:
    table = make_table(database.port, f"value {sql_type}")
    sink, txn = make_sink(table), Transaction(uuid.uuid4().hex, "flights", "lake", 1, 1, "a")
    with raises(InvalidPipeline, "postgres-row-refused"):
        sink.stage(txn, ArrowRows(pa.table({"value": values})))
    assert sink.leftovers(txn.prefix) == []


def test_rows_lack_what_the_table_requires(database: Postgres) -> None:
    table = make_table(database.port, "value int NOT NULL", "filled int NOT NULL DEFAULT 3", "free int")
    sink, txn = make_sink(table), Transaction("a" * 32, "flights", "lake", 1, 1, "a")
    rows = ArrowRows(pa.table({"position": pa.array([1], pa.int32()), "more": pa.array([1], pa.int32())}))
    with raises(InvalidPipeline, "postgres-columns-unfit") as refused:
        sink.stage(txn, rows)
    assert refused.value.why == (
        "Columns: 'more' is no column of the table; 'value' is missing, and the table requires it."
    )


@given(digits=st.integers(-(10**38), 10**38), exponent=st.integers(-38, 5))
def test_decimal_has_digits_of_four(digits: int, exponent: int) -> None:
    number = Decimal(digits).scaleb(exponent, EXACT)
    data = binary_copy.encode_decimal(number)
    count, weight, sign, scale = struct.unpack(">hhHH", data[:8])
    total = Decimal(0)
    for place, digit in enumerate(struct.unpack(f">{count}h", data[8:])):
        assert 0 <= digit < 10_000
        total = EXACT.add(total, Decimal(digit).scaleb(4 * (weight - place), EXACT))
    assert (number.copy_abs(), number < 0, max(0, -exponent)) == (total, bool(sign), scale)


def test_slices_of_a_batch_are_encoded_alone() -> None:
    """Arrow's slices share their buffers."""
    texts = pa.array(["aa", None, "b", "", "cc"])
    lists = pa.array([[1], None, [2, 3], [], [None]], pa.list_(pa.int32()))
    types = [
        binary_copy.ColumnType("text", 25),
        binary_copy.ColumnType("_int4", 1007, binary_copy.ColumnType("int4", 23)),
    ]
    batch = pa.record_batch([texts, lists], names=["texts", "lists"])
    copied = pa.RecordBatch.from_pylist(batch.slice(1, 3).to_pylist(), schema=batch.schema)
    encoded = []
    for rows in (batch.slice(1, 3), copied):
        fields = [binary_copy.encode_column(values, kind) for values, kind in zip(rows.columns, types, strict=True)]
        encoded.append(binary_copy.join_fields(fields, rows.num_rows))
    assert encoded[0] == encoded[1]


def test_nul_is_found_in_a_text() -> None:
    with pytest.raises(UnfitValue, match=r"U\+0000"):
        binary_copy.encode_column(pa.array(["a", "\0"]), binary_copy.ColumnType("text", 25))


def test_first_and_last_days(database: Postgres, tmp_path: Any) -> None:
    table = make_table(database.port, "value date")
    days = pa.array([date.min, date(1969, 12, 31), date(2000, 1, 1), date.max], pa.date32())
    publish(table, ArrowRows(pa.table({"value": days})), tmp_path)
    read = execute(database.port, f'SELECT value FROM "{table}" ORDER BY value')
    assert [value for (value,) in read] == days.to_pylist()


def test_times_of_a_session_in_another_zone(database: Postgres, tmp_path: Any) -> None:
    """Arrow names the zone of Spark's session; the moment is the same."""
    table = make_table(database.port, "value timestamptz")
    noon = datetime(2013, 7, 1, 12, tzinfo=UTC)
    rows = ArrowRows(pa.table({"value": pa.array([noon], pa.timestamp("us", "UTC"))}))
    rows.partitions = (pa.table({"value": rows.partitions[0]["value"].cast(pa.timestamp("us", "Asia/Tokyo"))}),)
    job_rows = ArrowRows(pa.table({"value": pa.array([noon], ZONED)}))
    job_rows.mapInArrow = rows.mapInArrow  # type: ignore[method-assign]
    publish(table, job_rows, tmp_path)
    assert execute(database.port, f'SELECT value FROM "{table}"') == [(noon,)]
