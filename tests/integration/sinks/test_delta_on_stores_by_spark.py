"""What Spark writes and reads on real object stores: staged tables, what a transform remembers, a table as source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from integration.projects.light_stores import Reader
from integration.services.store_server import StoreServer
from unit.lightdelta import no_spark, transaction

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import TopicRange
from onceonly.checkpoint.sink import Changes
from onceonly.delta import txn_identifiers
from onceonly.pipeline.sinks import DeltaSink, Merge, StateSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.state.runs import MAX_RUNS
from onceonly.sinks.state.sink import StateWriter
from onceonly.sources.delta import DeltaReader
from onceonly.storage.paths import spark_uri
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
ROWS = 20_000
DAYS = ("CAST(id AS BIGINT) AS n", "date_add(DATE'2013-01-01', CAST(id % 3 AS INT)) AS day")
COMMITTERS = {"s3": {"magic"}}  # where Spark's own would copy each file to its name; elsewhere it renames


@pytest.fixture
def uri(store: StoreServer, name: str) -> str:
    return store.uri(name)


def sink_of(uri: str, **options: Any) -> DeltaWriter:
    return DeltaWriter(DeltaSink("lake", uri, **options), uri, no_spark)


def commit(sink: DeltaWriter, handle: Any, tmp_path: Path, decision: int = 1) -> Any:
    return sink.commit(handle, decision, FakeReceipts(tmp_path / "receipts"))


def test_any_number_of_rows_is_staged_by_spark(uri: str, spark_there: Any, tmp_path: Path) -> None:
    sink = sink_of(uri, partition_by=["day"])
    handle = sink.stage(transaction(), spark_there.range(ROWS).repartition(3).selectExpr(*DAYS))
    assert (handle["rows"], handle["publish"]) == (ROWS, "delta-rs") and handle["files"] >= 3
    assert not DeltaTable(uri).file_uris()
    assert not commit(sink, handle, tmp_path).already and commit(sink, handle, tmp_path).already
    found = DeltaTable(uri).to_pyarrow_table()
    assert sorted(found["n"].to_pylist()) == list(range(ROWS))
    assert sink.staged_frame(handle, spark_there).count() == ROWS
    sink.release(transaction())
    assert sink.leftovers(transaction().prefix) == []
    assert spark_there.read.format("delta").load(spark_uri(uri)).count() == ROWS


def test_what_was_not_published_leaves_nothing(uri: str, name: str, shown: Reader, spark_there: Any) -> None:
    sink = sink_of(uri, partition_by=["day"])
    handle = sink.stage(transaction(), spark_there.range(ROWS).selectExpr(*DAYS))
    assert sink.leftovers(transaction().prefix) == [transaction()]
    sink.discard(transaction(), handle)
    assert sink.leftovers(transaction().prefix) == []
    assert not [key for key in shown.keys(f"{name}/") if txn_identifiers.STAGED_PREFIX in key]


@pytest.mark.heavy
def test_what_was_published_is_never_discarded(uri: str, spark_there: Any, tmp_path: Path) -> None:
    sink = sink_of(uri)
    handle = sink.stage(transaction(), spark_there.range(ROWS).selectExpr("id AS n"))
    commit(sink, handle, tmp_path)
    sink.discard(transaction(), handle)
    assert DeltaTable(uri).to_pyarrow_table().num_rows == ROWS


@pytest.mark.heavy
def test_rows_take_the_place_of_others(uri: str, spark_there: Any, tmp_path: Path) -> None:
    sink = sink_of(uri, partition_by=["day"], replace="partitions")
    first = sink.stage(transaction(), spark_there.range(ROWS).selectExpr(*DAYS))
    commit(sink, first, tmp_path)
    again = spark_there.range(ROWS).where("id % 3 = 1").selectExpr("-CAST(id AS BIGINT) AS n", DAYS[1])
    second = sink.stage(transaction(2), again)
    commit(sink, second, tmp_path, 2)
    expected = sorted(-n if n % 3 == 1 else n for n in range(ROWS))
    assert sorted(DeltaTable(uri).to_pyarrow_table()["n"].to_pylist()) == expected


@pytest.mark.heavy
def test_changes_are_merged(uri: str, spark_there: Any, tmp_path: Path) -> None:
    sink = sink_of(uri, merge=Merge(keys=["n"], order_by=["at"]))
    for epoch in (1, 2):
        changes = spark_there.range(epoch * ROWS).selectExpr(f"id % {ROWS} * {epoch} AS n", "id AS at")
        commit(sink, sink.stage(transaction(epoch), changes), tmp_path, epoch)
    found = {row["n"]: row["at"] for row in DeltaTable(uri).to_pyarrow_table().to_pylist()}
    truth = {n: n for n in range(ROWS)}
    truth |= {n * 2: n + ROWS for n in range(ROWS)}
    assert found == truth


@pytest.mark.heavy
def test_what_a_transform_remembers(
    uri: str, name: str, store: StoreServer, shown: Reader, spark_there: Any, tmp_path: Path
) -> None:
    """Through enough checkpoints that runs are merged, and with an attempt that was discarded; in any folder."""
    folder = "données #1 50%25" if store.scheme == "s3" else "totals"  # elsewhere Spark was not tried with such names
    uri, name = f"{uri}/{folder}", f"{name}/{folder}"
    sink = StateWriter(StateSink("totals", schema="page INT, views BIGINT", key=["page"], path=uri), uri)
    before, truth = None, {}
    for epoch in range(1, MAX_RUNS + 3):
        rows = spark_there.range(5).selectExpr(
            f"CAST(id * {epoch} AS INT) AS page", f"CAST({epoch} AS BIGINT) AS views"
        )
        lost, txn = (Transaction("0" * 32, "pages", "totals", epoch, attempt, f"n{attempt}") for attempt in (1, 2))
        if epoch % 5 == 0:
            sink.discard(lost, sink.stage(lost, Changes(rows.limit(1), before)))
        handle = sink.stage(txn, Changes(rows, before))
        assert not sink.commit(handle, epoch, FakeReceipts(tmp_path)).already
        assert sink.commit(handle, epoch, FakeReceipts(tmp_path)).already
        before, truth = handle, truth | {number * epoch: epoch for number in range(5)}
    assert {row["page"]: row["views"] for row in sink.read(spark_there, before).collect()} == truth
    assert sink.leftovers("0" * 32 + "-pages") == []
    assert [trace.decision for trace in sink.traces("pages")] == [MAX_RUNS + 2]
    assert not [key for key in shown.keys(f"{name}/") if "_temporary" in key or "__magic" in key]
    told = {committer(shown.text(f"{name}/{run['folder']}/_SUCCESS")) for run in before["runs"]}
    assert told == COMMITTERS.get(store.scheme, told), "files were copied to their names"


def committer(success: str) -> str:
    """By which one Spark wrote a folder, as that one says itself; Spark's usual one says nothing."""
    return str(json.loads(success or "{}").get("committer"))


@pytest.mark.heavy
@pytest.mark.parametrize("changes", [False, True])
def test_a_table_on_a_store_is_a_source(uri: str, spark_there: Any, changes: bool) -> None:
    import pyarrow as pa

    options = {"delta.enableChangeDataFeed": "true"} if changes else {}
    for start in (0, 10, 20):
        rows = pa.table({"n": list(range(start, start + 10)), "day": ["a", "b"] * 5})
        write_deltalake(uri, rows, mode="append", partition_by=["day"], configuration=options)
    reader = DeltaReader(DeltaSource(uri, changes=changes), uri)
    assert "version 2" in reader.check()[0]
    source = reader.log()
    for start, end, truth in ((0, 2, range(20)), (1, 3, range(10, 30)), (0, 3, range(30))):
        range_ = reader.add_mark(TopicRange(source.topic, source.topic_id, {0: (start, end)}, "delta"), None)
        reader.verify((range_,))
        assert sorted(row["n"] for row in reader.read(spark_there, (range_,)).collect()) == list(truth)
