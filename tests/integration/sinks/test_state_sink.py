"""What a transform remembers, on real Spark: read back as it was left, whatever was merged, killed or repeated."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet as pq
import pytest
from codes import raises

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Changes
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state.runs import MAX_RUNS
from onceonly.sinks.state.sink import DONE, FORGET_MARK, StateWriter
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
CONFIG = StateSink("totals", schema="page STRING, place INT, views BIGINT", key=["page", "place"])
WHOLE = "page STRING, place INT, views BIGINT, deleted BOOLEAN"


@dataclass
class Memory:
    """One state, epoch by epoch, beside a plain dict that is the truth."""

    folder: Path
    spark: Any
    handles: list[Handle] = field(default_factory=list)

    @property
    def sink(self) -> StateWriter:
        return StateWriter(CONFIG, str(self.folder))

    @property
    def before(self) -> Handle | None:
        return self.handles[-1] if self.handles else None

    def stage(self, rows: list[tuple[Any, ...]], attempt: int = 1, schema: str = WHOLE) -> Handle:
        changes = Changes(self.spark.createDataFrame(rows, schema), self.before)
        handle: Handle = json.loads(json.dumps(self.sink.stage(self.txn(attempt), changes)))
        return handle

    def commit(self, handle: Handle) -> bool:
        return self.sink.commit(handle, 1, FakeReceipts(self.folder.parent / "receipts")).already

    def change(self, rows: list[tuple[Any, ...]]) -> None:
        handle = self.stage(rows)
        self.commit(handle)
        self.handles.append(handle)

    def txn(self, attempt: int = 1) -> Transaction:
        return Transaction("0" * 32, "pages", "totals", len(self.handles) + 1, attempt, f"nonce{attempt}")

    def read(self, handle: Handle | None) -> dict[tuple[str, int], int]:
        rows = self.sink.read(self.spark, handle).collect()
        found = {(row["page"], row["place"]): row["views"] for row in rows}
        assert len(found) == len(rows)
        return found

    def keys_in_files(self) -> set[str]:
        """Every page that any file holds, also where it is marked as deleted."""
        return {page for file in self.folder.rglob("*.parquet") for page in pq.read_table(file)["page"].to_pylist()}

    def folders(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.exists() else []


@pytest.fixture
def memory(tmp_path: Path, spark: Any) -> Memory:
    return Memory(tmp_path / "state", spark)


def test_there_is_nothing_at_first(memory: Memory) -> None:
    empty = memory.sink.read(memory.spark, None)
    assert (empty.columns, empty.count()) == (["page", "place", "views"], 0)


def test_the_youngest_row_of_a_key_counts_and_deleted_keys_are_gone(memory: Memory) -> None:
    memory.change([("a", 1, 1, None), ("b", 1, 1, False), ("c", 1, 1, False)])
    memory.change([("a", 1, 2, False), ("b", 1, 9, True), ("x", 1, 9, True)])
    memory.change([("b", 1, 3, False), ("c", 1, 9, True)])
    memory.change([])
    assert memory.read(memory.before) == {("a", 1): 2, ("b", 1): 3}
    assert memory.read(memory.handles[0]) == {("a", 1): 1, ("b", 1): 1, ("c", 1): 1}


@pytest.mark.heavy
def test_as_a_plain_dict_would_have_it_through_every_merge(memory: Memory) -> None:
    chance, truth, states = random.Random(2013), dict[tuple[str, int], int](), []
    for epoch in range(24):
        rows = {}
        for _ in range(chance.choice([1, 2, 30])):
            key = (chance.choice("abcdefgh"), chance.randrange(5))
            rows[key] = (*key, epoch, chance.random() < 0.3)
        for key, row in rows.items():
            truth.pop(key, None)
            if not row[3]:
                truth[key] = row[2]
        memory.change(list(rows.values()))
        states.append(dict(truth))
        assert len(memory.handles[-1]["runs"]) <= MAX_RUNS
    assert memory.read(memory.before) == truth
    for epoch in (0, 7, 8, 15, 22):  # and as it was
        assert memory.read(memory.handles[epoch]) == states[epoch]
    whole = pandas.read_parquet(memory.folder / memory.handles[-1]["runs"][0]["folder"])
    assert len(memory.handles[-1]["retired"]) > 8
    assert not whole.duplicated(["page", "place"]).any()


def test_what_was_merged_away_is_forgotten_in_the_end(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceonly.sinks.state.sink.KEPT_CHECKPOINTS", 3)
    for epoch in range(MAX_RUNS + 6):
        memory.change([("a", epoch, 1, False)])
    assert len(memory.read(memory.before)) == MAX_RUNS + 6
    used = {run["folder"] for run in [*memory.handles[-1]["runs"], *memory.handles[-1]["retired"]]}
    there = {str(path.parent.relative_to(memory.folder)) for path in memory.folder.rglob("_SUCCESS")}
    assert used <= there
    assert used == there
    assert len(memory.folders()) == len(used) < MAX_RUNS + 6


# ---- an erased key


@pytest.fixture
def erased(memory: Memory) -> Memory:
    """A state whose key 'person' was deleted, and is still in its large first run."""
    memory.change([*(("kept", place, place, False) for place in range(50)), ("person", 1, 1, False)])
    for epoch in range(MAX_RUNS + 2):
        memory.change([("person", 1, 9, True), ("kept", 1, epoch, False)])
    assert ("person", 1) not in memory.read(memory.before)
    assert "person" in memory.keys_in_files()
    assert len(memory.handles[-1]["runs"]) > 1
    return memory


def test_a_forgotten_key_is_in_no_file(erased: Memory) -> None:
    state, before = erased.read(erased.before), erased.before
    assert before is not None
    for _ in range(2):
        erased.sink.forget(before)
    assert erased.read(before) == state
    erased.change([("kept", 2, 7, False)])
    assert erased.keys_in_files() == {"kept"}
    assert erased.read(erased.before) == {**state, ("kept", 2): 7}
    assert erased.folders() == [erased.handles[-1]["txn"]]
    assert not list(erased.folder.rglob(FORGET_MARK))
    erased.change([("kept", 3, 8, False)])
    assert len(erased.handles[-1]["runs"]) == 2


def test_a_key_is_forgotten_by_the_checkpoint_that_deletes_it(memory: Memory) -> None:
    memory.change([("kept", 1, 1, False), ("person", 1, 1, False)])
    assert memory.before is not None
    memory.sink.forget(memory.before)
    memory.change([("person", 1, 1, True)])
    assert memory.keys_in_files() == {"kept"}


def test_a_checkpoint_that_was_staged_before_is_passed_over(erased: Memory) -> None:
    staged = erased.stage([("kept", 2, 7, False)])
    assert erased.before is not None
    erased.sink.forget(erased.before)
    erased.commit(staged)
    erased.handles.append(staged)
    assert "person" in erased.keys_in_files()
    erased.change([])
    assert erased.keys_in_files() == {"kept"}


def test_an_abort_and_a_repeated_commit_lose_nothing(erased: Memory) -> None:
    state = erased.read(erased.before)
    assert erased.before is not None
    erased.sink.forget(erased.before)
    erased.sink.discard(erased.txn(), erased.stage([("kept", 2, 7, False)]))
    assert erased.read(erased.before) == state
    handle = erased.stage([("kept", 2, 8, False)], attempt=2)
    assert [erased.commit(handle), erased.commit(handle)] == [False, True]  # as recovery does after a kill
    assert erased.read(handle) == {**state, ("kept", 2): 8}
    assert erased.keys_in_files() == {"kept"}


def test_there_is_no_way_back_behind_what_was_forgotten(erased: Memory) -> None:
    before = erased.before
    assert before is not None
    erased.sink.forget(before)
    erased.change([])
    with raises(InvalidPipeline, "state-run-missing"):
        erased.sink.retraction(erased.txn(), [erased.handles[-1]], before)
    assert "forgotten" in erased.sink.find_missing(before)


def test_an_abort_leaves_the_state_as_it_was(memory: Memory) -> None:
    memory.change([("a", 1, 1, False)])
    for with_handle in (True, False):
        handle = memory.stage([("a", 1, 2, False)])
        memory.sink.discard(memory.txn(), handle if with_handle else None)
        assert memory.folders() == [memory.handles[0]["txn"]]
        assert memory.read(memory.before) == {("a", 1): 1}
    with raises(CannotPublish, "staged-files-missing", match="no longer exists"):
        memory.commit(handle)


def test_only_what_was_never_published_is_a_leftover(memory: Memory) -> None:
    memory.change([("a", 1, 1, False)])
    memory.stage([("a", 1, 2, False)], attempt=1)
    second = memory.stage([("a", 1, 3, False)], attempt=2)
    assert memory.sink.leftovers(memory.txn().prefix) == [memory.txn(1), memory.txn(2)]
    assert [memory.commit(second), memory.commit(second)] == [False, True]
    assert memory.sink.leftovers(memory.txn().prefix) == [memory.txn(1)]
    memory.sink.discard(memory.txn(2), None)  # a late abort touches nothing that is published
    assert memory.read(second) == {("a", 1): 3}
    assert (memory.folder / second["txn"] / DONE).exists()


@pytest.mark.parametrize(
    ("rows", "schema", "code", "why"),
    [
        ([("a", 1, 1, False), ("a", 1, 2, False)], WHOLE, "state-key-invalid", "['a', 1] 2 times"),
        ([("a", None, 1, False)], WHOLE, "state-key-invalid", "['a', None] 1 time."),
        ([("a", 1)], "page STRING, place INT", "columns-unsuitable", "'views' is missing"),
        (
            [("a", 1, 1)],
            "page STRING, place INT, views INT",
            "columns-unsuitable",
            "'views' is int, the schema has bigint",
        ),
        (
            [("a", 1, 1, 1)],
            "page STRING, place INT, views BIGINT, day INT",
            "columns-unsuitable",
            "'day' is not in the schema",
        ),
        (
            [("a", 1, 1, 1)],
            "page STRING, place INT, views BIGINT, deleted INT",
            "columns-unsuitable",
            "'deleted' is int, not boolean",
        ),
    ],
)
def test_changes_that_do_not_fit_are_refused(memory: Memory, rows: Any, schema: str, code: str, why: str) -> None:
    with raises(InvalidPipeline, code) as refused:
        memory.stage(rows, schema=schema)
    assert why in refused.value.why
    assert refused.value.todo
    memory.sink.discard(memory.txn(), None)  # as the coordinator does
    assert memory.folders() == []


def test_a_state_that_was_kept_otherwise_is_refused(memory: Memory) -> None:
    memory.change([("a", 1, 1, False)])
    other = StateWriter(StateSink("totals", schema=CONFIG.schema, key=["page"]), str(memory.folder))
    with raises(InvalidPipeline, "state-shape-changed", match="has another schema or key"):
        other.read(memory.spark, memory.before)
