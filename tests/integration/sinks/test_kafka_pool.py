"""Transactional ids of a pool: few, used again, and never by two at once that both count."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from codes import raises
from confluent_kafka import Producer
from integration.faults.dying import check_truth, die, fill, live, nothing_is_left
from integration.faults.sampling import sampled
from integration.projects.copying import Copy, make_copy
from integration.projects.kafka_writers import by_each_writer
from integration.readers.kafka_reader import until
from patience import PATIENCE
from pyspark import TaskContext

from onceonly.checkpoint.model import State
from onceonly.checkpoint.sink import PooledTransaction
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.kafka.transactions import Transactions
from onceonly.sinks.kafka import python_writer, spool, stage
from onceonly.sinks.kafka.handle import slot_of
from onceonly.sinks.kafka.job import Job, Receipt
from onceonly.sinks.kafka.outcome import discard_open

pytestmark = [pytest.mark.integration, by_each_writer]
Make = Callable[..., Copy]

both_ways = pytest.mark.parametrize("way", ["staged", "late"])


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    """make(way, checkpoints) -> a pipeline with eight numbers for each."""

    def make(way: str = "staged", checkpoints: int = 1) -> Copy:
        topic = f"in_{uuid.uuid4().hex[:8]}"
        copy = make_copy(tmp_path, broker, spark_server, topic, way, sink={"ids": "pool", "pool_size": 2})
        fill(copy, range(checkpoints * 8), 8)
        return replace(copy, most=8) if way == "staged" else replace(copy, hours=checkpoints)

    return make


def ids(copy: Copy, epoch: int = 1) -> set[str]:
    return {part.tx.id for part in copy.parts(epoch) if part.tx}


def producers(copy: Copy, epoch: int = 1) -> set[tuple[int, int]]:
    return {part.tx.producer for part in copy.parts(epoch) if part.tx}


def stranger(copy: Copy, id: str) -> Producer:
    """A zombie with an id of ours and a row of its own."""
    producer = Producer({"bootstrap.servers": copy.brokers, "transactional.id": id, "transaction.timeout.ms": 60_000})
    producer.init_transactions(PATIENCE)
    producer.begin_transaction()
    producer.produce(copy.out, b"666", partition=0)
    assert producer.flush(PATIENCE) == 0
    return producer


@both_ways
def test_checkpoint_after_checkpoint_uses_the_same_few_ids(make: Make, way: str) -> None:
    copy = make(way, checkpoints=3)
    used = []
    for number in range(3):
        used.append(ids(copy, copy.run(number).epoch))
    assert used[0] == used[1] == used[2]
    assert {slot_of(id) for id in used[0]} == {0}
    check_truth(copy, range(24))
    nothing_is_left(copy)


@pytest.mark.crash
@pytest.mark.parametrize("way", [pytest.param("staged", marks=pytest.mark.heavy), "late"])
def test_killed_while_it_writes_and_after_its_end(make: Make, way: str) -> None:
    copy = make(way, checkpoints=4)
    worker = "worker after flush" if way == "staged" else "worker after close"
    points = [worker, "before aborted row", "before end", "after end", "before published row", "after committed row"]
    for point in sampled(points, points[::2] if way == "staged" else [worker, *points[3::2]]):
        die(copy, point)
    live(copy)
    copy.recover()
    check_truth(copy, range(32))
    nothing_is_left(copy)


def test_who_loses_its_id_while_it_writes_records_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another producer of the same id leaves a transaction open that looks like ours, and holds other rows."""
    copy = make()
    run, zombies = stage.run, []

    def overtaken(*arguments: Any) -> stage.Staged:
        staged = run(*arguments)
        zombies.append(stranger(copy, staged.receipts[0].id or ""))
        return staged

    monkeypatch.setattr(stage, "run", overtaken)
    with raises(NotCommitted, "transaction-not-open", match="used by another producer"):
        copy.stage()
    monkeypatch.undo()
    copy.run()
    copy.recover()
    check_truth(copy, range(8))
    nothing_is_left(copy)


@pytest.mark.parametrize("counts", ["the first", "the copy"])
def test_a_copy_of_a_task_and_the_first_one_do_not_fence_each_other(
    make: Make, counts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may begin a second attempt of a task while the first is at work, and takes the result of one."""
    copy, run = make(), stage.run

    def speculated(job: Job, *arguments: Any) -> stage.Staged:
        staged = run(job, *arguments)
        first, *others = staged.receipts
        context = SimpleNamespace(partitionId=lambda: int((first.id or "")[-1]), attemptNumber=lambda: 1)
        monkeypatch.setattr(TaskContext, "get", lambda: context)
        [told] = python_writer._make_task(job)(spool.read(job.folder, first.spool))
        second = Receipt(**json.loads(told["receipt"][0].as_py()))
        return replace(staged, receipts=[second if counts == "the copy" else first, *others])

    monkeypatch.setattr(stage, "run", speculated)
    copy.stage()
    assert len(copy.parts()) == 4
    copy.commit()
    check_truth(copy, range(8))
    nothing_is_left(copy)
    assert copy.replaced() == []


def test_who_loses_its_id_after_it_was_staged_is_written_again(make: Make) -> None:
    copy = make()
    copy.stage()
    zombie = stranger(copy, sorted(ids(copy))[0])
    assert copy.commit().state is State.COMMITTED
    assert len([id for id in ids(copy) if slot_of(id) is None]) == 1
    copy.recover()
    check_truth(copy, range(8))
    nothing_is_left(copy)
    del zombie


def test_a_sweep_ends_what_no_handle_names_and_nothing_else(make: Make) -> None:
    copy = make()
    copy.stage()
    mine = sorted(ids(copy))
    strange = [mine[0].rpartition("-")[0] + "-77", mine[0].replace("-pool-0-", "-pool-1-")]
    zombies = [stranger(copy, id) for id in strange]
    until(lambda: len(copy.open()) == len(mine) + 2)
    swept = copy.through.sweep("copying")
    assert sorted(txn.id for txn in swept if isinstance(txn, PooledTransaction)) == sorted(strange)
    assert sorted(copy.open()) == mine
    copy.commit()
    check_truth(copy, range(8))
    nothing_is_left(copy)
    del zombies


def test_a_committer_that_comes_late_leaves_the_next_holder_alone(make: Make) -> None:
    """Its end is refused; by then the id is another attempt's, which it must not fence."""
    copy = make(checkpoints=2)
    copy.stage()
    late = copy.parts()
    copy.commit()
    copy.stage(1)
    second = producers(copy, 2)
    with copy.known() as known:
        for part in late:
            assert part.tx
            discard_open(known, part.tx)
    assert set(copy.open()) == ids(copy, 2)
    copy.commit(2)
    assert producers(copy, 2) == second
    check_truth(copy, range(16))
    nothing_is_left(copy)


def test_brokers_on_which_ids_cannot_be_shared_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = make()
    monkeypatch.setattr(Transactions, "read_transaction_version", lambda known: 1)
    with raises(InvalidPipeline, "transaction-version-unsafe", match="ids='pool' is not safe"):
        copy.stage()
    assert copy.open() == []
