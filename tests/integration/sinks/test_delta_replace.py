"""A Delta sink whose rows take the place of others: whole partitions, or what meets a condition, in one commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import commits
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter

pytestmark = pytest.mark.integration
NEVER: Any = None
EVERYWHERE = ("us", "it's a/b %", None)  # one whose folder is not its name


def everywhere(*numbers: int) -> dict[str | None, list[int]]:
    return {country: list(numbers) for country in EVERYWHERE}


class Table:
    """Two numbers per country, from a first checkpoint; each later one writes numbers of its own."""

    def __init__(self, folder: Path, spark: Any) -> None:
        self.spark, self.uri = spark, str(folder)
        self.commit(self.stage(*EVERYWHERE, epoch=1), 1)

    def sink(self, replace: Any = None) -> DeltaWriter:
        config = DeltaSink("lake", self.uri, partition_by=["country"], replace=replace)
        return DeltaWriter(config, self.uri, lambda: self.spark)

    def stage(self, *countries: str | None, epoch: int = 2, replace: Any = None) -> Handle:
        """Two rows per country, numbered from ten times the epoch."""
        txn = Transaction("5e1f" * 8, "flights", "lake", epoch, 1, f"{epoch:08x}0000")
        rows = [(country, epoch * 10 + number) for country in countries for number in range(2)]
        frame = self.spark.createDataFrame(rows, "country STRING, n BIGINT")
        handle: Handle = json.loads(json.dumps(self.sink(replace).stage(txn, frame)))
        return handle

    def commit(self, handle: Handle, decision: int) -> Any:
        return self.sink().commit(handle, decision, NEVER)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri)

    def rows(self) -> dict[str | None, list[int]]:
        found: dict[str | None, list[int]] = {}
        for row in self.delta.to_pyarrow_table().to_pylist():
            found.setdefault(row["country"], []).append(row["n"])
        return {country: sorted(numbers) for country, numbers in found.items()}


@pytest.fixture
def table(tmp_path: Path, spark: Any) -> Table:
    return Table(tmp_path / "lake", spark)


@pytest.mark.parametrize("country", EVERYWHERE)
def test_the_partitions_of_the_new_rows_are_replaced_and_no_other(table: Table, country: str | None) -> None:
    before = table.delta.version()
    handle = table.stage(country, replace="partitions")
    assert table.rows() == everywhere(10, 11)
    table.commit(handle, 2)
    assert table.rows() == everywhere(10, 11) | {country: [20, 21]}
    assert table.delta.version() == before + 1
    assert table.commit(handle, 2).already
    assert table.spark.read.format("delta").load(table.uri).count() == 6


def test_what_meets_the_condition_is_replaced_also_where_no_new_row_is(table: Table) -> None:
    table.commit(table.stage("us", replace=[("country", "in", ["us", "it's a/b %"])]), 2)
    assert table.rows() == {None: [10, 11], "us": [20, 21]}
    table.commit(table.stage(epoch=3, replace=[("country", "=", "us")]), 3)
    assert table.rows() == {None: [10, 11]}


def test_no_rows_replace_no_partition(table: Table) -> None:
    table.commit(table.stage(replace="partitions"), 2)
    assert table.rows() == everywhere(10, 11)


def test_rows_of_others_are_replaced_as_they_are_when_it_is_published(table: Table) -> None:
    handle = table.stage("us", replace="partitions")
    write_deltalake(table.uri, table.delta.to_pyarrow_table(), mode="append")
    table.delta.optimize.compact()
    table.commit(handle, 2)
    assert table.rows() == everywhere(10, 10, 11, 11) | {"us": [20, 21]}


@pytest.mark.parametrize("work", ["compact", "append", "delete"])
def test_others_at_work_while_it_is_published(table: Table, monkeypatch: pytest.MonkeyPatch, work: str) -> None:
    """Whatever has moved the old rows elsewhere between the look and the commit: they go, and once."""
    write_deltalake(table.uri, table.delta.to_pyarrow_table(), mode="append")  # so that there is something to compact
    handle = table.stage("us", replace="partitions")
    real = commits.commit_entry

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_entry", real)
        match work:
            case "compact":
                table.delta.optimize.compact()
            case "append":
                write_deltalake(table.uri, table.delta.to_pyarrow_table(), mode="append")
            case "delete":
                table.delta.delete("n = 10")
        real(*arguments)

    monkeypatch.setattr(commits, "commit_entry", late)
    table.commit(handle, 2)
    assert table.rows()["us"] == [20, 21]


def test_rows_outside_of_the_condition_are_refused(table: Table) -> None:
    with raises(InvalidPipeline, "rows-outside-condition") as refused:
        table.stage("us", None, replace=[("country", "=", "us")])
    assert "1 of 2 files" in refused.value.why
    assert table.rows() == everywhere(10, 11)


def test_a_table_that_only_takes_appends_is_refused_before_and_after_the_stage(table: Table) -> None:
    handle = table.stage("us", replace="partitions")
    table.delta.alter.set_table_properties({"delta.appendOnly": "true"})
    with raises(CannotPublish, "replaced-rows-changed"):
        table.commit(handle, 2)
    with raises(InvalidPipeline, "rows-not-replaceable"):
        table.sink("partitions").check()
    with raises(InvalidPipeline, "rows-not-replaceable"):
        table.stage("us", epoch=3, replace="partitions")
    assert table.rows() == everywhere(10, 11)


def test_what_has_replaced_others_is_not_taken_back(table: Table) -> None:
    handle = table.stage("us", replace="partitions")
    table.commit(handle, 2)
    txn = Transaction("5e1f" * 8, "flights", "lake", 3, 1, "000000030000")
    with raises(InvalidPipeline, "rows-not-retractable", match="cannot be taken back"):
        table.sink("partitions").retraction(txn, [handle], None)


def test_an_interval_processed_again_finds_partitions_whose_folder_is_not_their_name(table: Table) -> None:
    first = table.stage(*EVERYWHERE, epoch=2)
    table.commit(first, 2)
    second = {**table.stage(*EVERYWHERE, epoch=3), "replaces": first}
    table.commit(second, 3)
    assert table.rows() == everywhere(10, 11, 30, 31)
