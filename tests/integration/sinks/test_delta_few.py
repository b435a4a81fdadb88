"""Rows are staged by delta-rs, by Spark's Parquet writer or by Delta's: the same rows, found by the same filters."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.dataset import ParquetReadOptions

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import in_process_writer, parquet_writer
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.spark.small_batch import MAX_RECORDS, is_small

pytestmark = pytest.mark.integration
NEVER: Any = None  # a Delta handle is never replaced
ENDS = ("minValues", "maxValues")
EXACT = {"TINYINT", "SMALLINT", "INT", "BIGINT", "DATE"}
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
TEXTS = ["Zürich ✈", "a/b=c%25", "😀", "x" * 70 + "😀"]
LONG = "concat(repeat('x', 70), '{}')"  # longer than what statistics hold of a text
VALUES = {  # of each type: ends of its range, what is written in a way of its own, null
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128Y", "127Y", "0Y"],
    "SMALLINT": ["-32768S", "32767S"],
    "INT": ["-2147483648", "2147483647", "7"],
    "BIGINT": ["-9223372036854775808L", "9223372036854775807L", "9007199254740993L"],
    "FLOAT": ["float('NaN')", "float('-Infinity')", "float('0.1')", "float('-0.0')"],
    "DOUBLE": ["double('NaN')", "double('Infinity')", "0.1D", "-0.0D", "4.9E-324D"],
    "DECIMAL(38,18)": ["12345678901234567890.123456789012345678BD", "-0.000000000000000001BD"],
    "DECIMAL(9,2)": ["1234567.89BD", "-0.01BD"],
    "STRING": ["''", "'Zürich ✈'", "'a/b=c%25'", "'\\u0000'", "'😀'", LONG.format("a"), LONG.format("😀")],
    "BINARY": ["X''", "X'00FF'", "X'80'"],
    "DATE": ["DATE'0001-01-01'", "DATE'1582-10-04'", "DATE'1582-10-15'", "DATE'9999-12-31'"],
    "TIMESTAMP": [
        "TIMESTAMP'0001-01-01 00:00:00'", "TIMESTAMP'1582-10-10 12:00:00.000001'",
        "TIMESTAMP'1969-12-31 23:59:59.999999'", "TIMESTAMP'2013-03-31 02:30:00.123456'",
        "TIMESTAMP'9999-12-31 23:59:59.999999'",
    ],
}  # fmt: skip


class Table:
    """A target, and the writer of its sink."""

    def __init__(self, spark: Any, folder: Path, partition_by: tuple[str, ...] = ()) -> None:
        self.spark, self.uri, self.partition_by = spark, str(folder), partition_by
        self.writer = DeltaWriter(DeltaSink("lake", self.uri, partition_by), self.uri, lambda: spark)

    def publish(self, rows: Any, records: int | None = None, epoch: int = 1) -> Handle:
        name = Transaction("11112222", "p", "lake", epoch, 1, f"{epoch:012x}")
        handle = json.loads(json.dumps(self.writer.stage(name, rows, is_small(records))))
        assert self.writer.commit(handle, epoch, NEVER).already is False
        return handle

    def leave_to_delta(self, rows: Any) -> None:
        """Create the table with a setting by which Delta's own writer has to write the files."""
        setting = {"delta.randomizeFilePrefixes": "true"}
        rows.limit(0).write.format("delta").partitionBy(*self.partition_by).options(**setting).save(self.uri)

    def by_spark(self) -> list[str]:
        return read(self.spark.read.format("delta").load(self.uri))

    def by_delta_rs(self) -> list[str]:
        """Each row as text: NaN is equal to nothing."""
        whole = ParquetReadOptions(coerce_int96_timestamp_unit="us")  # Spark's times, as nanoseconds, would wrap
        rows = DeltaTable(self.uri).to_pyarrow_dataset(parquet_read_options=whole).to_table().to_pylist()
        return sorted(str(sorted(row.items())) for row in rows)

    def statistics(self) -> dict[str, Any]:
        (add,) = (action["add"] for action in self.staged(1) if "add" in action)
        found: dict[str, Any] = json.loads(add["stats"])
        return found

    def engine(self, epoch: int = 1) -> str | None:
        """Who has written what is staged; None: nobody, as there were no rows."""
        infos = [action["commitInfo"] for action in self.staged(epoch) if "commitInfo" in action]
        return infos[0]["engineInfo"].partition("/")[0].partition(":")[0] if infos else None

    def staged(self, epoch: int) -> list[dict[str, Any]]:
        logs = Path(self.uri).glob(f"staged-*-{epoch:012x}/_delta_log/{1:020}.json")
        return [json.loads(line) for log in logs for line in log.read_text().splitlines()]


