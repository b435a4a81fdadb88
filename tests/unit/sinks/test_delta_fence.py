"""Who may publish a decision to a Delta table, and what the table says of it, whatever the processes do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as DeltaTxn
from unit.lightdelta import LightDelta, transaction

from onceonly.delta import commits
from onceonly.errors import CannotPublish, Fenced, OutcomeUnknown, StateBehind

NEVER: Any = None


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    return LightDelta(tmp_path / "lake")


def interrupted(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], Any]) -> None:
    """The next commit stops just before its log entry, with the snapshot that it has read, while others act."""
    real = commits.commit_entry

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_entry", real)
        meanwhile()
        real(*arguments)

    monkeypatch.setattr(commits, "commit_entry", late)


# ---- who may publish


def test_of_two_committers_from_one_snapshot_one_publishes(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1, 2])
    interrupted(monkeypatch, lambda: lake.commit(handle, 1, NEVER))
    assert lake.commit(handle, 1, NEVER).already
    assert lake.numbers() == [1, 2]


def test_what_others_write_meanwhile_is_no_hindrance(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1, 2])
    interrupted(monkeypatch, lambda: write_deltalake(lake.uri, pa.table({"n": [9]}), mode="append"))
    assert not lake.commit(handle, 1, NEVER).already
    assert lake.numbers() == [1, 2, 9]


@pytest.mark.parametrize("theirs", [1, 2])
def test_another_transaction_at_this_decision_or_later_is_never_taken_for_ours(lake: LightDelta, theirs: int) -> None:
    mine, other = lake.stage(transaction(1, 1), [1]), lake.stage(transaction(1, 2), [2])
    lake.commit(other, theirs, NEVER)
    with pytest.raises(StateBehind):
        lake.commit(mine, 1, NEVER)
    assert lake.numbers() == [2]


# ---- closing a decision


def test_what_is_closed_is_published_by_nobody(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1])
    assert [lake.fence(handle, 1) for _ in range(2)] == [None, None]
    assert DeltaTable(lake.uri).version() == 1, "closed once"
    with raises(Fenced, "sink-given-up"):
        lake.commit(handle, 1, NEVER)
    assert lake.numbers() == []


def test_a_committer_that_hangs_in_its_commit_is_shut_out(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1])
    interrupted(monkeypatch, lambda: lake.fence(handle, 1))
    with pytest.raises(Fenced):
        lake.commit(handle, 1, NEVER)
    assert lake.numbers() == []


def test_a_committer_that_is_first_is_seen(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1])
    interrupted(monkeypatch, lambda: lake.commit(handle, 1, NEVER))
    found = lake.fence(handle, 1)
    assert found is not None and found.already
    assert lake.numbers() == [1]


def test_what_was_published_is_not_closed(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1])
    lake.commit(handle, 1, NEVER)
    found = lake.fence(handle, 1)
    assert found is not None and found.already and found.detail["rows"] == 1
    assert lake.commit(handle, 1, NEVER).already


def test_the_next_decision_is_open(lake: LightDelta) -> None:
    lake.fence(lake.stage(transaction(1), [1]), 1)
    assert not lake.commit(lake.stage(transaction(2), [2]), 2, NEVER).already
    assert lake.numbers() == [2]


@pytest.mark.parametrize("theirs", [1, 2])
def test_where_another_transaction_is_shown_ours_never_will_be(lake: LightDelta, theirs: int) -> None:
    mine = lake.stage(transaction(1, 1), [1])
    lake.commit(lake.stage(transaction(1, 2), [2]), theirs, NEVER)
    assert lake.fence(mine, 1) is None
    assert DeltaTable(lake.uri).version() == 1


def test_whether_a_table_that_is_not_there_was_dropped_only_a_person_can_tell(lake: LightDelta) -> None:
    """Its volume may be mounted again, and a process at work publish to it."""
    handle = lake.stage(transaction(), [1])
    shutil.rmtree(lake.uri)
    with raises(OutcomeUnknown, "decision-not-closed"):
        lake.fence(handle, 1)
    assert not Path(lake.uri).exists()


def test_another_table_in_its_place_needs_no_closing(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1])
    shutil.rmtree(lake.uri)
    DeltaTable.create(lake.uri, pa.schema([("n", pa.int64())]))
    assert lake.fence(handle, 1) is None
    assert DeltaTable(lake.uri).version() == 0
    with pytest.raises(CannotPublish):
        lake.commit(handle, 1, NEVER)


def test_storage_that_does_not_answer_leaves_it_open(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1])

    def broken(*_: Any) -> None:
        raise OSError("storage does not answer")

    monkeypatch.setattr(commits, "commit_entry", broken)
    with raises(OutcomeUnknown, "decision-not-closed"):
        lake.fence(handle, 1)
    monkeypatch.undo()
    assert not lake.commit(handle, 1, NEVER).already


# ---- what it shows of earlier decisions


def test_every_state_table_that_has_written_is_shown_with_its_last_decision(lake: LightDelta) -> None:
    assert lake.traces("flights") == []
    for state, decisions in (("a" * 32, (1, 2)), ("b" * 32, (5,))):
        for decision in decisions:
            lake.commit(lake.stage(transaction(decision, state=state), [decision]), decision, NEVER)
    stamp = CommitProperties(app_transactions=[DeltaTxn("onceonly/c/flights/lake", 3 << 32), DeltaTxn("theirs", 9)])
    write_deltalake(lake.uri, pa.table({"n": [9]}), mode="append", commit_properties=stamp)
    expected = [("a" * 32, 2), ("b" * 32, 5), ("c", 3)]
    assert [(trace.state_id, trace.decision) for trace in lake.traces("flights")] == expected
    assert lake.traces("flights")[0].where == f"table {lake.uri}"
    assert lake.traces("other") == LightDelta(Path(lake.uri), "other").traces("flights") == []

    DeltaTable(lake.uri).create_checkpoint()
    for path in sorted((Path(lake.uri) / "_delta_log").glob("*.json"))[:-1]:  # as a cleanup does
        path.unlink()
    lake.commit(lake.stage(transaction(3, state="a" * 32), [3]), 3, NEVER)
    assert [(t.state_id, t.decision) for t in lake.traces("flights")] == [("a" * 32, 3), *expected[1:]]
