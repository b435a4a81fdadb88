"""What Flink's integration tests of its exactly-once Kafka sink check, under their names: see docs/flink-tests.md.

Flink's parallelism is the number of Spark partitions here: each opens a transaction of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from integration.faults.dying import die, fill, live, nothing_is_left
from integration.projects.copying import Copy, make_copy

from onceonly.checkpoint.model import State
from onceonly.sinks.kafka.handle import slot_of

pytestmark = pytest.mark.integration
Make = Callable[..., Copy]
ROWS = 40  # of a checkpoint
NAMING: dict[str, dict[str, Any]] = {"unique": {}, "pool": {"ids": "pool", "pool_size": 3}}
each_naming = pytest.mark.parametrize("naming", ["pool", pytest.param("unique", marks=pytest.mark.heavy)])


@pytest.fixture
def make(tmp_path: Path, broker: str, spark_server: str) -> Make:
    """make(naming, way, checkpoints) -> a pipeline with 40 numbers for each."""

    def make(naming: str, way: str = "staged", checkpoints: int = 1) -> Copy:
        topic = f"in_{uuid.uuid4().hex[:8]}"
        copy = make_copy(tmp_path, broker, spark_server, topic, way, sink=NAMING[naming])
        fill(copy, range(checkpoints * ROWS), ROWS)
        return replace(copy, most=ROWS) if way == "staged" else replace(copy, hours=checkpoints)

    return make


def set_parallelism(copy: Copy, number: int, where: str = "true") -> None:
    """Of processes that are started from now on."""
    file = copy.project.folder / f"transforms_{copy.project.topic}.py"
    rows = f"batch.select('value').repartition({number}, 'value').where({where!r})"
    file.write_text(f"{file.read_text()}\n\ndef copies(batch):\n    return {rows}\n")


def check_rows(copy: Copy, checkpoints: int) -> None:
    """Every number has arrived once, and nothing lingers."""
    assert copy.visible() == list(range(checkpoints * ROWS))
    nothing_is_left(copy)


def ids(copy: Copy, epoch: int) -> set[str]:
    return {part.tx.id for part in copy.parts(epoch) if part.tx}


def slot(copy: Copy, epoch: int) -> int | None:
    checkpoint = copy.now(epoch)
    return checkpoint.claims[checkpoint.attempt].slot


# ---- KafkaSinkITCase


@each_naming
def test_recovery_with_exactly_once_guarantee_and_concurrent_checkpoints(make: Make, naming: str) -> None:
    """Three are staged at once. The committer of the first one dies with its transactions ended and not recorded."""
    copy = make(naming, "late", checkpoints=3)
    for number in range(3):
        copy.stage(number)
    assert [copy.now(epoch).state for epoch in (1, 2, 3)] == [State.STAGED] * 3
    die(copy, "before published row", "commit")
    assert copy.commit(2).state is State.COMMITTED
    assert copy.now(1).state is State.COMMITTED
    copy.recover()
    check_rows(copy, 3)


@each_naming
def test_abort_transactions_after_scale_in_before_first_checkpoint(make: Make, naming: str) -> None:
    copy = make(naming)
    set_parallelism(copy, 5)
    die(copy, "before staged row")
    assert (len(copy.open()), copy.now().state) == (5, State.PLANNED)
    set_parallelism(copy, 1)
    live(copy)
    assert len(copy.parts()) == 1
    check_rows(copy, 1)


@each_naming
def test_abort_transactions_of_pending_checkpoints_after_failure(make: Make, naming: str) -> None:
    """The first checkpoint is pending when its process dies, and the second one has only begun."""
    copy = make(naming, checkpoints=2)
    set_parallelism(copy, 4)
    die(copy, "before commit")
    assert (len(copy.open()), copy.now().state) == (4, State.COMMITTING)
    die(copy, "before staged row")
    assert (copy.now().state, copy.now(2).state) == (State.COMMITTED, State.PLANNED)
    live(copy)
    check_rows(copy, 2)


PAIRS = [(2, 5), (5, 2)]
OTHER_PAIRS = [(1, 2), (2, 3), (3, 5), (5, 6), (6, 5), (5, 3), (3, 2), (2, 1)]


@pytest.mark.parametrize(("old", "new"), PAIRS + [pytest.param(*pair, marks=pytest.mark.heavy) for pair in OTHER_PAIRS])
def test_rescale_listing(make: Make, old: int, new: int) -> None:
    """With pooled ids: those that fewer tasks never use again are found by listing, and ended."""
    copy = make("pool", checkpoints=2)
    set_parallelism(copy, old)
    die(copy, "before staged row")
    set_parallelism(copy, new)
    die(copy, "before commit")
    assert len(copy.open()) == len(ids(copy, 1)) == new
    set_parallelism(copy, old)
    live(copy)
    assert len(ids(copy, 2)) == old
    check_rows(copy, 2)


@pytest.mark.parametrize(("old", "new"), [("unique", "pool"), pytest.param("pool", "unique", marks=pytest.mark.heavy)])
def test_check_migration(make: Make, old: str, new: str) -> None:
    """Ids change their kind while transactions are pending, and back, which Flink refuses."""
    copy = make(old, checkpoints=3)
    set_parallelism(copy, 5)
    die(copy, "before commit")
    pending = copy.open()
    assert len(pending) == 5
    changed = replace(copy, sink=NAMING[new])
    die(changed, "before staged row")
    assert (copy.now().state, ids(copy, 1)) == (State.COMMITTED, set(pending))
    assert {slot_of(id) is None for id in pending} == {old == "unique"}
    assert {slot_of(id) is None for id in copy.open()} == {new == "unique"}
    set_parallelism(copy, 3)
    die(changed, "before commit")
    assert {slot_of(id) is None for id in ids(copy, 2)} == {new == "unique"}
    live(copy)
    assert {slot_of(id) is None for id in ids(copy, 3)} == {old == "unique"}
    check_rows(copy, 3)


# ---- ExactlyOnceKafkaWriterITCase


def test_should_skip_ids_of_committer_for_pooled_transactions(make: Make) -> None:
    """What a committer has not recorded keeps its ids; they are free with its outcome, and used again."""
    copy = make("pool", "late", checkpoints=4)
    for number in range(3):
        copy.stage(number)
    assert [slot(copy, epoch) for epoch in (1, 2, 3)] == [0, 1, 2]
    die(copy, "before end", "commit")
    waiting = ids(copy, 1)
    assert waiting == set(copy.open())
    copy.commit(2)
    assert waiting.isdisjoint(ids(copy, 2))
    assert {slot_of(id) for id in ids(copy, 2)} == {1}
    copy.stage(3)
    assert slot(copy, 4) == 0, "the first that is free"
    copy.commit(4)
    assert ids(copy, 4) == waiting
    copy.commit(3)
    assert {slot_of(id) for id in ids(copy, 3)} == {2}
    check_rows(copy, 4)


@each_naming
def test_prepare_commit_for_empty_transaction(make: Make, naming: str) -> None:
    """A task without rows opens no transaction; nor does a checkpoint without any."""
    copy = make(naming, checkpoints=2)
    set_parallelism(copy, 5, "value = '3'")
    live(copy)
    assert [part.rows for part in copy.parts(1)] == [1]
    assert (copy.parts(2), copy.now(2).state) == ([], State.COMMITTED)
    assert copy.visible() == [3]
    nothing_is_left(copy)