def read(rows: Any) -> list[str]:
    return sorted(row["shown"] for row in rows.selectExpr("to_json(struct(id, hash(*) AS h)) AS shown").collect())


@pytest.fixture
def table(spark: Any, tmp_path: Path) -> Table:
    return Table(spark, tmp_path / "lake")


def column(kind: str) -> str:
    return "c_" + "".join(letter if letter.isalnum() else "_" for letter in kind.lower())


def every_type(spark: Any) -> Any:
    """A column of each type; each row has the n-th value of each, or null."""
    longest = max(map(len, VALUES.values())) + 1
    values = {kind: [*each, *["NULL"] * (longest - len(each))] for kind, each in VALUES.items()}
    selects = [
        ", ".join([f"{n} AS id", *(f"CAST({values[kind][n]} AS {kind}) AS {column(kind)}" for kind in VALUES)])
        for n in range(longest)
    ]
    return spark.sql(" UNION ALL ".join(f"SELECT {select}" for select in selects)).repartition(1)


def publish_by_each_writer(
    spark: Any, folder: Path, rows: Any, partition_by: tuple[str, ...] = ()
) -> tuple[Table, Table, Table]:
    """Publish the rows as few ones, as many ones, and to a table that is left to Delta."""
    few, many, delta = (Table(spark, folder / name, partition_by) for name in ("few", "many", "delta"))
    delta.leave_to_delta(rows)
    few.publish(rows, 10)
    for lake in (many, delta):
        lake.publish(rows)
    assert (many.engine(), delta.engine()) == ("onceonly", "Apache-Spark")
    return few, many, delta


def test_every_type_is_stored_as_spark_stores_it(spark: Any, tmp_path: Path) -> None:
    """Also where there are several ways to write a value: ends of ranges, NaN, old days, parts of a millisecond."""
    rows = every_type(spark)
    few, many, delta = publish_by_each_writer(spark, tmp_path, rows)
    assert few.engine() == "delta-rs"
    for ours in (few, many):
        assert ours.by_spark() == delta.by_spark() == read(rows)
        assert ours.by_delta_rs() == delta.by_delta_rs()
    check_statistics(few.statistics(), delta.statistics())
    # A footer tells no bounds of a column with NaN.
    check_statistics(many.statistics(), delta.statistics(), without={"FLOAT", "DOUBLE"})


def check_statistics(ours: dict[str, Any], theirs: dict[str, Any], without: set[str] = set()) -> None:  # noqa: B006
    """They say the same as Delta's, and more exactly: a reader skips files by them."""
    assert ours["numRecords"] == theirs["numRecords"]
    for kind in VALUES.keys() - {"BINARY"} - without:
        name = column(kind)
        assert ours["nullCount"][name] == theirs["nullCount"][name]
        if kind in EXACT:
            assert [ours[end][name] for end in ENDS] == [theirs[end][name] for end in ENDS], kind
    at = column("TIMESTAMP")
    assert [moment(ours[end][at]) for end in ENDS] == [FIRST, LAST]
    low, high = (ours[end][column("STRING")] for end in ENDS)
    assert low <= "" and high >= max(TEXTS)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


PARTITION_TYPES = ["BIGINT", "STRING"]
OTHER_PARTITION_TYPES = ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "DATE"]
NOT_BY_DELTA_RS = {"BOOLEAN", "STRING"}
ODD_TEXTS = ["'a/b=c%25'", "''", "'Zürich ✈'", "'a b'", "'%2F'", "'12:30'", "'.'", "'__HIVE_DEFAULT_PARTITION'"]


