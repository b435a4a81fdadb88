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
            operand, operands = value, self.values
        else:
            operand, operands = _sort_key(value), tuple(map(_sort_key, self.values))
        if self.operator == "IN":
            return any(operand == other for other in operands)  # not `in`: NaN is itself, and not equal to itself
        if self.operator == "BETWEEN":
            return bool(operands[0] <= operand <= operands[1])
        return COMPARISONS[self.operator](operand, operands[0])

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
                comparison: ds.Expression = getattr(column, compare[operator])(values[0])
                return comparison


def _sort_key(value: Any) -> Any:
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


# ---- random


def random_rows(chance: random.Random, ids: list[int], types: Mapping[str, pa.DataType], **more: list[Any]) -> pa.Table:
    """A batch whose columns have few values each, so that a file of it can often be skipped."""
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.int64())}
    for name, kind in types.items():
        choices = [random_value(chance, kind) for _ in range(chance.randint(1, 3))] + [None] * chance.choice([0, 0, 1])
        if chance.random() < 0.1:
            choices = [None]
        columns[name] = pa.array([chance.choice(choices) for _ in ids], kind)
    return pa.table({**columns, **{name: pa.array(values) for name, values in more.items()}})


def random_value(chance: random.Random, kind: pa.DataType) -> Any:
    """One of the ends of the type's range in a third of all cases, else anything."""
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return chance.choice([-most, most - 1, 0, chance.randint(-most, most - 1), chance.randint(-9, 9)])
    if pa.types.is_floating(kind):
        ends = [math.nan, math.inf, -math.inf, 0.0, -0.0]
        number = chance.choice(ends) if chance.random() < 0.3 else chance.choice([1, 1e-30, 1e30]) * chance.gauss(0, 1)
        return pa.array([number], kind)[0].as_py()
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        units = chance.choice([-most, most, 0, 1, -1, chance.randint(-most, most), chance.randint(-999, 999)])
        return Decimal(units).scaleb(-kind.scale) if abs(units) < 10**28 else Decimal(f"{units}e-{kind.scale}")
    if pa.types.is_string(kind):
        return "".join(
            chance.choice(LETTERS[:2] if chance.random() < 0.3 else LETTERS) for _ in range(random_length(chance))
        )
    if pa.types.is_binary(kind):
        return chance.randbytes(random_length(chance))
    moment = datetime(1, 1, 1) + timedelta(microseconds=chance.choice([0, SPAN, chance.randint(0, SPAN)]))
    if chance.random() < 0.5:
        moment = datetime(1890, 1, 1) + timedelta(microseconds=chance.randint(0, 5 * 10**15))
    if pa.types.is_date(kind):
        return moment.date()
    return moment.replace(tzinfo=UTC) if kind.tz else moment


def random_length(chance: random.Random) -> int:
    return chance.choice([0, 1, 5, 31, 32, 33, 40, 90])


def random_predicates(chance: random.Random, column: str, kind: pa.DataType, values: list[Any]) -> Iterator[Predicate]:
    """One of each operator, with values that the column has and others."""

    present = [value for value in values if value is not None]

    def choose_value() -> Any:
        return chance.choice(present) if present and chance.random() < 0.6 else random_value(chance, kind)

    for operator in OPERATORS:
        number = 0 if operator.startswith("IS") else 2 if operator in ("IN", "BETWEEN") else 1
        operands = tuple(choose_value() for _ in range(number))
        if operator == "BETWEEN":
            operands = tuple(sorted(operands, key=_sort_key))
        yield Predicate(column, operator, operands)


# ---- readers


class Truth:
    """All rows of a table, by its files."""

    def __init__(self, table: DeltaTable, uri: str) -> None:
        paths = [unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]
        self.files = [f"{uri}/{path}" for path in paths]
        self.is_ours = all(path.startswith("staged-") for path in paths)
        tables = [_in_utc(_read_file(path)) for path in self.files]
        self.rows = pa.concat_tables(tables, promote_options="default") if tables else pa.table({"id": []})

    def read_ids(self, predicate: Predicate, ieee: bool = False) -> list[int]:
        pairs = zip(self.rows["id"].to_pylist(), self.rows[predicate.column].to_pylist(), strict=True)
        return sorted(id_ for id_, value in pairs if predicate.holds(value, ieee))


def _read_file(path: str) -> pa.Table:
    return pq.read_table(path, partitioning=None, coerce_int96_timestamp_unit="us")


def _in_utc(table: pa.Table) -> pa.Table:
    """In files that an OPTIMIZE has made, Spark may have written times without a zone."""
    index = table.schema.get_field_index("time")
    if index < 0 or table.schema.types[index].tz:
        return table
    return table.set_column(index, "time", table["time"].cast(pa.timestamp("us", "UTC")))


