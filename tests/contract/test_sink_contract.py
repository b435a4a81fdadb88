"""What every sink promises; one suite for all of them. A new sink adds its line to `Target`."""

import hashlib
import json
import multiprocessing
import sys
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas
import pytest
from deltalake import DeltaTable
from integration.hdfs import Hdfs
from integration.kafka_reader import new_topic, until, values

from onceonly.checkpoint.interfaces import Sink
from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.errors import CannotPublish, Fenced, StateBehind
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.sink import KafkaWriter
from onceonly.sinks.state.sink import DONE, Changes, StateWriter
from onceonly.testing.fakes import FakeReceipts, FakeSink

STATE_ID = ""
REAL = ("delta", "files", "files on hdfs", "kafka staged", "kafka late", "state")


def no_spark() -> Any:
    raise AssertionError("publishing and aborting need no Spark here")


class GivenUp:
    """The `Receipts` of a sink that was given up."""

    def replace(self, old: Handle, new: Handle) -> Handle:
        raise Fenced("it was given up")


@dataclass(frozen=True)
class Target:
    """An output by name, so that another process finds it too."""

    kind: str
    folder: str
    bootstrap: str = ""
    topic: str = ""
    receipts: str = ""
    hdfs: Hdfs | None = None

    def sink(self) -> Sink:
        """A new one each time: no sink may rely on what it remembers."""
        if self.kind == "fake":
            return FakeSink("lake", Path(self.folder))
        if self.topic:
            connection = KafkaConnection.plaintext(self.bootstrap)
            config = KafkaSink(name="lake", topic=self.topic)
            return KafkaWriter(config, connection, self.kind == "kafka late", self.folder, Path(self.folder))
        if self.kind == "state":
            return StateWriter(StateSink("lake", schema="n INT", key=["n"]), self.folder)
        if self.kind.startswith("files"):
            return FileWriter(FileSink("lake", self.folder), self.folder, self.hdfs and self.hdfs.webhdfs)
        return DeltaWriter(DeltaSink("lake", self.folder), self.folder, no_spark)

    @property
    def numbers_decisions(self) -> bool:
        """Whether the target shows which decision it was: a topic shows the marker of a transaction, and no number."""
        return not self.topic

    @property
    def keeps_each(self) -> bool:
        """Whether it shows what became of every transaction, and not only of the last one."""
        return self.kind not in ("fake", "delta")

    def commit(self, handle: Handle, decision: int) -> Outcome:
        """As the coordinator does it: what the state table knows of the handle goes with it."""
        recorded = self._recorded(handle)
        return self.sink().commit(recorded.current(handle), decision, recorded)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """The same for who gives it up: the handle as it is recorded by now."""
        return self.sink().fence(self._recorded(handle).current(handle), decision)

    def commit_given_up(self, handle: Handle, decision: int) -> Outcome:
        """A committer at work, to whom the state table says that the sink was given up."""
        return self.sink().commit(self._recorded(handle).current(handle), decision, GivenUp())

    def _recorded(self, handle: Handle) -> FakeReceipts:
        receipt = hashlib.sha256(json.dumps(handle, sort_keys=True).encode()).hexdigest()
        return FakeReceipts(Path(self.receipts) / receipt)

    def published(self) -> list[int]:
        """What a reader sees, sorted."""
        if self.kind == "fake":
            return sorted(row["n"] for row in FakeSink("lake", Path(self.folder)).rows())
        if self.topic:
            until(lambda: not self._ending(), what="the end of every transaction that is being ended")
            return sorted(int(value or b"") for value in values(self.bootstrap, self.topic))
        if self.hdfs:
            shown = self.hdfs.fs.glob(f"{self.folder.removeprefix(self.hdfs.root)}/*.parquet")
            return sorted(n for path in shown for n in pandas.read_parquet(self.hdfs.fs.open(path))["n"])
        if self.kind == "state":
            runs = (run for done in Path(self.folder).glob(f"*/{DONE}") for run in done.parent.glob("*/*.parquet"))
            return sorted(n for run in runs for n in pandas.read_parquet(run)["n"])
        if self.kind == "files":
            there = any(Path(self.folder).glob("*.parquet"))
            return sorted(pandas.read_parquet(self.folder)["n"].to_list()) if there else []
        return sorted(DeltaTable(self.folder).to_pyarrow_table()["n"].to_pylist())

    def traces(self, txn: Transaction) -> list[Any]:
        """Whatever carries the transaction's name: files, and what is open at the broker."""
        if self.hdfs:
            return [path for path in self.hdfs.files(self.folder.rpartition("/")[0]) if txn.name in path]
        paths = [path for path in Path(self.folder).parent.rglob("*") if txn.name in path.name]
        return [*paths, *(self._open(txn.name) if self.topic else [])]

    def _open(self, name: str) -> list[str]:
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            return known.open(f".*{name}.*")

    def _ending(self) -> list[str]:
        """Transactions of which the markers are being written."""
        with Transactions({"bootstrap_servers": self.bootstrap}) as known:
            described = known.describe(known.open(".*"))
        return [id for id, seen in described.items() if seen.state != "Ongoing"]