@pytest.mark.parametrize(
    "by", [*PARTITION_TYPES, *(pytest.param(by, marks=pytest.mark.heavy) for by in OTHER_PARTITION_TYPES)]
)
def test_partitions_are_named_as_spark_names_them(spark: Any, tmp_path: Path, by: str) -> None:
    values = [*(ODD_TEXTS if by == "STRING" else VALUES[by]), "NULL"]
    rows = spark.sql(" UNION ALL ".join(f"SELECT {n} AS id, CAST({v} AS {by}) AS v" for n, v in enumerate(values)))
    few, many, delta = publish_by_each_writer(spark, tmp_path, rows, ("v",))
    assert few.engine() == ("onceonly" if by in NOT_BY_DELTA_RS else "delta-rs")
    for ours in (few, many):
        partitions = [sorted(map(str, DeltaTable(lake.uri).partitions())) for lake in (ours, delta)]
        assert partitions[0] == partitions[1]
        assert ours.by_spark() == delta.by_spark()


@pytest.mark.parametrize(
    "rows",
    [
        "SELECT 1 AS id, CAST(X'80' AS STRING) AS v",  # no UTF-8
        "SELECT id, id AS v FROM range(10001)",  # more than few
        "SELECT 1 AS id, array(1, 2) AS v",
        "SELECT 1 AS id, named_struct('a', 1) AS v",
        "SELECT 1 AS id, map('a', 1) AS v",
        "SELECT 1 AS id, TIMESTAMP_NTZ'2013-01-01 00:00:00' AS v",
    ],
)
def test_what_delta_rs_may_see_otherwise_is_staged_by_spark(spark: Any, table: Table, rows: str) -> None:
    handle = table.publish(spark.sql(rows), 10)
    assert (table.engine(), handle["rows"]) == ("onceonly", spark.sql(rows).count())
    if "map(" not in rows:  # Spark compares no maps
        assert table.by_spark() == read(spark.sql(rows))


@pytest.mark.parametrize("records", [None, MAX_RECORDS + 1])
def test_where_much_may_have_been_read_spark_is_not_asked_for_the_rows(
    spark: Any, table: Table, records: int | None
) -> None:
    table.publish(spark.sql("SELECT 1 AS id, 1 AS v"), records)
    assert table.engine() == "onceonly"


@pytest.mark.parametrize("records", [None, 0])
def test_no_rows_are_no_version(spark: Any, table: Table, records: int | None) -> None:
    handle = table.publish(spark.sql("SELECT 1 AS id, 1 AS v").limit(0), records)
    assert (handle["rows"], handle["files"], table.engine()) == (0, 0, None)


@pytest.mark.parametrize(("records", "engine"), [(2, "delta-rs"), (None, "onceonly")])
def test_columns_in_another_order_arrive_by_name(spark: Any, table: Table, records: int | None, engine: str) -> None:
    table.publish(spark.sql("SELECT 1 AS id, 2 AS v"), records)
    table.publish(spark.sql("SELECT 4 AS v, 3 AS id"), records, epoch=2)
    assert DeltaTable(table.uri).to_pyarrow_table().sort_by("id").to_pylist() == [{"id": 1, "v": 2}, {"id": 3, "v": 4}]
    assert table.engine(2) == engine


# ---- by Spark's Parquet writer


