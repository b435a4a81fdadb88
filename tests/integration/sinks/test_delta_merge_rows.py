"""Changes that Spark stages to be merged: the newest of each key, or refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.integration
NEVER: Any = None
# every type that a row may have; what is never compared may be of any
WIDE = """
    n AS id, n AS at, n = 3 AS gone, CAST(n AS TINYINT) AS tiny, n / 7 AS double,
    CAST(n / 3 AS DECIMAL(20, 6)) AS exact,
    TIMESTAMP '1900-01-01 00:00:00.123456 UTC' + MAKE_INTERVAL(0, 0, 0, n) AS time, DATE '2013-01-01' + n AS date,
    TIMESTAMP_NTZ '2013-01-01 01:02:03.123456' AS local, CAST(concat('é', n) AS BINARY) AS bytes,
    concat('é', n) AS text,
    map('a', n, 'b', NULL) AS map, array(n, NULL) AS list, named_struct('a', named_struct('b', n)) AS deep,
    CAST(NULL AS STRING) AS nothing
"""


class Table:
    """A sink that merges, and its table."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.spark, self.uri = spark, str(folder)

    def sink(self, **options: Any) -> DeltaWriter:
        merge = Merge(keys=["id"], order_by=["at"], deletes="gone")
        return DeltaWriter(DeltaSink("lake", self.uri, **{"merge": merge, **options}), self.uri, lambda: self.spark)

    def stage(self, rows: Any, epoch: int = 1, **options: Any) -> Handle:
        txn = Transaction("5e1f" * 8, "flights", "lake", epoch, 1, f"{epoch:08x}0000")
        handle: Handle = json.loads(json.dumps(self.sink(**options).stage(txn, rows)))
        return handle

    def changes(self, text: str) -> Any:
        return self.spark.sql(
            "SELECT CAST(id AS INT) AS id, CAST(at AS INT) AS at, CAST(gone AS BOOLEAN) AS gone, CAST(text AS STRING) "
            f"AS text FROM VALUES {text} AS changes(id, at, gone, text)"
        )

    def publish(self, rows: Any, epoch: int) -> Any:
        return self.sink().commit(self.stage(rows, epoch), epoch, NEVER).detail

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(map(tuple, self.spark.read.format("delta").load(self.uri).collect()))


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "lake", spark)


def test_the_newest_change_of_each_key_is_staged_and_merged(table: Table) -> None:
    same = "(2, 1, false, 'x'), (2, 1, false, 'x')"
    first = table.changes(f"(1, 1, false, 'a'), (1, 3, false, 'c'), (1, 2, true, 'b'), {same}")
    assert table.stage(first)["rows"] == 2
    table.publish(first, 1)
    assert table.rows() == [(1, 3, False, "c"), (2, 1, False, "x")]
    detail = table.publish(table.changes("(2, 4, true, NULL), (1, 2, false, 'late'), (3, 1, false, 'new')"), 2)
    assert (detail["updated"], detail["inserted"], detail["older"]) == (1, 1, 1)
    assert table.rows() == [(1, 3, False, "c"), (2, 4, True, None), (3, 1, False, "new")]
    table.publish(table.changes("(2, 3, false, 'from before it was deleted')"), 3)
    assert table.rows()[1] == (2, 4, True, None)


def test_rows_of_every_type_are_copied_as_they_are(table: Table) -> None:
    rows = table.spark.sql("SELECT n FROM VALUES 1, 2, 3, 4, 5 AS numbers(n)").selectExpr(*split(WIDE))
    table.publish(rows, 1)
    before = read(table)
    change = rows.where("id = 2").selectExpr("* EXCEPT (at, text)", "9 AS at", "'new' AS text")
    assert table.publish(change, 2)["rewritten"] > 0
    after = read(table)
    assert [after[id] for id in (1, 3, 4, 5)] == [before[id] for id in (1, 3, 4, 5)]
    assert after[2] == {**before[2], "at": 9, "text": "new"}


def split(columns: str) -> list[str]:
    """Split at commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in columns:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def read(table: Table) -> dict[int, dict[str, Any]]:
    rows = table.spark.read.format("delta").load(table.uri).selectExpr("*", "CAST(time AS STRING) AS told").collect()
    return {row["id"]: row.asDict(recursive=True) for row in rows}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("(NULL, 1, false, 'a')", "'id' is null"),
        ("(1, NULL, false, 'a')", "'at' is null"),
        ("(1, 1, NULL, 'a')", "'gone' is null"),
        ("(1, 1, false, 'a'), (1, 1, false, 'b')", 'another one has the same order, {"id":1,"at":1'),
        ("(1, 1, false, 'a'), (1, 1, false, NULL), (1, 2, false, 'newer')", "another one has the same order"),
    ],
)
def test_a_change_that_cannot_be_ordered_is_refused(table: Table, changes: str, why: str) -> None:
    table.publish(table.changes("(7, 1, false, 'a')"), 1)
    with pytest.raises(InvalidPipeline) as refused:
        table.stage(table.changes(changes), 2)
    assert why in refused.value.why
    assert table.rows() == [(7, 1, False, "a")]
    assert DeltaTable(table.uri).version() == 1


@pytest.mark.parametrize("kind", ["double", "float", "array<int>", "map<string, int>", "struct<a: int>", "binary"])
@pytest.mark.parametrize("column", ["id", "at"])
def test_a_type_that_cannot_be_compared_exactly_is_refused(table: Table, kind: str, column: str) -> None:
    other = "at" if column == "id" else "id"
    rows = table.spark.range(1).selectExpr(f"CAST(NULL AS {kind}) AS {column}", f"1 AS {other}", "false AS gone")
    with raises(InvalidPipeline, "columns-unsuitable", match=f"'{column}' is {kind.split('<')[0]}"):
        table.stage(rows)
    assert not Path(table.uri).exists()


def test_columns_that_are_missing_or_say_nothing_are_refused(table: Table) -> None:
    with raises(InvalidPipeline, "columns-unsuitable", match=r"'at' is missing; 'gone' \(deletes\) is integer"):
        table.stage(table.spark.sql("SELECT 1 AS id, 1 AS gone"))
    assert not Path(table.uri).exists()


def test_a_table_with_column_mapping_or_without_the_keys_is_refused(table: Table) -> None:
    table.spark.sql(
        f"CREATE TABLE delta.`{table.uri}` (at INT, gone BOOLEAN, text STRING) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    )
    with raises(InvalidPipeline, "rows-not-replaceable", match=r"cannot be merged into.*\n.*columnMapping"):
        table.stage(table.changes("(1, 1, false, 'a')"))
    plain = Table(Path(f"{table.uri}_plain"), table.spark)
    table.spark.sql(f"CREATE TABLE delta.`{plain.uri}` (at INT, gone BOOLEAN, text STRING) USING delta")
    with raises(InvalidPipeline, "rows-not-replaceable", match=r"cannot be merged into.*\n.*no column \['id'\]"):
        plain.stage(table.changes("(1, 1, false, 'a')"))