@pytest.fixture(autouse=True)
def state_table(monkeypatch) -> None:
    """Each test has a state table of its own; the broker is shared."""
    monkeypatch.setattr(sys.modules[__name__], "STATE_ID", uuid.uuid4().hex)


@pytest.fixture(params=["fake", *(pytest.param(kind, marks=pytest.mark.integration) for kind in REAL)])
def target(request, tmp_path) -> Target:
    folder, receipts = str(tmp_path / "out"), tmp_path / "receipts"
    receipts.mkdir()
    if request.param == "files on hdfs":
        hdfs = request.getfixturevalue("hdfs")
        folder = f"{hdfs.root}/{uuid.uuid4().hex}/out"
        return Target(request.param, folder, receipts=str(receipts), hdfs=hdfs)
    if not request.param.startswith("kafka"):
        return Target(request.param, folder, receipts=str(receipts))
    bootstrap = request.getfixturevalue("broker")
    return Target(request.param, folder, bootstrap, new_topic(bootstrap, partitions=3), str(receipts))


@pytest.fixture
def stage(request, target):
    """stage(txn, *numbers) -> its handle, as it comes back from the state table."""
    spark = None if target.kind == "fake" else request.getfixturevalue("spark")

    def stage(txn: Transaction, *numbers: int) -> Handle:
        rows: Any = [{"n": number} for number in numbers]
        if spark is not None:
            rows = spark.createDataFrame([(number,) for number in numbers], "n INT")
        if target.topic:
            rows = rows.selectExpr("CAST(n AS STRING) AS value")
        if target.kind == "state":
            rows = Changes(rows, None)
        return json.loads(json.dumps(target.sink().stage(txn, rows)))

    return stage


def transaction(epoch: int = 1, attempt: int = 1, pipeline: str = "flights") -> Transaction:
    return Transaction(STATE_ID, pipeline, "lake", epoch, attempt, f"{epoch:04x}{attempt:04x}0000")


def commit_twice_at_once(target: Target, handle: Handle) -> list[Outcome]:
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: target.commit(handle, 1), range(2)))


def test_nothing_is_visible_before_the_commit(target, stage):
    stage(transaction(), 1, 2, 3)
    assert target.published() == []


def test_a_commit_publishes_all_rows(target, stage):
    outcome = target.commit(stage(transaction(), 1, 2, 3), 1)
    assert target.published() == [1, 2, 3]
    assert (outcome.already, outcome.detail["rows"]) == (False, 3)


def test_a_handle_says_how_many_rows(stage):
    assert stage(transaction(), 1, 2, 3)["rows"] == 3


def numbers(rows: Any) -> list[int]:
    """Whatever type the sink gives its rows."""
    column = "n" if "n" in rows.columns else "value"
    return sorted(int(value) for value in rows[column])


