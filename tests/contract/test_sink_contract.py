"""What every sink promises; one suite for all of them. A new sink adds its line to `Target`."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from onceonly.checkpoint import Handle, Outcome, Transaction
from onceonly.errors import CannotPublish
from onceonly.fakes import FakeSink
from onceonly.pipeline import DeltaSink
from onceonly.protocols import Sink
from onceonly.sinks.delta import DeltaWriter

STATE_ID = "5e1f" * 8


def no_spark() -> Any:
    raise AssertionError("publishing and aborting need no Spark here")


@dataclass(frozen=True)
class Target:
    """An output by name, so that another process finds it too."""

    kind: str
    folder: str

    def sink(self) -> Sink:
        """A new one each time: no sink may rely on what it remembers."""
        if self.kind == "fake":
            return FakeSink("lake", Path(self.folder))
        return DeltaWriter(DeltaSink("lake", self.folder), self.folder, no_spark)

    def published(self) -> list[int]:
        """What a reader sees, sorted."""
        if self.kind == "fake":
            return sorted(row["n"] for row in FakeSink("lake", Path(self.folder)).rows())
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist())

    def traces(self, txn: Transaction) -> list[Path]:
        return [path for path in Path(self.folder).rglob("*") if txn.name in path.name]


@pytest.fixture(params=["fake", pytest.param("delta", marks=pytest.mark.integration)])
def target(request, tmp_path) -> Target:
    return Target(request.param, str(tmp_path / "out"))


@pytest.fixture
def stage(request, target):
    """stage(txn, *numbers) -> its handle, as it comes back from the state table."""
    spark = None if target.kind == "fake" else request.getfixturevalue("spark")

    def stage(txn: Transaction, *numbers: int) -> Handle:
        rows: Any = [{"n": number} for number in numbers]
        if spark is not None:
            rows = spark.createDataFrame([(number,) for number in numbers], "n INT")
        return json.loads(json.dumps(target.sink().stage(txn, rows)))

    return stage


def transaction(epoch: int = 1, attempt: int = 1, pipeline: str = "flights") -> Transaction:
    return Transaction(STATE_ID, pipeline, "lake", epoch, attempt, f"nonce{epoch}{attempt}")


def commit_twice_at_once(target: Target, handle: Handle) -> list[Outcome]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda sink: sink.commit(handle, 1), [target.sink(), target.sink()]))


def test_nothing_is_visible_before_the_commit(target, stage):
    stage(transaction(), 1, 2, 3)
    assert target.published() == []


def test_a_commit_publishes_all_rows(target, stage):
    outcome = target.sink().commit(stage(transaction(), 1, 2, 3), 1)
    assert target.published() == [1, 2, 3]
    assert (outcome.already, outcome.detail["rows"]) == (False, 3)


def test_a_handle_says_how_many_rows(stage):
    assert stage(transaction(), 1, 2, 3)["rows"] == 3


def test_an_output_without_rows_is_staged_and_published_too(target, stage):
    empty = stage(transaction(1))
    assert empty["rows"] == 0
    target.sink().commit(empty, 1)
    target.sink().commit(stage(transaction(2), 1), 2)
    assert target.published() == [1]


def test_a_commit_repeated_ten_times_publishes_once(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    outcomes = [target.sink().commit(handle, 1) for _ in range(10)]
    assert [outcome.already for outcome in outcomes] == [False] + [True] * 9
    assert target.published() == [1, 2, 3]


def test_commits_from_several_processes_and_threads_at_once_publish_once(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        outcomes = [o for both in pool.map(commit_twice_at_once, [target] * 2, [handle] * 2) for o in both]
    assert sorted(outcome.already for outcome in outcomes) == [False, True, True, True]
    assert target.published() == [1, 2, 3]


def test_what_was_published_is_known_from_the_target_alone(target, stage):
    """The record of it in the state table may be lost: the process died in between, and others have published since."""
    first, second = stage(transaction(1), 1), stage(transaction(2), 2)
    target.sink().commit(first, 1)
    target.sink().commit(second, 2)
    assert target.sink().commit(first, 1).already
    assert target.published() == [1, 2]


def test_decisions_are_published_one_after_the_other(target, stage):
    handles = {decision: stage(transaction(epoch=10 - decision), decision) for decision in (1, 2, 3)}
    assert [target.sink().commit(handles[decision], decision).already for decision in (1, 2, 3)] == [False] * 3
    assert target.published() == [1, 2, 3]


def test_a_lower_decision_than_the_published_one_counts_as_published(target, stage):
    """That is why a sink never publishes 8 while 7 waits."""
    earlier, later = stage(transaction(1), 1), stage(transaction(2), 2)
    target.sink().commit(later, 8)
    assert target.sink().commit(earlier, 7).already
    assert target.published() == [2]


def test_rows_that_are_gone_are_never_taken_for_published(target, stage):
    handle = stage(transaction(), 1)
    target.sink().abort(transaction(), handle)
    with pytest.raises(CannotPublish) as refused:
        target.sink().commit(handle, 1)
    assert "onceonly resolve" in refused.value.todo
    assert target.published() == []


@pytest.mark.parametrize("with_handle", [True, False])
def test_an_abort_leaves_nothing_and_may_be_repeated(target, stage, with_handle):
    handle = stage(transaction(), 1, 2, 3)
    for _ in range(2):
        target.sink().abort(transaction(), handle if with_handle else None)
    assert target.traces(transaction()) == []
    assert target.sink().leftovers(transaction().prefix) == []
    assert target.published() == []


def test_an_abort_of_what_was_never_staged_does_nothing(target):
    target.sink().abort(transaction(), None)
    assert target.sink().leftovers(transaction().prefix) == []


@pytest.mark.parametrize("with_handle", [True, False])
def test_an_abort_never_touches_what_is_published(target, stage, with_handle):
    handle = stage(transaction(), 1, 2, 3)
    target.sink().commit(handle, 1)
    target.sink().abort(transaction(), handle if with_handle else None)
    assert target.published() == [1, 2, 3]
    assert target.sink().commit(handle, 1).already


def test_an_abort_spares_every_other_attempt(target, stage):
    stage(transaction(attempt=1), 1)
    current = stage(transaction(attempt=2), 2)
    target.sink().abort(transaction(attempt=1), None)
    target.sink().commit(current, 1)
    assert target.published() == [2]


def test_leftovers_are_exactly_what_is_staged_and_not_published(target, stage):
    prefix = transaction().prefix
    assert target.sink().leftovers(prefix) == []
    published, aborted, waiting = (transaction(epoch) for epoch in (1, 2, 3))
    handle = stage(published, 1)
    stage(aborted, 2)
    stage(waiting, 3)
    target.sink().commit(handle, 1)
    target.sink().abort(aborted, None)
    assert target.sink().leftovers(prefix) == [waiting]


def test_two_pipelines_into_one_target_do_not_disturb_each_other(target, stage):
    mine, other = transaction(), transaction(pipeline="flights_by_day")
    handles = stage(mine, 1), stage(other, 2)
    stage(transaction(epoch=2, pipeline="flights_by_day"), 3)
    assert target.sink().leftovers(mine.prefix) == [mine]
    assert [target.sink().commit(handle, 1).already for handle in handles] == [False, False]
    target.sink().abort(transaction(epoch=2, pipeline="flights_by_day"), None)
    assert target.published() == [1, 2]
