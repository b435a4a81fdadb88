"""The state table on a real Delta table: every transition is a compare-and-set."""

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake

from onceonly.checkpoint.model import FORMAT, Event, Row, State
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.errors import InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.statetable import local_log, location, row_files
from onceonly.statetable import table as state
from onceonly.statetable.local_log import LocalLog
from onceonly.statetable.log import Commit, Taken
from onceonly.statetable.table import Conflict, Snapshot, StateTable
from onceonly.statetable.view import View

pytestmark = pytest.mark.slow

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
RANGE = TopicRange("flights", "id-1", {0: (0, 8)})
PLAN = {"definition": {"name": "flights"}, "ranges": [RANGE.to_json()]}


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def table(uri) -> StateTable:
    return StateTable.make(uri)


def planned(view: View, owner: str = "run", interval: Interval | None = None, event: Event = Event.PLANNED) -> Row:
    return Row(view.pipeline, view.head.seq + 1, view.head.epoch + 1, event, 0, owner, interval=interval, body=PLAN)


def following(view: View, epoch: int, event: Event, **columns) -> Row:
    return Row(view.pipeline, view.head.seq + 1, epoch, event, 1, **columns)


def settle(table: StateTable, view: View, epoch: int) -> View:
    for event in (Event.ABORTING, Event.ABORTED):
        view = table.append(view, following(view, epoch, event))
    return view


def fill(table: StateTable, rows: int) -> View:
    """That many settled checkpoints, of one row each."""
    view = table.view("flights")
    for _ in range(rows):
        view = table.append(view, planned(view, event=Event.EMPTY))
    return view


def sequence(table: StateTable, pipeline: str = "flights") -> list[int]:
    return [row.seq for row in table.history(pipeline)]


# ---- compare-and-set


def test_what_is_written_is_read_back(table):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    again = table.view("flights")
    assert again.head == view.head
    assert again.checkpoints == view.checkpoints
    assert again.latest.state is State.PLANNED
    assert again.latest.ranges == (RANGE,)


def test_of_two_writers_from_one_snapshot_the_second_loses(table, uri):
    one, other = table.view("flights"), StateTable(uri).view("flights")
    table.append(one, planned(one, "first"))
    with pytest.raises(Conflict):
        table.append(other, planned(other, "second"))
    assert [row.owner for row in table.history("flights")] == ["first"]


def test_an_old_view_is_never_written_from_again(table):
    view = table.view("flights")
    table.append(view, planned(view))
    with pytest.raises(Conflict):
        table.append(view, planned(view))
    assert sequence(table) == [1]


