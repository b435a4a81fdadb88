"""What a power failure could take: nothing that something else already follows from."""

import errno
import json
import os
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from codes import raises
from deltalake import DeltaTable, Schema, write_deltalake

from onceonly.checkpoint.model import Event, Row, Transaction
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.delta import log_files, table_files
from onceonly.errors import NotCommitted, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink, FileSink
from onceonly.sinks.delta import schema, staged_table, target_table
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.sinks.files import stage as filestage
from onceonly.sinks.files.sink import FileWriter
from onceonly.sinks.kafka.spool import SPOOL_SCHEMA, SpoolFile
from onceonly.statetable import compaction, local_log, row_files, row_format
from onceonly.statetable import table as state
from onceonly.statetable.local_log import LocalLog
from onceonly.statetable.log import Commit
from onceonly.statetable.table import Conflict, StateTable
from onceonly.statetable.view import View
from onceonly.storage import durability
from onceonly.storage.local import LocalFiles

pytestmark = pytest.mark.slow

BODY = {"definition": {"name": "flights"}, "ranges": []}


def row(view: View) -> Row:
    return view.row(view.head.epoch + 1, Event.EMPTY, 0, owner="run", body=BODY)


def add(table: StateTable, pipeline: str = "flights", rows: int = 1) -> View:
    view = table.view(pipeline)
    for _ in range(rows):
        view = table.append(view, row(view))
    return view


@dataclass(frozen=True)
class Told:
    """An fsync: how the file or folder was then, and how many entries the log had."""

    changed: int
    entries: int


class Disk:
    """Remembers what fsync was told of."""

    def __init__(self, table: Path) -> None:
        self.table, self.told, self.broken = table, dict[int, Told](), False
        self._fsync = os.fsync

    def fsync(self, descriptor: int) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        self._fsync(descriptor)
        found = os.fstat(descriptor)
        entries = len(list(self.table.rglob("_delta_log/*.json"))) - len(list(self.table.glob("_delta_log/*.json")))
        self.told[found.st_ino] = Told(found.st_mtime_ns, entries)

    def of(self, path: Path) -> Told | None:
        return self.told.get(path.stat().st_ino)

    def lost(self) -> list[str]:
        """What a power failure may take now: of the table, and of the way to it as far as it is the test's own."""
        found = (path for path in self.table.rglob("*") if path.name != ".onceonly.lock")  # nothing is in it
        places = [self.table, *self.table.parents[:2], *found]
        return [str(path) for path in places if not (told := self.of(path)) or told.changed != path.stat().st_mtime_ns]


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "deep" / "state"


@pytest.fixture
def disk(folder, monkeypatch) -> Disk:
    disk = Disk(folder)
    monkeypatch.setattr(os, "fsync", disk.fsync)
    return disk


@pytest.fixture
def table(folder, disk) -> StateTable:
    return StateTable.make(str(folder))


# ---- rows


def test_a_row_is_on_disk_when_append_returns(table, disk):
    view = add(table)
    assert disk.lost() == []
    table.append(view, row(view))
    assert disk.lost() == []
    add(table, "trains")
    assert disk.lost() == []


def test_a_row_is_on_disk_before_the_log_names_it(table, disk, folder):
    add(table, rows=2)
    for version, add_ in enumerate(adds(folder), start=1):
        assert disk.of(home(folder) / add_["path"]).entries == version, "the creation's entry and the rows before"


def test_so_is_its_place_in_a_new_folder(table, disk, folder, monkeypatch):
    view, seen = table.view("flights"), []
    real = LocalLog.commit

    def spied(log, version, *given) -> None:
        if version:
            seen.extend(name for name in disk.lost() if not name.endswith("_delta_log"))
        real(log, version, *given)

    monkeypatch.setattr(LocalLog, "commit", spied)
    table.append(view, row(view))
    assert seen == []


def test_what_a_killed_writer_left_is_on_disk_before_it_is_acted_on(table, disk, folder, monkeypatch):
    """It died between the name of its log entry and fsync; others wrote before and after it."""
    reader = StateTable(str(folder))
    add(reader)
    with monkeypatch.context() as dying:
        dying.setattr(LocalLog, "sync", lambda log: None)
        add(table, rows=2)
    assert disk.lost()
    assert reader.view("flights").head.seq == 3
    assert disk.lost() == []