def test_bounds_hold_for_all_row_groups_of_a_file(spark: Any, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside of structs. NaN in one of them, a text that is no UTF-8: nothing is said of that column."""
    options = {**parquet_writer.FORMAT_OPTIONS, "parquet.block.size": "4096", "parquet.page.size.row.check.min": "10"}
    monkeypatch.setattr(parquet_writer, "FORMAT_OPTIONS", options)
    table.publish(
        spark.range(0, 5000, 1, 1).selectExpr(
            "id",
            "IF(id = 4000, double('NaN'), double(id)) AS some_nan",
            "double(id - 9) AS number",
            "IF(id = 77, CAST(X'80' AS STRING), 'x') AS some_bytes",
            "concat(repeat('é', 9000), CAST(id AS STRING)) AS long",
            "named_struct('a.b', id, 'inner', named_struct('n', IF(id % 2 = 0, NULL, -id))) AS s",
            "IF(id < 10, NULL, CAST('1900-01-01' AS DATE) + CAST(id AS INT)) AS day",
        )
    )
    (file,) = Path(table.uri).glob("staged-*/rows/*.parquet")
    assert pq.ParquetFile(file).num_row_groups > 10
    stats = table.statistics()
    low, high, nulls = (stats[side] for side in (*ENDS, "nullCount"))
    assert not {"some_nan", "some_bytes"} & (low.keys() | high.keys())
    assert (low["id"], high["id"], low["number"], high["number"]) == (0, 4999, -9, 4990)
    assert (low["long"], high["long"]) == ("é" * 32, "é" * 32 + "\U0010ffff")
    assert (low["s"], high["s"]) == ({"a.b": 0, "inner": {"n": -4999}}, {"a.b": 4999, "inner": {"n": -1}})
    assert nulls["s"] == {"a.b": 0, "inner": {"n": 2500}}
    assert (low["day"], high["day"], nulls["day"]) == ("1900-01-11", "1913-09-09", 10)


def test_a_thousand_files_are_all_told(spark: Any, table: Table) -> None:
    handle = table.publish(spark.range(0, 5000, 1, 8).selectExpr("id", "id % 125 AS v").repartition(1000))
    adds = [action["add"] for action in table.staged(1) if "add" in action]
    assert handle["files"] == len(adds) >= 900
    assert sum(json.loads(add["stats"])["numRecords"] for add in adds) == handle["rows"] == 5000
    assert sorted(row["id"] for row in DeltaTable(table.uri).to_pyarrow_table(columns=["id"]).to_pylist()) == [
        *range(5000)
    ]


BEYOND = {
    "not null": "(id INT NOT NULL, v INT)",
    "check": "(id INT, v INT) TBLPROPERTIES ('delta.constraints.c' = 'v > 0')",
    "generated": "(id INT, v INT, w INT GENERATED ALWAYS AS (v + 1))",
    "default": "(id INT, v INT DEFAULT 7) TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')",
    "column mapping": "(id INT, v INT) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
    "deletion vectors": "(id INT, v INT) TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
    "row tracking": "(id INT, v INT) TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "change data": "(id INT, v INT) TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "char": "(id INT, v CHAR(3))",
    "identity": "(id BIGINT GENERATED ALWAYS AS IDENTITY, v INT)",
    "variant": "(id INT, v VARIANT)",
    "type widening": "(id INT, v INT) TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
    "optimized writes": "(id INT, v INT) TBLPROPERTIES ('delta.autoOptimize.optimizeWrite' = 'true')",
    "comment": "(id INT COMMENT 'of the order', v INT)",
    "local times": "(id INT, v TIMESTAMP_NTZ)",
    "nested not null": "(id INT, v STRUCT<a: INT NOT NULL>)",
    "statistics": "(id INT, v INT) TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '1')",
    "clustered": "(id INT, v INT) CLUSTER BY (id)",
    "partitioned by text": "(id INT, v STRING) PARTITIONED BY (v)",
    "partitioned by cents": "(id INT, v DECIMAL) PARTITIONED BY (v)",
    "partitioned by bytes": "(id INT, v BINARY) PARTITIONED BY (v)",
    "partitioned by time": "(id INT, v TIMESTAMP) PARTITIONED BY (v)",
}


# What asks nothing of Spark's Parquet writer but files with these columns. The others are left to Delta's own writer.
PLAIN_FILES = {"deletion vectors", "change data", "statistics", "partitioned by text", "comment", "local times"}


@pytest.mark.parametrize("what", BEYOND)
def test_a_table_that_asks_more_of_its_writers_is_left_to_spark(spark: Any, tmp_path: Path, what: str) -> None:
    table = make_table(spark, tmp_path, BEYOND[what])
    assert not in_process_writer.is_supported(table)
    assert parquet_writer.is_supported(table) == (what in PLAIN_FILES)


def make_table(spark: Any, folder: Path, definition: str) -> DeltaTable:
    columns, _, rest = definition.partition(") ")
    spark.sql(f"CREATE TABLE delta.`{folder}` {columns.removesuffix(')')}) USING delta {rest}").collect()
    return DeltaTable(str(folder))