def test_the_loser_still_loses_after_tidying_and_a_log_checkpoint(table, uri, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    view = table.append(table.view("flights"), planned(table.view("flights")))
    stale = StateTable(uri).view("flights")
    settle(table, view, 1)
    table.tidy(table.view("flights"))
    assert len(DeltaTable(location.table_folder(uri, "flights")).file_uris()) == 1
    assert list(Path(location.table_folder(uri, "flights")).glob("_delta_log/*.checkpoint.parquet"))
    with pytest.raises(Conflict):
        table.append(stale, following(stale, 1, Event.CLAIMED, body=vars_of_claim()))
    assert sequence(table) == [1, 2, 3]


def vars_of_claim() -> dict[str, str]:
    return {"nonce": "n", "state_id": "s", "worker": "w"}


def test_tidying_in_between_disturbs_no_writer(table, uri, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    view = table.append(table.view("flights"), planned(table.view("flights")))
    view = settle(table, view, 1)
    table.tidy(StateTable(uri).view("flights"))
    settle(table, table.append(view, planned(view)), 2)
    assert sequence(table) == [1, 2, 3, 4, 5, 6]


def test_history_over_many_log_checkpoints_keeps_every_row(table, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 20)
    view = table.view("flights")
    for _ in range(60):
        view = table.append(view, planned(view, event=Event.EMPTY))
        view = table.tidy(view)
    assert sequence(table) == list(range(1, 61))
    assert table.view("flights").head == view.head


def test_pipelines_do_not_disturb_each_other(table, uri):
    flights, trains = table.view("flights"), StateTable(uri).view("trains")
    table.append(flights, planned(flights))
    table.append(trains, planned(trains))
    assert table.pipelines() == ["flights", "trains"]
    assert (sequence(table), sequence(table, "trains")) == ([1], [1])


def test_an_illegal_transition_is_not_written(table):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    with raises(OutcomeUnknown, "state-table-damaged"):
        table.append(view, following(view, 1, Event.COMMITTING, decision=1))
    assert sequence(table) == [1]


# ---- a write whose outcome is not known


def test_a_row_that_landed_although_the_write_failed_counts(table, monkeypatch):
    real = LocalLog.commit

    def lands_and_fails(log, version, commit, after):
        real(log, version, commit, after)
        if commit.row:
            monkeypatch.undo()
            raise OSError("connection reset")

    monkeypatch.setattr(LocalLog, "commit", lands_and_fails)
    view = table.append(table.view("flights"), planned(table.view("flights")))
    assert view.latest.state is State.PLANNED
    settle(table, view, 1)
    assert sequence(table) == [1, 2, 3]


def test_a_row_that_did_not_land_is_written_again_once(table, monkeypatch):
    real, failures = LocalLog.commit, [OSError("no route"), Taken()]

    def fails_at_first(log, version, commit, after):
        if commit.row and failures:
            raise failures.pop()
        real(log, version, commit, after)

    monkeypatch.setattr(LocalLog, "commit", fails_at_first)
    table.append(table.view("flights"), planned(table.view("flights")))
    assert sequence(table) == [1]


def test_a_failed_write_after_which_another_was_first_is_lost(table, uri, monkeypatch):
    def another_is_first(log, version, commit, after):
        monkeypatch.undo()
        other = StateTable(uri)
        other.append(other.view("flights"), planned(other.view("flights"), "other"))
        raise OSError("connection reset")

    view = table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    monkeypatch.setattr(LocalLog, "commit", another_is_first)
    with pytest.raises(Conflict):
        table.append(view, planned(view, "mine"))
    assert [row.owner for row in table.history("flights")] == ["run", "other"]


def test_a_row_that_lands_after_the_look_for_it_counts(table, monkeypatch):
    """The answer to a request was not waited for any longer, and the storage carries it out later."""
    real, late = LocalLog.commit, []

    def is_late(log, version, commit, after):
        if late:
            monkeypatch.undo()
            real(log, *late)
            real(log, version, commit, after)
        late.extend((version, commit, after))
        raise OSError("timed out")

    view = table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    monkeypatch.setattr(LocalLog, "commit", is_late)
    assert table.append(view, planned(view)).head.seq == 2
    assert sequence(table) == [1, 2]


def test_a_row_that_may_still_land_is_not_called_lost(table, uri, monkeypatch):
    """The storage does not answer for a moment: that nobody has taken the number is not known to be so."""
    real, late = LocalLog.commit, []

    def is_late(log, version, commit, after):
        late.append((log, version, commit, after))
        monkeypatch.setattr(LocalLog, "entries", failing(OSError("does not answer")))
        raise OSError("timed out")

    view = table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    monkeypatch.setattr(LocalLog, "commit", is_late)
    with raises(OutcomeUnknown, "row-unknown"):
        table.append(view, planned(view))
    monkeypatch.undo()
    ((log, version, commit, after),) = late
    assert Path(location.table_folder(uri, "flights"), row_files.path_of(commit.row.id)).exists()
    real(log, version, commit, after)
    assert sequence(table) == [1, 2]
    assert len(DeltaTable(location.table_folder(uri, "flights")).to_pyarrow_table()) == 2


def test_storage_that_never_takes_the_row_is_an_unknown_outcome(table, monkeypatch):
    monkeypatch.setattr(LocalLog, "commit", failing(OSError("read-only file system")))
    with raises(OutcomeUnknown, "row-unknown") as unknown:
        table.append(table.view("flights"), planned(table.view("flights")))
    assert "onceonly recover flights" in unknown.value.todo


def test_a_failed_write_that_cannot_be_read_back_is_an_unknown_outcome(table, monkeypatch):
    view = table.view("flights")
    monkeypatch.setattr(LocalLog, "commit", failing(OSError("connection reset")))
    monkeypatch.setattr(LocalLog, "entries", failing(OSError("storage is down")))
    with raises(OutcomeUnknown, "row-unknown") as unknown:
        table.append(view, planned(view))
    assert "storage is down" in unknown.value.why


def test_a_failed_write_whose_table_cannot_be_opened_is_an_unknown_outcome(table, monkeypatch):
    def fails(*given):
        monkeypatch.setattr(Path, "read_text", failing(OSError("storage is down")))
        raise OSError("connection reset")

    view = table.view("flights")
    monkeypatch.setattr(LocalLog, "commit", fails)
    with raises(OutcomeUnknown, "row-unknown"):
        table.append(view, planned(view))


def test_another_commit_without_a_row_is_no_loss(table, uri):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    for _ in range(5):
        DeltaTable(location.table_folder(uri, "flights")).vacuum(retention_hours=1, dry_run=False)
        view = table.append(view, following(view, 1, Event.CLAIMED, body=vars_of_claim()))
    assert sequence(table) == [1, 2, 3, 4, 5, 6]


# ---- what a restored folder may show


def restored(table: StateTable, uri: str, tmp_path: Path, after) -> View:
    """A view from before the pipeline's folder was replaced by an older copy, and then written to."""
    view = table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    folder, copy = Path(location.table_folder(uri, "flights")), tmp_path / "copy"
    shutil.copytree(folder, copy)
    view = table.append(view, planned(view, "before", event=Event.EMPTY))
    shutil.rmtree(folder)
    copy.rename(folder)
    after(StateTable(uri))
    return view


def test_a_view_from_before_a_restored_copy_is_lost(table, uri, tmp_path):
    view = restored(table, uri, tmp_path, lambda other: None)
    with pytest.raises(Conflict):
        table.append(view, planned(view))
    assert sequence(table) == [1]


def test_so_it_is_where_the_copy_has_reached_the_same_version(table, uri, tmp_path):
    def write(other: StateTable) -> None:
        other.append(other.view("flights"), planned(other.view("flights"), "after", event=Event.EMPTY))

    view = restored(table, uri, tmp_path, write)
    with pytest.raises(Conflict):
        table.append(view, planned(view))
    assert [row.owner for row in table.history("flights")] == ["run", "after"]


def test_merged_rows_of_a_restored_copy_are_its_own(table, uri, tmp_path, monkeypatch):
    """Its log has the same versions, merged at the same one, with other rows."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    shutil.copytree(uri, tmp_path / "backup")

    def go_on(owner: str) -> list[str]:
        table.append(table.view("flights"), planned(table.view("flights"), owner, event=Event.EMPTY))
        table.tidy(fill(table, 1))
        fill(table, 1)
        return [owner for owner in ("first", "second") if table.view("flights").planned_by(owner)]

    assert go_on("first") == ["first"]
    backup = Path(location.table_folder(str(tmp_path / "backup"), "flights"))
    log = Path(location.table_folder(uri, "flights"), "_delta_log")
    shutil.rmtree(log)
    shutil.copytree(backup, log.parent, dirs_exist_ok=True)  # the files that the copy does not know are still there
    assert go_on("second") == ["second"]


def test_a_reader_survives_the_removal_of_the_merged_files_that_it_knows(table, uri, monkeypatch):
    """Between its view and its question another process has merged again, and the old file is gone."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    monkeypatch.setattr(local_log, "ENTRIES_BEFORE_CHECKPOINT", 1)
    fill(table, 3)
    view = fill_after_tidying(table, 3)
    assert [found.epoch for found in view.planned_by("run")] == [1, 2, 3, 4, 5, 6]
    old = set(Path(location.table_folder(uri, "flights")).glob("merged-*"))
    fill_after_tidying(StateTable(uri), 3)
    for path in old:
        path.unlink()
    assert [found.epoch for found in view.planned_by("run")] == [1, 2, 3, 4, 5, 6]


def fill_after_tidying(table: StateTable, rows: int) -> View:
    table.tidy(table.view("flights"))
    return fill(table, rows)


def test_a_log_without_its_middle_is_damaged(table, uri):
    fill(table, 4)
    log = Path(location.table_folder(uri, "flights"), "_delta_log")
    (log / f"{3:020}.json").unlink()
    with raises(OutcomeUnknown, "state-table-damaged") as missing:
        table.history("flights")
    assert "Version 3" in missing.value.why
    (log / f"{4:020}.json").write_text("{")
    with raises(OutcomeUnknown, "state-table-damaged") as unreadable:
        table.view("flights")
    assert f"{4:020}.json" in unreadable.value.why


def test_a_log_without_its_beginning_is_damaged(table, uri):
    fill(table, 3)
    for version in (0, 1):
        (Path(location.table_folder(uri, "flights"), "_delta_log") / f"{version:020}.json").unlink()
    with raises(OutcomeUnknown, "state-table-damaged") as missing:
        table.history("flights")
    assert "Version 1" in missing.value.why


def test_rows_out_of_order_are_damage(table, uri):
    fill(table, 3)
    log = Path(location.table_folder(uri, "flights"), "_delta_log")
    shutil.copy(log / f"{1:020}.json", log / f"{2:020}.json")
    with raises(OutcomeUnknown, "state-table-damaged") as disorder:
        table.history("flights")
    assert "Row 2 was expected, and row 1" in disorder.value.why


def test_an_open_checkpoint_without_its_rows_is_damage(table, uri):
    view = table.append(table.view("flights"), planned(table.view("flights")))
    head = {**view.head.to_json(), "open": {"7": 1}}
    log = LocalLog(Path(location.table_folder(uri, "flights")))
    row = replace(following(view, 1, Event.CLAIMED, body=vars_of_claim()), head=head)
    log.commit(2, Commit("WRITE", [], row), None)
    with raises(OutcomeUnknown, "state-table-damaged") as missing:
        table.view("flights")
    assert "[7]" in missing.value.why


def test_a_row_that_does_not_follow_on_its_view_is_not_written(table):
    view = table.append(table.view("flights"), planned(table.view("flights"), event=Event.EMPTY))
    with pytest.raises(Conflict):
        table.append(view, replace(planned(view), seq=9))
    assert sequence(table) == [1]


def test_an_entry_that_a_listing_leaves_out_is_no_damage(table, uri, monkeypatch):
    """It was written while the folder was listed."""
    fill(table, 4)
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [name for name in real(folder) if name != f"{3:020}.json"])
    assert sequence(StateTable(uri)) == [1, 2, 3, 4]


def test_a_vacuum_of_the_folder_deletes_no_rows(table, uri):
    """Somebody may vacuum every Delta table of a lake."""
    table.append(table.view("flights"), planned(table.view("flights")))
    for folder in (uri, location.table_folder(uri, "flights")):
        named = {"retention_hours": 0, "dry_run": False, "enforce_retention_duration": False, "full": True}
        DeltaTable(folder).vacuum(**named)
    assert sequence(StateTable(uri)) == [1]
    assert len(DeltaTable(location.table_folder(uri, "flights")).to_pyarrow_table()) == 1


def test_files_of_rows_without_a_log_are_no_new_pipeline(table, uri):
    table.append(table.view("flights"), planned(table.view("flights")))
    shutil.rmtree(Path(location.table_folder(uri, "flights"), "_delta_log"))
    with raises(OutcomeUnknown, "state-table-damaged"):
        table.view("flights")


def failing(error: Exception):
    def fail(*args, **kwargs):
        raise error

    return fail


# ---- reading


def test_an_open_checkpoint_is_seen_however_much_was_written_since(table, monkeypatch):
    monkeypatch.setattr(state, "MAX_TAIL_ROWS", 8)
    view = table.append(table.view("flights"), planned(table.view("flights"), "waits"))
    view = table.append(view, following(view, 1, Event.CLAIMED, body=vars_of_claim()))
    for epoch in range(2, 8):
        view = settle(table, table.append(view, planned(view)), epoch)
    view = table.append(view, planned(view, "waits too"))
    seen = table.view("flights")
    assert [checkpoint.epoch for checkpoint in seen.open] == [1, 8]
    assert seen.checkpoints[1].claims[1].nonce == "n"
    assert seen.latest.owner == "waits too"


def test_the_latest_checkpoint_is_seen_however_long_ago_it_was_planned(table, monkeypatch):
    monkeypatch.setattr(state, "MAX_TAIL_ROWS", 4)
    view = table.append(table.view("flights"), planned(table.view("flights")))
    for attempt in range(6):  # claimed again and again: its first row is beyond the tail
        claim = replace(following(view, 1, Event.CLAIMED, body=vars_of_claim()), attempt=attempt + 1)
        view = table.append(view, claim)
    view = settle(table, view, 1)
    assert table.view("flights").latest.ranges == (RANGE,)
    assert sorted(table.view("flights").latest.claims) == [1, 2, 3, 4, 5, 6]


def test_any_epoch_can_be_read(table, monkeypatch):
    monkeypatch.setattr(state, "MAX_TAIL_ROWS", 2)
    view = table.view("flights")
    for _ in range(5):
        view = table.append(view, planned(view, event=Event.EMPTY))
    seen = table.view("flights")
    assert seen.checkpoint(2).state is State.COMMITTED
    assert (seen.checkpoint(6), seen.checkpoint(0), seen.checkpoint(-1)) == (None, None, None)


def test_checkpoints_are_found_by_owner_and_by_interval(table):
    hours = [Interval(NOON + timedelta(hours=h), NOON + timedelta(hours=h + 1)) for h in (0, 1, 5)]
    view = table.view("flights")
    for number, hour in enumerate(hours):
        view = table.append(view, planned(view, f"run-{number}", hour, Event.EMPTY))
    assert [c.epoch for c in view.planned_by("run-1")] == [2]
    assert [c.epoch for c in view.planned_for(hours[2])] == [3]
    assert [c.epoch for c in view.planned_for(Interval(NOON, NOON + timedelta(hours=2)))] == [1, 2]
    assert view.planned_for(Interval(NOON + timedelta(hours=2), NOON + timedelta(hours=5))) == []


def test_the_neighbours_of_an_instant(table):
    view = table.view("flights")
    late = Interval(NOON + timedelta(hours=4), NOON + timedelta(hours=6))
    for interval in (Interval(NOON, NOON + timedelta(hours=1)), late):
        view = table.append(view, planned(view, interval=interval, event=Event.EMPTY))
    before, after = view.boundaries(NOON + timedelta(hours=3), "flights")
    assert (before.time, before.offsets) == (NOON + timedelta(hours=1), {0: 8})
    assert (after.time, after.offsets) == (late.start, {0: 0})
    exact = view.boundaries(late.end, "flights")
    assert [boundary.time for boundary in exact] == [late.end, late.end]
    assert view.boundaries(NOON - timedelta(hours=1), "flights")[0] is None
    assert view.boundaries(NOON + timedelta(hours=9), "flights")[1] is None


# ---- tables that are not to be written


@pytest.mark.parametrize("another", [location.FORMAT - 1, location.FORMAT + 1, "none"])
def test_a_table_of_another_format_is_refused(table, uri, another):
    changed = {location.FORMAT_KEY: str(another)}
    DeltaTable(uri).alter.set_table_properties(changed, raise_if_not_exists=False)
    for use in (lambda: StateTable(uri), lambda: table.view("flights")):
        with raises(InvalidPipeline, "state-table-format") as refused:
            use()
        assert str(another) in refused.value.why


@pytest.mark.parametrize("another", [FORMAT - 1, FORMAT + 1])
def test_a_row_of_another_format_is_refused(table, another):
    view = table.view("flights")
    table.append(view, replace(planned(view), format=another))
    with raises(InvalidPipeline, "state-row-format"):
        table.view("flights")


def test_rows_that_were_deleted_by_hand_are_noticed(table, uri):
    view = table.view("flights")
    for _ in range(2):
        view = table.append(view, planned(view, event=Event.EMPTY))
    without, folder = {"delta.appendOnly": "false"}, location.table_folder(uri, "flights")
    DeltaTable(folder).alter.set_table_properties(without, raise_if_not_exists=False)
    assert table.view("flights").head.seq == 2
    DeltaTable(folder).delete("seq = 2")
    with raises(OutcomeUnknown, "state-table-damaged"):
        table.view("flights")
    DeltaTable(folder).restore(3)
    assert table.view("flights").head.seq == 2


def test_a_copy_is_refused_and_relocated_when_the_original_no_longer_exists(table, uri, tmp_path):
    table.append(table.view("flights"), planned(table.view("flights")))
    moved = str(tmp_path / "restored")
    shutil.copytree(uri, moved)
    with raises(InvalidPipeline, "state-table-copied") as refused:
        StateTable(moved)
    assert "onceonly state relocate" in refused.value.todo
    shutil.rmtree(uri)
    location.relocate(moved)
    assert StateTable(moved).id == table.id
    assert sequence(StateTable(moved)) == [1]


def test_a_fork_has_an_identity_of_its_own(table, uri, tmp_path):
    copy = str(tmp_path / "dev")
    shutil.copytree(uri, copy)
    location.fork(copy)
    assert StateTable(copy).id != table.id
    assert StateTable(uri).id == table.id


def test_a_renamed_folder_is_still_the_same_table(table, uri, tmp_path):
    Path(uri).rename(tmp_path / "renamed")
    assert StateTable(str(tmp_path / "renamed")).id == table.id


def test_a_file_uri_and_a_path_are_the_same_table(table, uri):
    assert StateTable(f"file://{uri}").id == table.id


def test_a_delta_table_of_someone_else_is_refused(uri):
    write_deltalake(uri, pa.table({"x": [1]}))
    with raises(InvalidPipeline, "state-table-foreign"):
        StateTable(uri)
    assert DeltaTable(uri).version() == 0


def test_a_table_that_was_deleted_under_a_process_is_not_silently_recreated(table, uri):
    """A new one would number everything from 1 and read the log from its start."""
    table.append(table.view("flights"), planned(table.view("flights")))
    shutil.rmtree(uri)
    with raises(OutcomeUnknown, "state-table-replaced") as missing:
        table.view("flights")
    assert "onceonly recover" in missing.value.todo
    assert not Path(uri).exists()
    StateTable.make(uri)
    with raises(OutcomeUnknown, "state-table-replaced") as replaced:
        table.view("flights")
    assert table.id in replaced.value.why


def test_a_table_that_is_missing_is_refused_and_not_made(uri):
    for kind in (StateTable, Snapshot):
        with raises(InvalidPipeline, "state-table-missing") as missing:
            kind(uri)
        assert "onceonly state init" in missing.value.todo
    assert not Path(uri).exists()


def test_making_it_again_changes_nothing(table, uri):
    assert not location.make(uri)
    assert StateTable.make(uri).id == table.id


def test_storage_that_does_not_answer_is_reported_as_such(uri):
    Path(uri).write_text("a file where a folder should be")
    with raises(NotCommitted, "store-unreachable") as silent:
        StateTable(uri)
    assert uri in silent.value.what


def test_a_damaged_log_is_reported_without_a_backtrace(table, uri):
    first = min((Path(uri) / "_delta_log").glob("*.json"))
    first.write_text("{damaged")
    with raises(NotCommitted, "store-unreachable") as damaged:
        StateTable(uri)
    assert "Json error" in damaged.value.why and "\n" not in damaged.value.why


@pytest.mark.parametrize(
    ("uri", "variable", "value", "why"),
    [
        ("s3://lake/state", "AWS_S3_ALLOW_UNSAFE_RENAME", "true", "the last writer would win silently"),
        ("s3a://lake/state", "AWS_S3_ALLOW_UNSAFE_RENAME", "1", "the last writer would win silently"),
        ("s3://lake/state", "AWS_CONDITIONAL_PUT", "disabled", "without put-if-absent"),
        ("hdfs://lake/state", "X", "", "needs put-if-absent, which 'hdfs://' is not known"),
        ("dbfs:/lake/state", "X", "", "needs put-if-absent, which 'dbfs://' is not known"),
    ],
)
def test_storage_on_which_two_writers_could_both_be_first_is_refused(monkeypatch, uri, variable, value, why):
    monkeypatch.setenv(variable, value)
    for opened in (StateTable, StateTable.make):
        with raises(InvalidPipeline, "store-not-arbitrating") as refused:
            opened(uri)
        assert why in str(refused.value)


@pytest.mark.parametrize("uri", ["/data/state", "state", "file:///data/state", "s3://a/b", "gs://a/b", "abfss://a@b/c"])
def test_storage_with_put_if_absent_is_taken(uri):
    location.check_atomic(uri)


# ---- many writers at once


def hammer(uri: str, rows: int) -> None:
    """Append `rows` rows to one pipeline, reading again whenever another was first."""
    table, written = StateTable.make(uri), 0
    while written < rows:
        view = table.view("flights")
        try:
            table.append(view, planned(view, event=Event.EMPTY))
            written += 1
        except Conflict:
            continue


def test_threads_on_one_pipeline_leave_no_hole_and_no_repeat(table, uri):
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(hammer, [uri] * 3, [5] * 3))
    assert sequence(table) == list(range(1, 16))


def test_processes_on_one_pipeline_leave_no_hole_and_no_repeat(uri):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:  # the table too is made by the first
        list(pool.map(hammer, [uri] * 2, [8] * 2))
    assert sequence(StateTable(uri)) == list(range(1, 17))
    assert [row.epoch for row in StateTable(uri).history("flights")] == list(range(1, 17))
