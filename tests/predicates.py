"""Random rows of every type, and what each reader of a Delta table finds in it by predicates of every operator.

Truth is found without a reader: all files of the table, row by row. NaN is the largest value and equal to itself, as in
SQL, except in datasets of pyarrow, which compare it as IEEE 754 does.

Three questions are not asked, because readers get them wrong in any table:

- a dataset, about NaN: by any bound of a file, it takes all rows for less;
- Spark, about 0.0 and -0.0: by the dictionary of a Parquet file, also of its own, it finds one of the two only;
- delta-rs's engine, about times in files that others have written as INT96, as Spark does by default: they overflow.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

TYPES: Mapping[str, pa.DataType] = {
    "tiny": pa.int8(),
    "small": pa.int16(),
    "number": pa.int32(),
    "large": pa.int64(),
    "single": pa.float32(),
    "double": pa.float64(),
    "cents": pa.decimal128(9, 2),
    "exact": pa.decimal128(38, 9),
    "text": pa.string(),
    "flag": pa.bool_(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "time": pa.timestamp("us", "UTC"),
}
LOCAL = {"local": pa.timestamp("us")}  # a table with it has a feature, so it is staged by Spark
SQL = {  # per type: its name in Spark and DuckDB, and in delta-rs's engine
    pa.int8(): ("TINYINT", "Int8"),
    pa.int16(): ("SMALLINT", "Int16"),
    pa.int32(): ("INT", "Int32"),
    pa.int64(): ("BIGINT", "Int64"),
    pa.float32(): ("FLOAT", "Float32"),
    pa.float64(): ("DOUBLE", "Float64"),
    pa.decimal128(9, 2): ("DECIMAL(9,2)", "Decimal128(9, 2)"),
    pa.decimal128(38, 9): ("DECIMAL(38,9)", "Decimal128(38, 9)"),
    pa.string(): ("STRING", "Utf8"),
    pa.bool_(): ("BOOLEAN", "Boolean"),
    pa.date32(): ("DATE", "Date32"),
    pa.timestamp("us", "UTC"): ("TIMESTAMP", 'Timestamp(Microsecond, Some("UTC"))'),
    pa.timestamp("us"): ("TIMESTAMP_NTZ", "Timestamp(Microsecond, None)"),
}
COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda one, other: bool(one == other),
    "<>": lambda one, other: bool(one != other),
    "<": lambda one, other: bool(one < other),
    "<=": lambda one, other: bool(one <= other),
    ">": lambda one, other: bool(one > other),
    ">=": lambda one, other: bool(one >= other),
}
OPERATORS = [*COMPARISONS, "IN", "BETWEEN", "IS NULL", "IS NOT NULL"]
EPOCH = datetime(1970, 1, 1)
SPAN = 315_537_897_599_999_999  # microseconds in the years 1 to 9999
LETTERS = string.ascii_lowercase + "éß✈😀\U0010ffff'\\ "


@dataclass(frozen=True)
class Predicate:
    column: str
    operator: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.column} {self.operator} {', '.join(map(repr, self.values))}"

    def holds(self, value: Any, ieee: bool = False) -> bool:
        if self.operator in ("IS NULL", "IS NOT NULL"):
            return (value is None) == (self.operator == "IS NULL")
        if value is None:
            return False
        if ieee:
            one, others = value, self.values
        else:
            one, others = _ordered(value), tuple(map(_ordered, self.values))
        if self.operator == "IN":
            return any(one == other for other in others)
        if self.operator == "BETWEEN":
            return bool(others[0] <= one <= others[1])
        return COMPARISONS[self.operator](one, others[0])

    def sql(self, literal: Callable[[Any, pa.DataType], str], kind: pa.DataType, quote: str = "") -> str:
        column, values = f"{quote}{self.column}{quote}", [literal(value, kind) for value in self.values]
        match self.operator:
            case "IN":
                return f"{column} IN ({', '.join(values)})"
            case "BETWEEN":
                return f"{column} BETWEEN {values[0]} AND {values[1]}"
            case "IS NULL" | "IS NOT NULL":
                return f"{column} {self.operator}"
            case operator:
                return f"{column} {operator} {values[0]}"

    def expression(self, kind: pa.DataType) -> ds.Expression:
        column, values = ds.field(self.column), [pa.scalar(value, kind) for value in self.values]
        match self.operator:
            case "IN":
                return (column == values[0]) | (column == values[1])
            case "BETWEEN":
                return (column >= values[0]) & (column <= values[1])
            case "IS NULL":
                return column.is_null()
            case "IS NOT NULL":
                return column.is_valid()
            case operator:
                compare = {"=": "__eq__", "<>": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
                made: ds.Expression = getattr(column, compare[operator])(values[0])
                return made


def _ordered(value: Any) -> Any:
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


# ---- random


def rows(chance: random.Random, ids: list[int], types: Mapping[str, pa.DataType], **more: list[Any]) -> pa.Table:
    """A batch whose columns have few values each, so that a file of it can often be skipped."""
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
    for name, kind in types.items():
        some = [value(chance, kind) for _ in range(chance.randint(1, 3))] + [None] * chance.choice([0, 0, 1])
        if chance.random() < 0.1:
            some = [None]
        columns[name] = pa.array([chance.choice(some) for _ in ids], kind)
    return pa.table({**columns, **{name: pa.array(values) for name, values in more.items()}})


def value(chance: random.Random, kind: pa.DataType) -> Any:
    """One of the ends of the type's range in a third of all cases, else anything."""
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return chance.choice([-most, most - 1, 0, chance.randint(-most, most - 1), chance.randint(-9, 9)])
    if pa.types.is_floating(kind):
        ends = [math.nan, math.inf, -math.inf, 0.0, -0.0]
        found = chance.choice(ends) if chance.random() < 0.3 else chance.choice([1, 1e-30, 1e30]) * chance.gauss(0, 1)
        return pa.array([found], kind)[0].as_py()
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        units = chance.choice([-most, most, 0, 1, -1, chance.randint(-most, most), chance.randint(-999, 999)])
        return Decimal(units).scaleb(-kind.scale) if abs(units) < 10**28 else Decimal(f"{units}e-{kind.scale}")
    if pa.types.is_string(kind):
        return "".join(chance.choice(LETTERS[:2] if chance.random() < 0.3 else LETTERS) for _ in range(length(chance)))
    if pa.types.is_binary(kind):
        return chance.randbytes(length(chance))
    moment = datetime(1, 1, 1) + timedelta(microseconds=chance.choice([0, SPAN, chance.randint(0, SPAN)]))
    if chance.random() < 0.5:
        moment = datetime(1890, 1, 1) + timedelta(microseconds=chance.randint(0, 5 * 10**15))
    if pa.types.is_date(kind):
        return moment.date()
    return moment.replace(tzinfo=UTC) if kind.tz else moment


