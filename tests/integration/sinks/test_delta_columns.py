"""Columns that a Delta table gets from the rows that bring them: at their commit, once, and only by leave."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import commits
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import schema
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.integration
NEVER: Any = None


class Table:
    """A table of ids, and a sink that may add columns to it."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.spark, self.uri = spark, str(folder)
        self.commit(self.stage("id"), 1)

    def sink(self, add: bool = True, widen: bool = False) -> DeltaWriter:
        config = DeltaSink("lake", self.uri, add_columns=add, widen=widen)
        return DeltaWriter(config, self.uri, lambda: self.spark)

    def stage(self, *columns: str, epoch: int = 1, **allowed: bool) -> Handle:
        txn = Transaction("5e1f" * 8, "flights", "lake", epoch, 1, f"{epoch:08x}0000")
        rows = self.spark.range(epoch * 10, epoch * 10 + 2).selectExpr(*columns)
        handle: Handle = json.loads(json.dumps(self.sink(**allowed).stage(txn, rows)))
        return handle

    def commit(self, handle: Handle, decision: int) -> Any:
        return self.sink().commit(handle, decision, NEVER)

    @property
    def columns(self) -> list[str]:
        return [field.name for field in DeltaTable(self.uri).schema().fields]

    def rows(self) -> list[dict[str, Any]]:
        rows = DeltaTable(self.uri).to_pyarrow_table().to_pylist()
        return sorted(rows, key=lambda row: row["id"])


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "lake", spark)


def test_the_commit_adds_them_and_not_the_stage(table: Table) -> None:
    handle = table.stage("id", "'x' AS text", "array(id) AS list", epoch=2)
    assert table.columns == ["id"]
    table.commit(handle, 2)
    assert table.columns == ["id", "text", "list"]
    assert table.rows() == [
        *({"id": n, "text": None, "list": None} for n in (10, 11)),
        *({"id": n, "text": "x", "list": [n]} for n in (20, 21)),
    ]
    assert table.commit(handle, 2).already
    assert table.spark.read.format("delta").load(table.uri).count() == 4


def test_a_crash_between_the_columns_and_the_rows_is_finished(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = table.stage("id", "'x' AS text", epoch=2)

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "commit_entry", dies)
    with pytest.raises(KeyboardInterrupt):
        table.commit(handle, 2)
    monkeypatch.undo()
    assert (table.columns, len(table.rows())) == (["id", "text"], 2)
    assert not table.commit(handle, 2).already
    assert len(table.rows()) == 4


def test_another_process_that_publishes_while_columns_are_added_is_seen(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the columns there is a new snapshot: only a new look at it says what is published."""
    handle = table.stage("id", "'x' AS text", epoch=2)
    real = schema.add

    def add(target: DeltaTable, mine: Handle) -> bool:
        added = real(target, mine)
        monkeypatch.undo()
        if added:
            table.commit(handle, 2)
        return added

    monkeypatch.setattr(schema, "add", add)
    assert table.commit(handle, 2).already
    assert len(table.rows()) == 4


def test_of_two_that_add_it_with_different_types_the_second_is_refused(table: Table) -> None:
    """Staged side by side; Spark is asked, which knows what it may cast."""
    first, second = table.stage("id", "1 AS more", epoch=2), table.stage("id", "'x' AS more", epoch=3)
    table.commit(first, 2)
    with raises(CannotPublish, "staged-rows-refused"):
        table.commit(second, 3)
    assert [row["more"] for row in table.rows()] == [None, None, 1, 1]


def test_without_leave_they_are_refused_by_name(table: Table) -> None:
    with pytest.raises(InvalidPipeline) as refused:
        table.stage("id", "'x' AS text", epoch=2, add=False)
    assert "'text' is not in the table (DeltaSink(add_columns=True) would add it)" in refused.value.why
    assert table.columns == ["id"]


def test_another_type_is_refused_whatever_is_allowed(table: Table) -> None:
    with raises(InvalidPipeline, "columns-differ") as refused:
        table.stage("CAST(id AS STRING) AS id", "'x' AS text", epoch=2)
    assert "'id' is string, the table has long" in refused.value.why


def test_a_table_beyond_delta_rs_is_altered_by_a_person(table: Table) -> None:
    table.spark.sql(
        f"ALTER TABLE delta.`{table.uri}` SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
    ).collect()
    with pytest.raises(InvalidPipeline) as refused:
        table.stage("id", "'x' AS text", epoch=2)
    assert "ALTER TABLE" in refused.value.why


@pytest.fixture
def narrow(tmp_path: Path, spark: Any) -> Table:
    """With a column n of ints; deltalake cannot read a table that allows wider types, so Spark does."""
    table = Table(tmp_path / "narrow", spark)
    table.commit(table.stage("id", "CAST(id AS INT) AS n", epoch=2), 2)
    return table


def allow_wider(table: Table) -> None:
    table.spark.sql(
        f"ALTER TABLE delta.`{table.uri}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    ).collect()


def test_the_commit_widens_a_column_once_and_not_the_stage(narrow: Table) -> None:
    def ns() -> tuple[str, list[int | None]]:
        found = narrow.spark.read.format("delta").load(narrow.uri).orderBy("id")
        return found.schema["n"].dataType.simpleString(), [row["n"] for row in found.collect()]

    allow_wider(narrow)
    handle = narrow.stage("id", "id + 3000000000 AS n", epoch=3, widen=True)
    assert ns() == ("int", [None, None, 20, 21])
    outcomes = [narrow.commit(handle, 3).already for _ in range(2)]
    assert outcomes == [False, True]
    assert ns() == ("bigint", [None, None, 20, 21, 3000000030, 3000000031])


@pytest.mark.parametrize(
    ("leave", "value", "said"),
    [
        (False, "id", r"DeltaSink\(widen=True\) would widen it"),
        (True, "id", "to allow it: ALTER TABLE"),
        (True, "CAST(id AS STRING)", "'n' is string, the table has integer;|'n' is string, the table has integer."),
    ],
)
def test_a_wider_column_is_refused_by_name_without_leave(narrow: Table, leave: bool, value: str, said: str) -> None:
    with raises(InvalidPipeline, "columns-differ") as refused:
        narrow.stage("id", f"{value} AS n", epoch=3, widen=leave)
    assert re.search(said, refused.value.why)
