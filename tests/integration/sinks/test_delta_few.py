"""Few rows are staged by delta-rs: the same rows, found by the same filters, as those that Delta on Spark stages."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow.dataset import ParquetReadOptions

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import in_process_writer
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
        self.spark, self.uri = spark, str(folder)
        self.writer = DeltaWriter(DeltaSink("lake", self.uri, partition_by), self.uri, lambda: spark)

    def publish(self, rows: Any, records: int | None = None, epoch: int = 1) -> Handle:
        name = Transaction("11112222", "p", "lake", epoch, 1, f"{epoch:012x}")
        handle = json.loads(json.dumps(self.writer.stage(name, rows, is_small(records))))
        assert self.writer.commit(handle, epoch, NEVER).already is False
        return handle

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
def tables(spark: Any, tmp_path: Path) -> tuple[Table, Table]:
    return Table(spark, tmp_path / "few"), Table(spark, tmp_path / "many")


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


def test_every_type_is_stored_as_spark_stores_it(spark: Any, tables: tuple[Table, Table]) -> None:
    """Also where there are several ways to write a value: ends of ranges, NaN, old days, parts of a millisecond."""
    ours, theirs = tables
    rows = every_type(spark)
    assert ours.publish(rows, 10)["rows"] == theirs.publish(rows)["rows"] == rows.count()
    assert (ours.engine(), theirs.engine()) == ("delta-rs", "Apache-Spark")
    assert ours.by_spark() == theirs.by_spark() == read(rows)
    assert ours.by_delta_rs() == theirs.by_delta_rs()
    check_statistics(ours.statistics(), theirs.statistics())


def check_statistics(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """They say the same as Delta's, and more exactly: a reader skips files by them."""
    assert ours["numRecords"] == theirs["numRecords"]
    for kind in set(VALUES) - {"BINARY"}:
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


@pytest.mark.parametrize("by", ["INT", "BIGINT", "DATE"])
def test_partitions_are_named_as_spark_names_them(spark: Any, tmp_path: Path, by: str) -> None:
    ours, theirs = (Table(spark, tmp_path / name, ("v",)) for name in ("few", "many"))
    values = [*VALUES[by], "NULL"]
    rows = spark.sql(" UNION ALL ".join(f"SELECT {n} AS id, CAST({v} AS {by}) AS v" for n, v in enumerate(values)))
    ours.publish(rows, len(values))
    theirs.publish(rows)
    assert (ours.engine(), theirs.engine()) == ("delta-rs", "Apache-Spark")
    parts = [sorted(map(str, DeltaTable(lake.uri).partitions())) for lake in (ours, theirs)]
    assert parts[0] == parts[1]
    assert ours.by_spark() == theirs.by_spark()


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
def test_what_delta_rs_may_see_otherwise_is_staged_by_spark(spark: Any, tables: tuple[Table, Table], rows: str) -> None:
    ours, _ = tables
    handle = ours.publish(spark.sql(rows), 10)
    assert (ours.engine(), handle["rows"]) == ("Apache-Spark", spark.sql(rows).count())


@pytest.mark.parametrize("records", [None, MAX_RECORDS + 1])
def test_where_much_may_have_been_read_spark_is_not_asked_for_the_rows(
    spark: Any, tables: tuple[Table, Table], records: int | None
) -> None:
    ours, _ = tables
    ours.publish(spark.sql("SELECT 1 AS id, 1 AS v"), records)
    assert ours.engine() == "Apache-Spark"


def test_no_rows_are_no_version(spark: Any, tables: tuple[Table, Table]) -> None:
    ours, _ = tables
    handle = ours.publish(spark.sql("SELECT 1 AS id, 1 AS v").limit(0), 0)
    assert (handle["rows"], handle["files"], ours.engine()) == (0, 0, None)


def test_columns_in_another_order_arrive_by_name(spark: Any, tables: tuple[Table, Table]) -> None:
    ours, _ = tables
    ours.publish(spark.sql("SELECT 1 AS id, 2 AS v"), 2)
    ours.publish(spark.sql("SELECT 4 AS v, 3 AS id"), 2, epoch=2)
    assert DeltaTable(ours.uri).to_pyarrow_table().sort_by("id").to_pylist() == [{"id": 1, "v": 2}, {"id": 3, "v": 4}]
    assert ours.engine(2) == "delta-rs"


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
    "statistics": "(id INT, v INT) TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '1')",
    "clustered": "(id INT, v INT) CLUSTER BY (id)",
    "partitioned by text": "(id INT, v STRING) PARTITIONED BY (v)",
    "partitioned by time": "(id INT, v TIMESTAMP) PARTITIONED BY (v)",
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_table_that_asks_more_of_its_writers_is_left_to_spark(spark: Any, tmp_path: Path, what: str) -> None:
    columns, _, rest = BEYOND[what].partition(") ")
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` {columns.removesuffix(')')}) USING delta {rest}").collect()
    assert not in_process_writer.is_supported(DeltaTable(str(tmp_path)))