def length(chance: random.Random) -> int:
    return chance.choice([0, 1, 5, 31, 32, 33, 40, 90])


def predicates(chance: random.Random, column: str, kind: pa.DataType, values: list[Any]) -> Iterator[Predicate]:
    """One of each operator, with values that the column has and others."""

    def some() -> Any:
        present = [each for each in values if each is not None]
        return chance.choice(present) if present and chance.random() < 0.6 else value(chance, kind)

    for operator in OPERATORS:
        number = 0 if operator.startswith("IS") else 2 if operator in ("IN", "BETWEEN") else 1
        given = tuple(some() for _ in range(number))
        if operator == "BETWEEN":
            given = tuple(sorted(given, key=_ordered))
        yield Predicate(column, operator, given)


# ---- readers


class Truth:
    """All rows of a table, by its files."""

    def __init__(self, uri: str) -> None:
        table = DeltaTable(uri)
        paths = [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]
        self.files = [f"{uri}/{path}" for path in paths]
        self.is_ours = all(path.startswith("staged-") for path in paths)
        tables = [
            _in_utc(pq.read_table(path, partitioning=None, coerce_int96_timestamp_unit="us")) for path in self.files
        ]
        self.rows = pa.concat_tables(tables, promote_options="default") if tables else pa.table({"id": []})

    def ids(self, predicate: Predicate, ieee: bool = False) -> list[int]:
        found = zip(self.rows["id"].to_pylist(), self.rows[predicate.column].to_pylist(), strict=True)
        return sorted(id_ for id_, each in found if predicate.holds(each, ieee))


def _read(path: str) -> pa.Table:
    return pq.read_table(path, partitioning=None, coerce_int96_timestamp_unit="us")


def _in_utc(table: pa.Table) -> pa.Table:
    """In files that an OPTIMIZE has made, Spark may have written times without a zone."""
    index = table.schema.get_field_index("time")
    if index < 0 or table.schema.types[index].tz:
        return table
    return table.set_column(index, "time", table["time"].cast(pa.timestamp("us", "UTC")))


def by_dataset(uri: str, predicate: Predicate, kind: pa.DataType) -> list[int]:
    dataset = DeltaTable(uri).to_pyarrow_dataset()
    return sorted(dataset.to_table(columns=["id"], filter=predicate.expression(kind))["id"].to_pylist())


def by_engine(uri: str, predicate: Predicate, kind: pa.DataType) -> list[int]:
    """delta-rs's query engine."""
    engine = QueryBuilder().register("t", DeltaTable(uri))
    found = engine.execute(f"SELECT id FROM t WHERE {predicate.sql(_in_engine, kind)}").read_all()
    return sorted(pa.table(found)["id"].to_pylist())


def by_duckdb(files: list[str], predicate: Predicate, kind: pa.DataType) -> list[int]:
    """DuckDB on the files, parts of which it skips by Parquet's own statistics."""
    import duckdb

    listed = ", ".join(f"'{file}'" for file in files)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        text = f"SELECT id FROM read_parquet([{listed}], hive_partitioning = false, union_by_name = true) WHERE "
        return sorted(row[0] for row in connection.execute(text + predicate.sql(_in_duckdb, kind)).fetchall())