def test_a_new_process_trusts_nothing_that_it_finds(table, disk, folder):
    add(table, rows=3)
    disk.told.clear()
    StateTable(str(folder)).view("flights")
    logs = (folder / "_delta_log", home(folder) / "_delta_log")
    places = {place for log in logs for place in (log, *log.parents)}
    assert [name for name in disk.lost() if Path(name) in places] == []
    assert disk.of(folder / "_delta_log" / f"{0:020}.json")


def test_nothing_is_written_to_disk_twice(table, disk):
    add(table)
    table.view("flights")
    disk.told.clear()
    table.view("flights")
    assert not disk.told


def test_a_restored_log_is_read_again(table, disk, folder):
    add(table, rows=3)
    for version in (2, 3):
        (home(folder) / "_delta_log" / f"{version:020}.json").unlink()
    disk.told.clear()
    assert table.view("flights").head.seq == 1
    assert disk.of(home(folder) / "_delta_log")


def test_other_entry_of_a_known_version_is_written_to_disk(table, disk, folder):
    """Of a log that was restored, and that another process has lengthened since."""
    add(table, rows=3)
    (home(folder) / "_delta_log" / f"{3:020}.json").unlink()
    add(StateTable(str(folder)))
    disk.told.clear()
    assert table.view("flights").head.seq == 3
    assert disk.of(home(folder) / "_delta_log")


def test_a_row_that_may_not_be_on_disk_is_not_called_recorded(table, disk, monkeypatch):
    view = table.view("flights")
    real = LocalLog.commit

    def breaks(log, version, *given) -> None:
        real(log, version, *given)
        disk.broken = version > 0

    monkeypatch.setattr(LocalLog, "commit", breaks)
    with raises(OutcomeUnknown, "row-not-durable"):
        table.append(view, row(view))
    with raises(OutcomeUnknown, "state-table-unreadable"):
        table.view("flights")
    disk.broken = False
    assert table.view("flights").head.seq == 1
    assert disk.lost() == []


