"""What the real state table and the explorer's own promise alike: compare-and-set, and what a view shows."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from codes import raises
from deltalake import DeltaTable
from explore.steps import Steps
from explore.table import MemoryTable

from onceonly.checkpoint.model import Event, Row, State
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.errors import OutcomeUnknown
from onceonly.statetable import compaction, location, row_files, store_log
from onceonly.statetable import table as state
from onceonly.statetable.store_log import StoreLog
from onceonly.statetable.table import Conflict, StateTable

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=["on a disk", "on an object store", "in memory"])
def table(request, tmp_path, monkeypatch):
    if request.param == "in memory":
        return MemoryTable(Steps())
    if request.param == "on an object store":
        through_delta_rs(monkeypatch)
    return StateTable.make(str(tmp_path / "state"))


def through_delta_rs(monkeypatch) -> None:
    """Every path counts as the URI of an object store."""
    for module in (state, location, row_files, compaction):
        monkeypatch.setattr(module, "local_path", lambda uri: None)


def planned(view, owner="run", start=0, offsets=(0, 8), event=Event.PLANNED) -> Row:
    interval = Interval(NOON + timedelta(hours=start), NOON + timedelta(hours=start + 1))
    body = {"definition": {"name": "flights", "sinks": []}, "ranges": [TopicRange("t", "id", {0: offsets}).to_json()]}
    return Row("flights", view.head.seq + 1, view.head.epoch + 1, event, 0, owner, interval=interval, body=body)


def following(view, epoch, event, **columns) -> Row:
    return Row("flights", view.head.seq + 1, epoch, event, 1, **columns)


def test_what_is_written_is_read_back(table):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    again = table.view("flights")
    assert (again.head, again.latest.state, again.open) == (view.head, State.PLANNED, view.open)
    assert [row.event for row in table.history("flights")] == [Event.PLANNED]
    assert table.pipelines() == ["flights"]


def test_of_two_writers_from_one_view_the_second_loses(table):
    one, other = table.view("flights"), table.view("flights")
    table.append(one, planned(one, "first"))
    with pytest.raises(Conflict):
        table.append(other, planned(other, "second"))
    with pytest.raises(Conflict):
        table.append(one, planned(one, "again"))
    assert [row.owner for row in table.history("flights")] == ["first"]


def test_an_illegal_transition_is_not_written(table):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    with raises(OutcomeUnknown, "state-table-damaged"):
        table.append(view, following(view, 1, Event.COMMITTING, decision=1))
    assert len(table.history("flights")) == 1


def test_the_head_counts_epochs_decisions_and_what_is_open(table):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    for event in (Event.ABORTING, Event.ABORTED):
        view = table.append(view, following(view, 1, event))
    view = table.append(view, planned(view, start=1))
    shown = table.view("flights")
    assert (shown.head.seq, shown.head.epoch, [cp.epoch for cp in shown.open]) == (4, 2, [2])
    assert shown.checkpoint(1).state is State.ABORTED
    assert shown.checkpoint(3) is None


def test_what_a_rewind_takes_back_is_reported(table):
    view = table.view("flights")
    for start in range(3):
        view = table.append(view, planned(view, "run", start, event=Event.EMPTY))
    assert not [epoch for epoch in (1, 2, 3) if table.view("flights").is_rewound(epoch)]
    body = {**planned(view).body, "handles": {}, "to": 1, "reason": "wrong"}
    row = Row("flights", 4, 4, Event.REWOUND, 0, "me", decision=1, body=body)
    after = table.append(view, row)
    assert [epoch for epoch in (1, 2, 3, 4) if table.view("flights").is_rewound(epoch)] == [2, 3]
    assert after.is_rewound(2) and not view.is_rewound(2)


def test_checkpoints_are_found_by_owner_interval_and_boundary(table):
    view = table.view("flights")
    for start, owner, offsets in ((0, "one", (0, 4)), (1, "two", (4, 9)), (5, "one", (9, 9))):
        view = table.append(view, planned(view, owner, start, offsets, Event.EMPTY))
    view = table.view("flights")
    assert [cp.epoch for cp in view.planned_by("one")] == [1, 3]
    assert [cp.epoch for cp in view.planned_for(Interval(NOON, NOON + timedelta(hours=2)))] == [1, 2]
    before, after = view.boundaries(NOON + timedelta(hours=3), "t")
    assert (before.time, before.offsets) == (NOON + timedelta(hours=2), {0: 9})
    assert (after.time, after.offsets) == (NOON + timedelta(hours=5), {0: 9})
    assert view.boundaries(NOON - timedelta(hours=1), "t")[0] is None
    ends = [view.checkpoints_ending_last(NOON + timedelta(hours=hour)) for hour in (0, 2, 5, 6)]
    assert [[cp.epoch for cp in found] for found in ends] == [[], [2], [2], [3]]


def test_gaps_before_an_interval_are_what_nothing_covers(table):
    def hours(start, end) -> Interval:
        return Interval(NOON + timedelta(hours=start), NOON + timedelta(hours=end))

    view = table.view("flights")
    assert view.gaps_before(hours(0, 1)) == []
    for start in (0, 5, 1):
        view = table.append(view, planned(view, start=start))
    asked = (hours(0, 1), hours(1, 2), hours(2, 3), hours(4, 5), hours(5, 6), hours(6, 7), hours(800, 801))
    before = [[], [], [], [hours(2, 4)], [hours(2, 5)], [hours(2, 5)], [hours(2, 5), hours(6, 800)]]
    assert [view.gaps_before(interval) for interval in asked] == before
    assert [table.view("flights").gaps_before(interval) for interval in asked] == before


HELD = (0, 1, 2, 40, 41, 1000, 1001, -2000)  # hours, in the order in which they are pinned


def test_neighbours_are_found_however_far_they_are_and_whatever_was_asked_before(table):
    view = table.view("flights")
    for start in HELD:
        view = table.append(view, planned(view, start=start, event=Event.EMPTY))
    shared = table.view("flights")
    edges = sorted({edge for start in HELD for edge in (start, start + 1)})
    asked = (0, 1, 3, 20, 39, 41, 42, 500, 999, 1001, 1002, 4000, -1, -500, -1999, -2000, -2001)
    for hour in [*asked, *reversed(asked)]:
        before, after = shared.boundaries(NOON + timedelta(hours=hour), "t")
        last, first = (
            max((e for e in edges if e <= hour), default=None),
            min((e for e in edges if e >= hour), default=None),
        )
        assert [boundary and (boundary.time - NOON) / timedelta(hours=1) for boundary in (before, after)] == [
            last,
            first,
        ]
        found = shared.planned_for(Interval(NOON + timedelta(hours=hour), NOON + timedelta(hours=hour + 2)))
        assert [cp.epoch for cp in found] == [n for n, start in enumerate(HELD, 1) if start - 2 < hour < start + 1]


# ---- on an object store alone


@pytest.fixture
def stored(tmp_path, monkeypatch) -> StateTable:
    through_delta_rs(monkeypatch)
    return StateTable.make(str(tmp_path / "state"))


def pin(table, rows=1):
    view = table.view("flights")
    for _ in range(rows):
        view = table.append(view, planned(view, start=view.head.epoch, event=Event.EMPTY))
    return view


def test_more_rows_than_are_kept_in_memory_are_read_from_the_log(stored, monkeypatch):
    monkeypatch.setattr(store_log, "MAX_PARSED_ENTRIES", 4)
    monkeypatch.setattr(store_log, "MAX_PACKED_BYTES", 2_000)  # bytes: less than all of them
    pin(stored, 20)
    for reader in (stored, StateTable(stored.uri)):
        assert [row.seq for row in reader.history("flights")] == list(range(1, 21))


@pytest.mark.parametrize("lands", [True, False])
def test_a_put_whose_answer_is_lost_is_looked_for(stored, monkeypatch, lands):
    view, real, failures = pin(stored), StoreLog.commit, [1]

    def fails(log, version, commit, after):
        if not failures or lands:
            real(log, version, commit, after)
        if failures.pop() if failures else False:
            raise OSError("connection reset")

    monkeypatch.setattr(StoreLog, "commit", fails)
    assert stored.append(view, planned(view, start=1, event=Event.EMPTY)).head.seq == 2
    assert [row.seq for row in stored.history("flights")] == [1, 2]


def test_a_stored_table_is_tidied_and_goes_on(stored, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 4)
    pin(stored, 6)
    stale = stored.view("flights")
    folder = location.table_folder(stored.uri, "flights")
    stored.tidy(stored.view("flights"))
    assert len(DeltaTable(folder).file_uris()) == 1
    assert stored.append(stale, planned(stale, start=6, event=Event.EMPTY)).head.seq == 7
    with pytest.raises(Conflict):
        stored.append(stale, planned(stale, start=6, event=Event.EMPTY))
    assert [row.seq for row in StateTable(stored.uri).history("flights")] == list(range(1, 8))
    assert StateTable(stored.uri).pipelines() == ["flights"]


def test_a_stored_table_whose_rows_were_changed_is_damaged(stored):
    pin(stored, 3)
    rows = DeltaTable(location.table_folder(stored.uri, "flights"))
    rows.alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    rows.delete("seq = 2")
    with raises(OutcomeUnknown, "state-table-damaged"):
        stored.view("flights")


@pytest.mark.parametrize("rows", [1, 3, 5])
def test_a_stored_table_that_was_restored_shows_what_was_written_since(stored, tmp_path, monkeypatch, rows):
    """Also to a process that has seen later versions, some of which are entries without a row."""
    monkeypatch.setattr(store_log, "LOOK_FRESH_SECONDS", 0)
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    pin(stored, 3)
    folder, copy = Path(location.table_folder(stored.uri, "flights")), tmp_path / "copy"
    shutil.copytree(folder, copy)
    stored.tidy(stored.view("flights"))
    seen = stored.view("flights")
    shutil.rmtree(folder)
    copy.rename(folder)
    pin(StateTable(stored.uri), rows)
    with pytest.raises(Conflict):
        stored.append(seen, planned(seen, "late", 3, event=Event.EMPTY))
    assert stored.view("flights").head.seq == 3 + rows
    assert [row.seq for row in stored.history("flights")] == list(range(1, 4 + rows))


def test_a_stored_table_that_was_restored_shows_another_row_under_the_same_version(stored, tmp_path):
    pin(stored)
    folder, copy = Path(location.table_folder(stored.uri, "flights")), tmp_path / "copy"
    shutil.copytree(folder, copy)
    pin(stored)
    assert stored.view("flights").head.seq == 2
    shutil.rmtree(folder)
    copy.rename(folder)
    other = StateTable(stored.uri)
    view = other.view("flights")
    other.append(view, planned(view, "after", 1, event=Event.EMPTY))
    assert stored.view("flights").latest.owner == "after"


def test_a_stored_table_that_was_restored_takes_no_row_of_an_older_view(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(store_log, "LOOK_FRESH_SECONDS", 0)
    view = pin(stored)
    folder, copy = Path(location.table_folder(stored.uri, "flights")), tmp_path / "copy"
    shutil.copytree(folder, copy)
    view = stored.append(view, planned(view, "before", 1, event=Event.EMPTY))
    shutil.rmtree(folder)
    copy.rename(folder)
    other = stored.view("flights")
    stored.append(other, planned(other, "after", 1, event=Event.EMPTY))
    with pytest.raises(Conflict):
        stored.append(view, planned(view, "late", 2, event=Event.EMPTY))
    assert [row.owner for row in stored.history("flights")] == ["run", "after"]