def by_duckdb_on_dataset(uri: str, predicate: Predicate, kind: pa.DataType) -> list[int]:
    """DuckDB on deltalake's dataset, to which it hands its filters."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("t", DeltaTable(uri).to_pyarrow_dataset())
        found = connection.execute("SELECT id FROM t WHERE " + predicate.sql(_in_duckdb, kind)).fetchall()
    return sorted(row[0] for row in found)


def by_polars(uri: str, predicate: Predicate, kind: pa.DataType) -> list[int]:
    import polars

    literals = [polars.from_arrow(pa.array([each], kind))[0] for each in predicate.values]  # type: ignore[index]
    dtype: Any = polars.from_arrow(pa.array([], kind)).dtype  # type: ignore[union-attr]
    column, values = polars.col(predicate.column), [polars.lit(each, dtype) for each in literals]
    match predicate.operator:
        case "IN":
            wanted = (column == values[0]) | (column == values[1])
        case "BETWEEN":
            wanted = (column >= values[0]) & (column <= values[1])
        case "IS NULL":
            wanted = column.is_null()
        case "IS NOT NULL":
            wanted = column.is_not_null()
        case operator:
            compare = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
            wanted = getattr(column, compare[operator])(values[0])
    found = polars.scan_delta(uri).filter(wanted).select("id").collect()
    return sorted(found["id"].to_list())


def by_spark(spark: Any, uri: str, asked: list[Predicate], kind: pa.DataType) -> list[list[int]]:
    """All at once: each of them is a scan of its own."""
    parts = [
        f"SELECT {number} AS n, id FROM delta.`{uri}` WHERE {predicate.sql(_in_spark, kind)}"
        for number, predicate in enumerate(asked)
    ]
    found: list[list[int]] = [[] for _ in asked]
    for row in spark.sql(" UNION ALL ".join(parts)).collect():
        found[row["n"]].append(row["id"])
    return [sorted(ids) for ids in found]


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN" if math.isnan(value) else repr(value))
    return str(value)


def _in_spark(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = _plain(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'" if isinstance(value, str) else f"CAST('{text}' AS {SQL[kind][0]})"


def _in_duckdb(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return "unhex('" + value.hex() + "')"
    text = _plain(value).replace("'", "''")
    name = {"TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}.get(SQL[kind][0], SQL[kind][0])
    zone = "+00" if name == "TIMESTAMPTZ" else ""
    return f"'{text}'" if isinstance(value, str) else f"CAST('{text}{zone}' AS {name})"


def _in_engine(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = _plain(value).replace("'", "''")
    zone = "Z" if isinstance(value, datetime) and value.tzinfo else ""
    return f"'{text}'" if isinstance(value, str) else f"arrow_cast('{text}{zone}', '{SQL[kind][1]}')"


# ---- compared


def compare(uri: str, chance: random.Random, columns: Mapping[str, pa.DataType], spark: Any = None) -> tuple[int, int]:
    """Ask every reader of each column by each operator; returns the numbers of answers, and of predicates.

    Raises:
        AssertionError: a reader finds other rows than there are.
    """
    truth, answers, asked_in_all = Truth(uri), 0, 0
    for name, kind in columns.items():
        asked = list(predicates(chance, name, kind, truth.rows[name].to_pylist()))
        asked_in_all += len(asked)
        shown: dict[str, list[list[int]]] = {"delta-rs's engine": [by_engine(uri, each, kind) for each in asked]}
        shown["duckdb"] = [by_duckdb(truth.files, each, kind) for each in asked]
        if truth.is_ours:  # in the statistics of others, deltalake's datasets do not find everything
            shown["dataset"] = [by_dataset(uri, each, kind) for each in asked]
            if not pa.types.is_floating(kind):
                shown["duckdb on the dataset"] = [by_duckdb_on_dataset(uri, each, kind) for each in asked]
        if spark is not None:
            shown["spark"] = by_spark(spark, uri, asked, kind)
        if _has_polars() and truth.is_ours:
            shown["polars"] = [by_polars(uri, each, kind) for each in asked]
        for reader, found in shown.items():
            for predicate, ids in zip(asked, found, strict=True):
                if _is_misread(reader, predicate, kind, truth):
                    continue
                answers += 1
                assert ids == truth.ids(predicate, ieee=reader == "dataset"), f"{reader}: {predicate} in {uri}"
    return answers, asked_in_all


def _is_misread(reader: str, predicate: Predicate, kind: pa.DataType, truth: Truth) -> bool:
    """Whether this reader's answer is wrong in any table (see above)."""
    if reader == "dataset":
        return any(value != value for value in predicate.values)
    if reader == "spark":
        return pa.types.is_floating(kind) and 0 in predicate.values
    return reader == "delta-rs's engine" and pa.types.is_timestamp(kind) and not truth.is_ours


def _has_polars() -> bool:
    from importlib.util import find_spec

    return find_spec("polars") is not None


def share_skipped(uri: str, asked: Mapping[str, ds.Expression]) -> float:
    """Share of the files that a dataset does not read, over all predicates."""
    dataset = DeltaTable(uri).to_pyarrow_dataset()
    total = len(list(dataset.get_fragments()))
    read = [len(list(dataset.get_fragments(filter=each))) for each in asked.values()]
    return 1 - sum(read) / (total * len(read))