class Readers:
    """One table, opened once by each reader: what it skips, it decides for each predicate anew."""

    def __init__(self, uri: str, spark: Any = None) -> None:
        import duckdb

        table = DeltaTable(uri)
        self.uri, self.truth, self._spark = uri, Truth(table, uri), spark
        self._dataset = table.to_pyarrow_dataset()
        self._engine = QueryBuilder().register("t", table)
        self._duckdb = duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self._duckdb.register("by_dataset", self._dataset)
        files = ", ".join(f"'{file}'" for file in self.truth.files)
        self._parquet = f"read_parquet([{files}], hive_partitioning = false, union_by_name = true)"

    def __enter__(self) -> Readers:
        return self

    def __exit__(self, *_: object) -> None:
        self._duckdb.close()

    def ask(self, predicates: list[Predicate], kind: pa.DataType) -> dict[str, list[list[int]]]:
        """Return the ids that each reader finds by each predicate, by the name of the reader."""
        ask_one: dict[str, Callable[[Predicate, pa.DataType], list[int]]] = {
            "delta-rs's engine": self._ask_engine,
            "duckdb": self._ask_duckdb,
        }
        if self.truth.is_ours:  # in the statistics of others, deltalake's datasets do not find everything
            ask_one["dataset"] = self._ask_dataset
            if not pa.types.is_floating(kind):
                ask_one["duckdb on the dataset"] = self._ask_duckdb_on_dataset
            if _has_polars():
                ask_one["polars"] = self._ask_polars
        answers = {reader: [ask(predicate, kind) for predicate in predicates] for reader, ask in ask_one.items()}
        if self._spark is not None:
            answers["spark"] = self._ask_spark(predicates, kind)
        return answers

    def _ask_dataset(self, predicate: Predicate, kind: pa.DataType) -> list[int]:
        return sorted(self._dataset.to_table(columns=["id"], filter=predicate.expression(kind))["id"].to_pylist())

    def _ask_engine(self, predicate: Predicate, kind: pa.DataType) -> list[int]:
        """delta-rs's query engine."""
        batches = self._engine.execute(f"SELECT id FROM t WHERE {predicate.sql(_in_engine, kind)}").read_all()
        return sorted(pa.table(batches)["id"].to_pylist())

    def _ask_duckdb(self, predicate: Predicate, kind: pa.DataType) -> list[int]:
        """DuckDB on the files, parts of which it skips by Parquet's own statistics."""
        return self._select(self._parquet, predicate, kind)

    def _ask_duckdb_on_dataset(self, predicate: Predicate, kind: pa.DataType) -> list[int]:
        """DuckDB on deltalake's dataset, to which it hands its filters."""
        return self._select("by_dataset", predicate, kind)

    def _select(self, relation: str, predicate: Predicate, kind: pa.DataType) -> list[int]:
        answer = self._duckdb.execute(f"SELECT id FROM {relation} WHERE " + predicate.sql(_in_duckdb, kind))
        return sorted(row[0] for row in answer.fetchall())

    def _ask_polars(self, predicate: Predicate, kind: pa.DataType) -> list[int]:
        import polars

        literals = [polars.from_arrow(pa.array([value], kind))[0] for value in predicate.values]  # type: ignore[index]
        dtype: Any = polars.from_arrow(pa.array([], kind)).dtype  # type: ignore[union-attr]
        column, values = polars.col(predicate.column), [polars.lit(literal, dtype) for literal in literals]
        match predicate.operator:
            case "IN":
                condition = (column == values[0]) | (column == values[1])
            case "BETWEEN":
                condition = (column >= values[0]) & (column <= values[1])
            case "IS NULL":
                condition = column.is_null()
            case "IS NOT NULL":
                condition = column.is_not_null()
            case operator:
                compare = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
                condition = getattr(column, compare[operator])(values[0])
        frame = polars.scan_delta(self.uri).filter(condition).select("id").collect()
        return sorted(frame["id"].to_list())

    def _ask_spark(self, predicates: list[Predicate], kind: pa.DataType) -> list[list[int]]:
        """All at once: each of them is a scan of its own."""
        parts = [
            f"SELECT {number} AS n, id FROM delta.`{self.uri}` WHERE {predicate.sql(_in_spark, kind)}"
            for number, predicate in enumerate(predicates)
        ]
        ids_by_predicate: list[list[int]] = [[] for _ in predicates]
        for row in self._spark.sql(" UNION ALL ".join(parts)).collect():
            ids_by_predicate[row["n"]].append(row["id"])
        return [sorted(ids) for ids in ids_by_predicate]


def _format(value: Any) -> str:
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
    text = _format(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'" if isinstance(value, str) else f"CAST('{text}' AS {SQL[kind][0]})"


def _in_duckdb(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return "unhex('" + value.hex() + "')"
    text = _format(value).replace("'", "''")
    name = {"TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}.get(SQL[kind][0], SQL[kind][0])
    zone = "+00" if name == "TIMESTAMPTZ" else ""
    return f"'{text}'" if isinstance(value, str) else f"CAST('{text}{zone}' AS {name})"


def _in_engine(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    text = _format(value).replace("'", "''")
    zone = "Z" if isinstance(value, datetime) and value.tzinfo else ""
    return f"'{text}'" if isinstance(value, str) else f"arrow_cast('{text}{zone}', '{SQL[kind][1]}')"


# ---- compared


def compare(uri: str, chance: random.Random, columns: Mapping[str, pa.DataType], spark: Any = None) -> int:
    """Ask every reader of each column by each operator; returns the number of answers.

    Raises:
        AssertionError: a reader finds other rows than there are.
    """
    compared = 0
    with Readers(uri, spark) as readers:
        truth = readers.truth
        for name, kind in columns.items():
            predicates = list(random_predicates(chance, name, kind, truth.rows[name].to_pylist()))
            for reader, answers in readers.ask(predicates, kind).items():
                for predicate, ids in zip(predicates, answers, strict=True):
                    if _is_misread(reader, predicate, kind, truth):
                        continue
                    compared += 1
                    assert ids == truth.read_ids(predicate, ieee=reader == "dataset"), f"{reader}: {predicate} in {uri}"
    return compared


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
