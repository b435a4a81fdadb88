"""A Delta table on a real S3 server, through a proxy that loses answers; and rows that a real Spark has made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from integration.faults.s3_proxy import FORK, Always, Fault, FirstCommit, Proxy, Request, Rule, proxy
from integration.services.s3 import BUCKET, S3
from integration.victims import mortal_s3
from patience import PATIENCE
from unit.lightdelta import LightDelta, no_spark, transaction
from unit.statetable.test_compaction import an_hour_passes

from onceonly.checkpoint.sink import Outcome
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.statetable import store_log
from onceonly.storage import arbitration
from onceonly.storage.objects import Objects
from onceonly.testing.fakes import FakeReceipts, FakeSource

pytestmark = pytest.mark.integration
numbers = count()
MOST = 45  # requests of a checkpoint of a pipeline with one Delta sink, from plan to commit, by three processes
MOST_MERGING = 50  # the same, every 11th time: the rows of the state table are merged
MOST_ALONE = 32  # by one process, which knows what it has written itself


@pytest.fixture
def uri(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/delta-{next(numbers)}"


@pytest.fixture
def between(s3: S3, uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(s3) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST, Fault.BUSY, Fault.BUSY_AFTER])
def test_rows_are_published_once_whatever_becomes_of_the_answer(
    uri: str, between: Proxy, tmp_path: Path, fault: Fault
) -> None:
    sink: Any = LightDelta(uri)  # type: ignore[arg-type]
    receipts = FakeReceipts(tmp_path / "receipts")
    handle = sink.stage(transaction(), (1, 2, 3))
    between.let(FirstCommit(fault))
    assert committed(sink, handle, receipts).detail["rows"] == 3
    assert sink.commit(handle, 1, receipts).already
    assert sink.numbers() == [1, 2, 3]


def committed(sink: Any, handle: Any, receipts: Any) -> Outcome:
    """As the coordinator does it: what is not known is asked again."""
    try:
        return sink.commit(handle, 1, receipts)
    except OutcomeUnknown as error:
        assert len(str(error).splitlines()) == 3
        return sink.commit(handle, 1, receipts)


def test_few_rows_of_spark_are_staged_without_its_file_systems(uri: str, spark: Any, tmp_path: Path) -> None:
    sink = DeltaWriter(DeltaSink("lake", uri), uri, no_spark)
    rows = spark.createDataFrame([(1, "a"), (2, "b")], "n INT, word STRING")
    handle = sink.stage(transaction(), rows, is_small_batch=True)
    assert not DeltaTable(uri).file_uris()
    sink.commit(handle, 1, FakeReceipts(tmp_path / "receipts"))
    found = DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert sorted(found, key=lambda row: row["n"]) == [{"n": 1, "word": "a"}, {"n": 2, "word": "b"}]


def test_a_store_that_ignores_conditions_gets_no_table(
    uri: str, between: Proxy, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbitration, "_stores_that_passed", set())
    sink = DeltaWriter(DeltaSink("lake", uri), uri, no_spark)
    rows = spark.createDataFrame([(1,)], "n INT")
    between.let(Always(Fault.UNCONDITIONAL))
    for refused in (sink.check, lambda: sink.stage(transaction(), rows)):
        with raises(InvalidPipeline, "store-not-arbitrating", match="were told that they succeeded"):
            refused()
    assert Objects(uri).list_objects() == []
    between.let(Rule())
    handle = sink.stage(transaction(), rows, is_small_batch=True)
    sink.commit(handle, 1, FakeReceipts(tmp_path / "receipts"))
    assert DeltaTable(uri).to_pyarrow_table()["n"].to_pylist() == [1]


@pytest.fixture
def source(tmp_path: Path) -> FakeSource:
    folder = tmp_path / "source"
    folder.mkdir()
    return FakeSource("flights", folder)


def folder_of(source: FakeSource) -> str:
    return str(source._file.parent)


def checkpoint(source: FakeSource, uri: str) -> None:
    source.append(0, *((mortal_s3.NOON, value) for value in range(5)))
    assert mortal_s3.run(folder_of(source), uri, ("lake",))


def test_what_a_checkpoint_asks_of_s3_is_counted(
    uri: str, between: Proxy, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is of requests, which are round trips; the time of each belongs to the benchmarks."""
    monkeypatch.setattr(store_log, "LOOK_FRESH_SECONDS", float("inf"))  # on a slow machine, looks would be repeated
    for _ in range(2):
        between.let(Rule())
        checkpoint(source, uri)
    print(f"requests: {sum(between.counts.values())}, {dict(between.counts)}")
    assert sum(between.counts.values()) <= MOST_ALONE


def test_the_steps_of_a_checkpoint_ask_little_however_long_the_history_is(
    uri: str, between: Proxy, source: FakeSource
) -> None:
    """After so many checkpoints that the first rows were merged."""
    for _ in range(13):
        checkpoint(source, uri)
    assert len(asked_by_steps(source, uri, between, 14)) <= MOST


def test_nor_does_the_one_ask_much_that_merges_the_rows_of_the_state_table(
    uri: str, between: Proxy, source: FakeSource
) -> None:
    """And deletes what the merge before it has taken out."""
    for _ in range(22):
        checkpoint(source, uri)
    an_hour_passes(f"{uri}/state/_pipelines/flights")
    asked = asked_by_steps(source, uri, between, 23)
    assert len(asked) <= MOST_MERGING
    assert [request.method for request in asked if request.path.endswith(".checkpoint.parquet")] == ["GET", "PUT"], (
        "it has merged"
    )
    assert [request.method for request in asked].count("POST") == 2, (
        "what the merge before took out, and the settled log"
    )


def asked_by_steps(source: FakeSource, uri: str, between: Proxy, epoch: int) -> list[Request]:
    """What the steps of that checkpoint ask, each in a process that knows nothing yet."""
    source.append(0, *((mortal_s3.NOON, value) for value in range(5)))
    between.let(Rule())
    for name in ("plan", "stage", "commit"):
        process = FORK.Process(target=mortal_s3.step, args=(between.environment, folder_of(source), uri, name, epoch))
        process.start()
        process.join(PATIENCE)
        assert process.exitcode == 0
    asked = between.seen
    print(f"requests: {len(asked)}, {dict(Counter(request.method for request in asked))}")
    assert LightDelta(f"{uri}/lake").numbers() == sorted(epoch * list(range(5)))  # type: ignore[arg-type]
    return asked