@pytest.mark.parametrize("some", [(), (1, 2, 3)])
def test_what_is_staged_can_be_looked_at_here_and_on_spark(request, target, stage, some):
    handle = stage(transaction(), *some)
    if target.kind == "state":
        pytest.skip("a gate does not look at a pipeline's state")
    seen = target.sink().staged(handle).read_all()
    assert numbers(seen.to_pandas()) == list(some) if some else seen.num_rows == 0
    if target.kind != "fake" and some:
        assert numbers(target.sink().staged_frame(handle, request.getfixturevalue("spark")).toPandas()) == list(some)
    assert target.published() == []


def test_what_is_renounced_can_still_be_looked_at(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    target.sink().renounce(transaction())
    if target.kind != "state":
        assert numbers(target.sink().staged(handle).read_all().to_pandas()) == [1, 2, 3]
    assert target.published() == []
    target.sink().abort(transaction(), handle)
    assert target.traces(transaction()) == []


def test_an_output_without_rows_is_staged_and_published_too(target, stage):
    empty = stage(transaction(1))
    assert empty["rows"] == 0
    target.commit(empty, 1)
    target.commit(stage(transaction(2), 1), 2)
    assert target.published() == [1]


def test_a_commit_repeated_ten_times_publishes_once(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    outcomes = [target.commit(handle, 1) for _ in range(10)]
    assert [outcome.already for outcome in outcomes] == [False] + [True] * 9
    assert target.published() == [1, 2, 3]


def test_commits_from_several_processes_and_threads_at_once_publish_once(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        outcomes = [o for both in pool.map(commit_twice_at_once, [target] * 2, [handle] * 2) for o in both]
    done = sorted(outcome.already for outcome in outcomes)
    if target.topic:  # of several that end one transaction at once each is told that it did
        assert done[0] is False
    else:
        assert done == [False, True, True, True]
    assert target.published() == [1, 2, 3]


def test_what_was_published_is_known_from_the_target_alone(target, stage):
    """The record of it in the state table may be lost: the process died before it was written."""
    first, second = stage(transaction(1), 1), stage(transaction(2), 2)
    target.commit(first, 1)
    assert target.commit(first, 1).already
    target.commit(second, 2)
    if target.keeps_each:
        assert target.commit(first, 1).already
    assert target.commit(second, 2).already
    assert target.published() == [1, 2]


def test_decisions_are_published_one_after_the_other(target, stage):
    handles = {decision: stage(transaction(epoch=10 - decision), decision) for decision in (1, 2, 3)}
    assert [target.commit(handles[decision], decision).already for decision in (1, 2, 3)] == [False] * 3
    assert target.published() == [1, 2, 3]


# ---- evidence names the transaction


def test_another_transaction_at_the_same_decision_is_not_taken_for_ours(target, stage):
    """A state table that was restored from an older copy gives its numbers a second time."""
    if not target.numbers_decisions:
        pytest.skip("the marker that ends a transaction is that transaction's own")
    ours, another = stage(transaction(1, attempt=1), 1, 2), stage(transaction(1, attempt=2), 2, 3)
    target.commit(ours, 1)
    with pytest.raises(StateBehind) as behind:
        target.commit(another, 1)
    assert "state table" in str(behind.value)
    assert "onceonly state forward" in behind.value.todo
    assert target.published() == [1, 2]
    assert target.commit(ours, 1).already


def test_a_lower_decision_than_the_published_one_is_not_taken_for_published(target, stage):
    """A sink never publishes 8 while 7 waits: who sees 8 and has 7 to publish has a state table that went back."""
    if target.keeps_each:
        pytest.skip("each transaction has an evidence of its own: its marker, its manifest, its folder")
    earlier, later = stage(transaction(1), 1), stage(transaction(2), 2)
    target.commit(later, 8)
    with pytest.raises(StateBehind):
        target.commit(earlier, 7)
    assert target.published() == [2]


def test_the_target_shows_the_last_decision_to_whoever_has_no_other_memory(target, stage):
    assert target.sink().traces("flights") == []
    for decision, epoch in ((3, 1), (4, 2)):
        target.commit(stage(transaction(epoch), epoch), decision)
    stage(transaction(3), 3)
    target.commit(stage(transaction(pipeline="flights_by_day"), 4), 9)
    shown = [(trace.state_id, trace.decision) for trace in target.sink().traces("flights")]
    assert shown == ([(STATE_ID, 4)] if target.numbers_decisions else [])
    assert all(trace.where for trace in target.sink().traces("flights"))
    assert target.sink().traces("nobody") == []


# ---- given up


def test_what_is_fenced_is_never_published_and_its_rows_are_kept(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    assert [target.fence(handle, 1), target.fence(handle, 1)] == [None, None]
    with pytest.raises((Fenced, CannotPublish)):
        target.commit_given_up(handle, 1)
    assert target.published() == []
    assert target.traces(transaction()) != []
    target.commit(stage(transaction(2), 4), 2)
    assert target.published() == [4]


def test_what_was_published_is_said_by_the_fence(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    target.commit(handle, 1)
    for _ in range(2):
        outcome = target.fence(handle, 1)
        assert outcome is not None
        assert (outcome.already, outcome.detail["rows"]) == (True, 3)
    assert target.published() == [1, 2, 3]
    assert target.commit(handle, 1).already


def test_a_commit_and_a_fence_at_once_agree(target, stage):
    if target.topic:
        pytest.skip("each Spark task's transaction ends by itself: some may be committed and others fenced")
    if target.kind == "state":
        pytest.skip("the row in the state table publishes it, and there the two exclude each other")
    handle = stage(transaction(), 1, 2, 3)
    with ThreadPoolExecutor(2) as pool:
        committed, fenced = pool.submit(target.commit, handle, 1), pool.submit(target.sink().fence, handle, 1)
    if fenced.result() is None:
        assert isinstance(committed.exception(), Fenced | CannotPublish)
        assert target.published() == []
    else:
        assert committed.result().detail["rows"] == 3
        assert target.published() == [1, 2, 3]


def test_rows_that_are_gone_are_never_taken_for_published(target, stage):
    handle = stage(transaction(), 1)
    target.sink().abort(transaction(), handle)
    with pytest.raises(CannotPublish) as refused:
        target.commit(handle, 1)
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
    target.commit(handle, 1)
    target.sink().abort(transaction(), handle if with_handle else None)
    assert target.published() == [1, 2, 3]
    assert target.commit(handle, 1).already


def test_an_abort_spares_every_other_attempt(target, stage):
    stage(transaction(attempt=1), 1)
    current = stage(transaction(attempt=2), 2)
    target.sink().abort(transaction(attempt=1), None)
    target.commit(current, 1)
    assert target.published() == [2]


def test_leftovers_are_exactly_what_is_staged_and_not_published(target, stage):
    prefix = transaction().prefix
    assert target.sink().leftovers(prefix) == []
    published, aborted, waiting = (transaction(epoch) for epoch in (1, 2, 3))
    handle = stage(published, 1)
    stage(aborted, 2)
    stage(waiting, 3)
    target.commit(handle, 1)
    target.sink().release(published)
    target.sink().abort(aborted, None)
    assert target.sink().leftovers(prefix) == [waiting]


def test_a_release_leaves_what_is_published_and_may_be_repeated(target, stage):
    handle = stage(transaction(), 1, 2, 3)
    target.commit(handle, 1)
    for _ in range(2):
        target.sink().release(transaction())
    assert target.published() == [1, 2, 3]
    assert target.commit(handle, 1).already


def test_two_pipelines_into_one_target_do_not_disturb_each_other(target, stage):
    mine, other = transaction(), transaction(pipeline="flights_by_day")
    handles = stage(mine, 1), stage(other, 2)
    stage(transaction(epoch=2, pipeline="flights_by_day"), 3)
    assert target.sink().leftovers(mine.prefix) == [mine]
    assert [target.commit(handle, 1).already for handle in handles] == [False, False]
    target.sink().abort(transaction(epoch=2, pipeline="flights_by_day"), None)
    assert target.published() == [1, 2]