def test_a_folder_that_has_no_fsync_is_passed_over(tmp_path, monkeypatch):
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    durability.sync(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        durability.sync(tmp_path / "file")


# ---- what stands in the log


def home(folder: Path) -> Path:
    """Where the table of flights is."""
    return folder / "_pipelines" / "flights"


def adds(folder: Path) -> list[dict]:
    entries = sorted((home(folder) / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for entry in entries for line in entry.read_text().splitlines()]
    return [action["add"] for action in actions if "add" in action]


def test_a_file_can_be_skipped_as_one_of_deltalakes_own(table, folder, tmp_path):
    view = add(table)
    hour = Interval(datetime(2013, 1, 1, 12, tzinfo=UTC), datetime(2013, 1, 1, 13, tzinfo=UTC))
    table.append(view, replace(row(view), interval=hour, decision=7, sink="lake"))
    theirs = str(tmp_path / "theirs")
    for each in table.history("flights"):
        write_deltalake(theirs, row_format.to_arrow(row_format.columns([each])), mode="append")
    assert statistics(str(home(folder))) == statistics(theirs)
    assert len(DeltaTable(home(folder)).file_uris(file_pruning_predicate=[("seq", "=", 2)])) == 1
    assert len(DeltaTable(home(folder)).file_uris(file_pruning_predicate=[("seq", ">", 2)])) == 0


def statistics(uri: str) -> list[dict]:
    files = DeltaTable(uri).get_add_actions(flatten=True)
    known = re.compile(r"(min|max|null_count)\.(?!head|body|at$)|num_records")  # at: theirs is cut to milliseconds
    names = sorted(name for name in files.schema.names if known.match(name))
    found = [{name: files[name][number].as_py() for name in names} for number in range(files.num_rows)]
    return sorted(found, key=lambda each: each["min.seq"])


# ---- writers that were not first


def files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("_pipelines/*/*") if path.is_file()]


def test_who_loses_leaves_no_file(table, folder, monkeypatch):
    view, real = add(table), LocalLog.commit

    def another_is_first(*given) -> None:
        monkeypatch.undo()
        add(StateTable(str(folder)))
        real(*given)

    monkeypatch.setattr(LocalLog, "commit", another_is_first)
    with pytest.raises(Conflict):
        table.append(view, row(view))
    assert len(files(folder)) == 2
    assert table.view("flights").head.seq == 2


def test_a_file_whose_row_may_have_been_recorded_stays(table, folder, monkeypatch):
    def nobody_knows(*given) -> None:
        monkeypatch.setattr(LocalLog, "entries", fail)
        raise OSError("connection reset")

    def fail(log: LocalLog) -> None:
        raise OSError("storage is down")

    view = add(table)
    monkeypatch.setattr(LocalLog, "commit", nobody_knows)
    with raises(OutcomeUnknown, "row-unknown"):
        table.append(view, row(view))
    assert len(files(folder)) == 2


def test_how_often_commits_without_rows_were_first_does_not_matter(table, folder, monkeypatch):
    view, others, real = add(table), StateTable(str(folder)), LocalLog.commit
    left = [1] * 5

    def beaten(log, version, commit, after) -> None:
        if commit.row and left:
            left.pop()
            compaction.tidy("flights", str(home(folder)), LocalLog(home(folder)))
        real(log, version, commit, after)

    monkeypatch.setattr(LocalLog, "commit", beaten)
    assert table.append(view, row(view)).head.seq == 2
    assert others.view("flights").head.seq == 2


# ---- tidying


def test_merged_rows_are_on_disk_before_they_take_the_place_of_others(table, disk, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    view = table.tidy(add(table, rows=3))
    assert [found.seq for found in table.history("flights")] == [1, 2, 3]
    assert view.head.seq == 3
    (merged,) = (add_ for add_ in adds(folder) if "merged" in add_["path"])
    assert disk.of(home(folder) / merged["path"]).entries == 4
    assert merged["dataChange"] is False
    assert disk.lost() == []
    assert len(DeltaTable(home(folder)).file_uris()) == 1


@pytest.mark.parametrize(("large", "left"), [(3, 4), (8, 8)])
def test_a_row_that_fills_a_file_of_its_own_takes_no_other_with_it(table, folder, monkeypatch, large, left):
    """Such as the handle of a hundred thousand files."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 4)
    view = table.view("flights")
    for number in range(1, 9):
        body = {**BODY, "large": os.urandom(compaction.FULL_FILE_BYTES).hex()} if number == large else BODY
        view = table.append(view, replace(row(view), body=body))
    table.tidy(table.view("flights"))
    assert [found.seq for found in table.history("flights")] == list(range(1, 9))
    assert len(DeltaTable(home(folder)).file_uris()) == left


def test_where_all_files_are_full_there_is_nothing_to_merge(table, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    monkeypatch.setattr(compaction, "FULL_FILE_BYTES", 1)
    assert table.tidy(add(table, rows=3)).head.seq == 3
    assert len(DeltaTable(home(folder)).file_uris()) == 3


def test_files_with_a_hole_between_their_rows_are_left_alone(table, folder, monkeypatch):
    """Somebody has deleted a row: where it was stays to be seen."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    add(table, rows=4)
    view = table.view("flights")
    DeltaTable(home(folder)).alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    DeltaTable(home(folder)).delete("seq = 2")
    with raises(OutcomeUnknown, "state-table-damaged"):
        table.tidy(view)
    assert [path for path in files(folder) if "merged" in path.name] == []


def test_files_that_hold_more_than_is_read_of_them_are_left_alone(table, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    view, real = add(table, rows=4), compaction.select_small

    def with_one_more(*given):
        *small, file = real(*given)
        return [*small, file._replace(rows=2)]

    monkeypatch.setattr(compaction, "select_small", with_one_more)
    table.tidy(view)
    assert [path for path in files(folder) if "merged" in path.name] == []


def test_a_log_checkpoint_is_on_disk_before_it_gets_its_name(table, disk, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    real, before = Path.replace, []

    def spied(draft: Path, target: Path) -> Path:
        before.append((target.name, disk.of(draft) is not None))
        return real(draft, target)

    view = add(table, rows=3)
    monkeypatch.setattr(Path, "replace", spied)
    table.tidy(view)
    named = [each for each in before if "merged" not in each[0]]
    assert named == [("00000000000000000004.checkpoint.parquet", True), ("_last_checkpoint", True)]
    assert log_files.DurableLog(home(folder)).tail()[0].startswith("00000000000000000004")
    assert table.view("flights").head.seq == 3


def test_deltalake_makes_no_log_checkpoint_and_cleans_up_nothing_by_the_way(table, folder):
    add(table, rows=120)  # delta-rs would make one after a hundred
    assert len(list((home(folder) / "_delta_log").iterdir())) == 121


def test_two_that_tidy_at_once_leave_one_file(table, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    view, other = add(table, rows=3), StateTable(str(folder))
    seen, real = other.view("flights"), row_files.put

    def beaten(*given, **named):
        monkeypatch.setattr(row_files, "put", real)
        table.tidy(view)
        return real(*given, **named)

    monkeypatch.setattr(row_files, "put", beaten)
    assert other.tidy(seen).head.seq == 3
    assert len(DeltaTable(home(folder)).file_uris()) == 1
    assert len([path for path in files(folder) if "merged" in path.name]) == 1
    assert [found.seq for found in table.history("flights")] == [1, 2, 3]


def test_a_merge_that_fails_after_it_landed_keeps_its_file(table, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    view, real = add(table, rows=3), LocalLog.commit

    def lands_and_fails(*given) -> None:
        real(*given)
        raise OSError("connection reset")

    with monkeypatch.context() as patched, pytest.warns(RuntimeWarning, match="was not compacted"):
        patched.setattr(LocalLog, "commit", lands_and_fails)
        assert table.tidy(view).head.seq == 3
    assert [found.seq for found in table.history("flights")] == [1, 2, 3]
    assert len(DeltaTable(home(folder)).to_pyarrow_table()) == 3


def test_a_merge_that_another_commit_was_before_leaves_nothing(table, folder, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    view, real = add(table, rows=3), LocalLog.commit

    def beaten(log, version, commit, after) -> None:
        monkeypatch.undo()
        add(StateTable(str(folder)))
        real(log, version, commit, after)

    monkeypatch.setattr(LocalLog, "commit", beaten)
    assert table.tidy(view).head.seq == 4
    assert [path for path in files(folder) if "merged" in path.name] == []


@pytest.mark.parametrize("error", [OSError("no space left on device"), ValueError("no space left in a column")])
def test_tidying_that_fails_stops_nobody(table, monkeypatch, error):
    def fail(*given) -> None:
        raise error

    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    view = add(table, rows=2)
    monkeypatch.setattr(compaction, "tidy", fail)
    with pytest.warns(RuntimeWarning, match="no space left"):
        assert table.tidy(view).head.seq == 2


# ---- views that are older than the log goes back


@pytest.fixture
def cleaned(table, folder, monkeypatch) -> View:
    """A view of flights at its sixth row, whose log entries and files are gone since; so far nobody wrote a seventh."""
    for name, few in (("MAX_UNMERGED_ROWS", 2), ("MAX_TAIL_ROWS", 1)):
        monkeypatch.setattr(state, name, few)
    for module in (compaction, local_log):
        monkeypatch.setattr(module, "ENTRIES_BEFORE_CHECKPOINT", 2)
    add(table, rows=6)
    old = StateTable(str(folder)).view("flights")
    for _ in range(2):
        for path in [*folder.rglob("*.json"), *folder.rglob("*.parquet")]:
            os.utime(path, (0, 0))
        compaction.tidy("flights", str(home(folder)), LocalLog(home(folder)))
    DeltaTable(home(folder)).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not (home(folder) / "_delta_log" / f"{4:020}.json").exists()
    assert len(files(folder)) == 1
    return old


def test_an_old_view_answers_as_it_would_have(cleaned, table):
    later = table.view("flights")
    later = table.append(later, row(later))
    assert cleaned.checkpoint(1).epoch == 1
    assert [found.epoch for found in cleaned.planned_by("run")] == [1, 2, 3, 4, 5, 6]


def test_so_does_a_new_one(cleaned, table):
    view = table.view("flights")
    assert (view.head.seq, view.latest.epoch) == (6, 6)
    assert [found.seq for found in table.history("flights")] == [1, 2, 3, 4, 5, 6]
    assert table.append(view, row(view)).head.seq == 7


def test_a_view_shows_nothing_that_was_written_after_it(table, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 1)
    noon, hour = datetime(2013, 1, 1, 12, tzinfo=UTC), timedelta(hours=1)
    body = {**BODY, "ranges": [TopicRange("flights", "id", {0: (0, 8)}).to_json()]}
    view = table.view("flights")
    view = table.append(view, replace(row(view), event=Event.PLANNED, interval=Interval(noon, noon + hour), body=body))
    seen = StateTable(table.uri).view("flights")
    later = table.append(view, view.row(1, Event.ABORTING, 0))
    later = table.append(later, replace(row(later), interval=Interval(noon + 3 * hour, noon + 4 * hour), body=body))
    table.tidy(later)
    for older in (view, seen):
        assert older.checkpoint(1) == view.checkpoints[1]
        assert older.boundaries(noon + 5 * hour, "flights")[0].time == noon + hour


def test_an_old_view_is_written_from_while_nobody_else_has_written(cleaned, table):
    assert table.append(cleaned, row(cleaned)).head.seq == 7
    with pytest.raises(Conflict):
        table.append(cleaned, row(cleaned))
    assert [found.seq for found in table.history("flights")] == [1, 2, 3, 4, 5, 6, 7]


def test_a_commit_in_the_place_of_an_entry_that_was_removed_does_not_count(table, folder, monkeypatch):
    """The process was stopped for hours between its look at the log and the name of its entry."""
    for module in (compaction, local_log):
        monkeypatch.setattr(module, "ENTRIES_BEFORE_CHECKPOINT", 2)
    view, others, real = add(table), StateTable(str(folder)), os.link

    def stopped(draft, path) -> None:
        monkeypatch.setattr(os, "link", real)
        add(others, rows=8)
        for entry in folder.rglob("*.json"):
            os.utime(entry, (0, 0))
        compaction.tidy("flights", str(home(folder)), LocalLog(home(folder)))
        assert not path.exists()
        real(draft, path)

    monkeypatch.setattr(os, "link", stopped)
    with pytest.raises(Conflict):
        table.append(view, row(view))
    assert [found.seq for found in table.history("flights")] == list(range(1, 10))
    assert [found.owner for found in StateTable(str(folder)).history("flights")] == ["run"] * 9


def test_nor_does_one_whose_writer_was_killed_before_it_could_tell(table, folder, monkeypatch):
    """It stands where the entries of the log begin, with the number of the row that was there."""
    for module in (compaction, local_log):
        monkeypatch.setattr(module, "ENTRIES_BEFORE_CHECKPOINT", 2)
    view = add(table, rows=2)
    waits = view.row(3, Event.PLANNED, 0, owner="run", body=BODY)
    after = table.append(view, waits)
    stale = Commit("WRITE", [], replace(waits, owner="stale", head=after.head.to_json()))
    table.append(after, row(after))
    for entry in folder.rglob("*.json"):
        os.utime(entry, (0, 0))
    compaction.tidy("flights", str(home(folder)), LocalLog(home(folder)))
    assert sorted(home(folder).glob("_delta_log/*.json"))[0].name == f"{4:020}.json"
    (home(folder) / "_delta_log" / f"{3:020}.json").write_text(stale.lines())
    assert [found.owner for found in StateTable(str(folder)).view("flights").open] == ["run"]


def test_rows_that_no_longer_exist_make_the_outcome_unknown(cleaned, table, folder):
    for path in files(folder):
        path.unlink()
    with raises(OutcomeUnknown, "state-table-unreadable"):
        table.history("flights")


# ---- spooled rows


def test_spooled_rows_and_the_way_to_them_are_on_disk(tmp_path, monkeypatch):
    disk = Disk(tmp_path / "spool")
    monkeypatch.setattr(os, "fsync", disk.fsync)
    file = SpoolFile(str(tmp_path / "spool" / "flights" / "transaction"), 0)
    file.write(pa.RecordBatch.from_pylist([], schema=SPOOL_SCHEMA))
    file.close()
    assert disk.lost() == []


# ---- Delta targets


TXN = Transaction("id", "flights", "lake", 1, 1, "0123456789ab")


@pytest.fixture
def lake(folder, disk, monkeypatch) -> DeltaWriter:
    """Its rows are Arrow tables, which delta-rs stages in the place of Spark."""
    columns = Schema.from_json('{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}')
    monkeypatch.setattr(target_table, "open_or_create", lambda config, uri, rows: made(uri, columns))
    monkeypatch.setattr(schema, "check_rows", lambda *given: None)
    monkeypatch.setattr(schema, "check", lambda *given: schema.Change([], {}))
    monkeypatch.setattr(staged_table, "write", lambda uri, rows, *_: write_deltalake(uri, rows, mode="append"))
    return DeltaWriter(DeltaSink("lake", "lake"), str(folder), lambda: None)


def made(uri: str, schema: Schema) -> DeltaTable:
    return table_files.open_table(uri) or DeltaTable.create(uri, schema)


def rows_of_numbers():
    return pa.table({"n": [1, 2, 3]})


def test_what_is_staged_is_on_disk_before_its_handle_is_recorded(lake, disk):
    lake.stage(TXN, rows_of_numbers())
    assert disk.lost() == []


def test_a_publication_is_on_disk_before_it_is_recorded(lake, disk):
    handle = lake.stage(TXN, rows_of_numbers())
    assert not lake.commit(handle, 1, None).already
    assert disk.lost() == []


def test_so_is_one_that_another_process_did_not_live_to_record(lake, disk, folder):
    handle = lake.stage(TXN, rows_of_numbers())
    lake.commit(handle, 1, None)
    disk.told.clear()
    assert lake.commit(handle, 1, None).already
    assert disk.of(folder / "_delta_log" / f"{1:020}.json")
    assert disk.of(folder / "_delta_log")


def test_a_publication_that_may_not_be_on_disk_is_not_known(lake, disk):
    handle = lake.stage(TXN, rows_of_numbers())
    disk.broken = True
    with raises(OutcomeUnknown, "commit-unconfirmed"):
        lake.commit(handle, 1, None)


# ---- where nothing can be recorded


def test_a_folder_that_is_missing_may_be_made(tmp_path):
    durability.require_writable(tmp_path / "not" / "yet" / "there")


@pytest.mark.parametrize(("flags", "why"), [(os.ST_RDONLY, "is mounted read-only"), (0, "has no write permission")])
def test_a_folder_that_takes_nothing_is_refused_with_the_reason(tmp_path, monkeypatch, flags, why):
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    with raises(NotCommitted, "folder-not-writable") as refused:
        durability.require_writable(tmp_path / "home")
    assert str(tmp_path / "home") in refused.value.what
    assert why in refused.value.why and str(tmp_path) in refused.value.why


# ---- files


@pytest.fixture
def plain(folder) -> FileWriter:
    return FileWriter(FileSink("lake", "lake", "json"), str(folder))


def staged_files(sink: FileWriter, folder: Path) -> dict:
    data = folder.parent / f".{folder.name}.staged" / TXN.name / "data"
    data.mkdir(parents=True)
    (data / "part-0.jsonl").write_text("{}\n")
    described = filestage.prepare_files(sink.config, TXN, LocalFiles(), str(folder), str(data), 1)
    known = {"kind": "files", "target": str(folder), "format": "json", "txn": TXN.name, "folder": str(data)}
    found = {"manifest": manifest_path(TXN), "rows": 1, "bytes": 3, "files": [f.to_json() for f in described]}
    return known | found


def test_files_and_their_manifest_are_on_disk_before_it_is_recorded(plain, disk, folder):
    assert not plain.commit(staged_files(plain, folder), 1, None).already
    assert disk.lost() == []


@pytest.mark.parametrize("then", ["commit", "fence"])
def test_so_is_a_manifest_whose_writer_did_not_live_to_see_to_it(plain, disk, folder, monkeypatch, then):
    handle = staged_files(plain, folder)
    with monkeypatch.context() as patched:
        patched.setattr(LocalFiles, "sync_names", dies_at(folder / "_onceonly"))
        with pytest.raises(KeyboardInterrupt):
            plain.commit(handle, 1, None)
    assert disk.lost() == [str(folder / "_onceonly")]
    assert (plain.commit(handle, 1, None) if then == "commit" else plain.fence(handle, 1)).already
    assert disk.lost() == []


def dies_at(place: Path):
    inner = LocalFiles.sync_names

    def dying(self: LocalFiles, names: str) -> None:
        if names == str(place):
            raise KeyboardInterrupt
        inner(self, names)

    return dying
