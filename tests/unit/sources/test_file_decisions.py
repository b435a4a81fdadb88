"""Which decisions of a folder of files are pinned, what is read of them, and what is refused before any work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.decisions import OTHER, STATE, Folder, minutes
from unit.lightfiles import SCHEMA, VALUE
from unit.versions import NOON

from onceonly.errors import InvalidPipeline, NotCommitted, SourceLost
from onceonly.pipeline.sources import FileSource
from onceonly.sources.files import FileReader
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import OwnPath

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """With three decisions."""
    made = Folder(tmp_path)
    for decision in (1, 2, 3):
        made.publish(decision, decision)
    return made


# ---- where it begins


@pytest.mark.parametrize(
    ("start", "pinned"),
    [("earliest", (0, 4)), ("latest", (4, 4)), (0, (0, 4)), (2, (2, 4)), (4, (4, 4)), (NOON, (2, 4))],
)
def test_it_begins_where_it_is_told(folder: Folder, start: Any, pinned: tuple[int, int]) -> None:
    for decision, minute in enumerate((-1, 0, 1), 1):
        folder.date(decision, minute)
    found = folder.pin(start=start)
    assert (found.partitions, found.kind, found.topic_id) == ({0: pinned}, "files", f"{STATE}-flights-lake")
    assert folder.numbers(found) == list(range(max(pinned[0], 1), pinned[1]))


def test_a_decision_that_is_not_there_is_no_start(folder: Folder) -> None:
    with raises(
        InvalidPipeline, "start-not-in-log", match="folder 'orders' cannot be read from partition 0 decision 5 on"
    ) as error:
        folder.pin(start=5)
    assert "it holds the decisions 0 to 3" in error.value.why


@pytest.mark.parametrize("start", [-1, True, 1.5, "yesterday", "2024-01-01T12:00:00"])
def test_what_is_no_place_in_a_folder(folder: Folder, start: Any) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        folder.pin(start=start)


def test_at_most_so_many_decisions(folder: Folder) -> None:
    assert folder.pin(max_decisions=2).partitions == {0: (0, 2)}
    with raises(InvalidPipeline, "option-invalid", match="max_decisions is 0"):
        folder.pin(max_decisions=0)


def test_decisions_may_have_gaps(folder: Folder) -> None:
    """Of checkpoints that gave up the sink, or that were replaced."""
    folder.publish(7, 7)
    assert folder.numbers(folder.pin()) == [1, 2, 3, 7]
    assert folder.numbers(folder.range(4, 7)) == []


# ---- intervals


def test_an_interval_holds_the_decisions_of_its_time(folder: Folder) -> None:
    for decision, minute in enumerate((0, 9.99, 10), 1):
        folder.date(decision, minute)
    assert folder.pin(minutes(0, 10)).partitions == {0: (1, 3)}
    assert folder.pin(minutes(10, 20)).partitions == {0: (3, 4)}
    assert folder.pin(minutes(20, 30)).partitions == {0: (4, 4)}


def test_where_times_go_backward_the_order_of_the_decisions_counts(folder: Folder) -> None:
    for decision, minute in enumerate((5, 15, 8), 1):
        folder.date(decision, minute)
    assert folder.pin(minutes(0, 10)).partitions == {0: (1, 2)}
    assert folder.pin(minutes(10, 20)).partitions == {0: (2, 4)}


def test_without_times_there_are_no_intervals(folder: Folder) -> None:
    folder.change(1, at=None)
    with raises(InvalidPipeline, "decision-without-time") as refused:
        folder.pin(minutes(0, 10))
    assert "start=DECISION" in refused.value.todo


def test_decision_of_the_future_is_no_boundary(folder: Folder) -> None:
    late = (datetime.now(UTC) + timedelta(days=1) - NOON).total_seconds() / 60
    for decision, minute in enumerate((-2, late, 12), 1):
        folder.date(decision, minute)
    pinned = folder.pin(minutes(-3, 10))
    assert (pinned.partitions, pinned.ahead) == ({0: (1, 3)}, 1)


# ---- whatever else lies there


def test_what_no_manifest_names_is_not_read(folder: Folder) -> None:
    stem = folder.file(1).name.removesuffix("-00000.jsonl")
    theirs = [
        "other.jsonl",
        f"{stem}-00001.jsonl",
        "day=1/a.jsonl",
        "_onceonly/notes.txt",
        "_onceonly/copy of 1.manifest",
    ]
    for name in theirs:
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text('{"value": 99}\n')
    (folder.path / "_onceonly" / "sub").mkdir()
    (folder.path / "_onceonly" / "folder.manifest").mkdir()
    folder.stage(4, 99)  # staged, and not published
    assert folder.numbers(folder.pin()) == [1, 2, 3]


FORGED: list[Callable[[Folder], Any]] = [
    lambda folder: folder.manifest(2).write_text("{"),
    lambda folder: folder.manifest(2).write_text("[]"),
    lambda folder: folder.manifest(2).write_bytes(b"\xff\xfe"),
    lambda folder: folder.manifest(2).write_text(folder.manifest(1).read_text()),
    lambda folder: folder.change(2, files=None),
    lambda folder: folder.change(2, decision="two"),
    lambda folder: folder.change(2, at="yesterday"),
    lambda folder: folder.change(2, schema="n LONG"),
    lambda folder: folder.change(2, schema={"fields": [{"name": "n"}]}),
    lambda folder: folder.change(2, files=[{"path": "../../victim", "bytes": 1}]),
    lambda folder: folder.change(2, files=[{"path": "/etc/passwd", "bytes": 1}]),
    lambda folder: folder.change(2, files=[{"path": folder.file(1).name, "bytes": 1}]),
    lambda folder: (folder.manifest(2).unlink(), folder.manifest(2).mkdir()),
]


@pytest.mark.parametrize("forge", FORGED)
def test_a_manifest_that_is_none_stops_it(folder: Folder, forge: Callable[[Folder], Any]) -> None:
    forge(folder)
    for asked in (folder.pin, folder.reader().check):
        with raises(SourceLost, "manifest-damaged") as refused:
            asked()
        assert folder.manifest(2).name in refused.value.why


# ---- published while it is listed


def test_what_is_published_amid_a_listing_is_not_passed_over(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing has gone past the place of decision 4 when that is published, and then comes to that of 5."""
    listing = LocalFiles.list_names

    def overtaken(self: LocalFiles, path: str) -> list[str]:
        monkeypatch.setattr(LocalFiles, "list_names", listing)
        before = self.list_names(path)
        folder.publish(4, 4)
        folder.publish(5, 5)
        return [*before, folder.manifest(5).name]

    monkeypatch.setattr(LocalFiles, "list_names", overtaken)
    assert [manifest.decision for manifest in folder.reader()._manifests()] == [1, 2, 3, 4, 5]


def test_what_is_read_of_it_is_on_disk(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a decision that a power failure takes back could come again as another one."""
    synced: list[str] = []
    monkeypatch.setattr(LocalFiles, "sync_names", lambda self, path: synced.append(path))
    folder.reader().log()
    assert synced == [f"{folder.uri}/_onceonly"]


# ---- taken back


def test_a_first_range_has_what_is_in_force(folder: Folder) -> None:
    """Also where an interval was processed again, where a sink was given up, and where its writer went back."""
    old = folder.publish(4, 4)
    folder.publish(5, 40, replaces=old)
    folder.sink.fence(folder.stage(6, 6), 6)
    held = folder.publish(7, 7)
    folder.go_back(8, held)
    assert folder.pin().partitions == {0: (0, 9)}
    assert folder.numbers(folder.pin()) == [1, 2, 3, 40]


def test_it_is_the_same_before_and_after_the_old_files_are_removed(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = folder.publish(4, 4)
    new = folder.stage(5, 40, replaces=old)
    with monkeypatch.context() as broken:
        broken.setattr(type(folder.sink), "_remove_replaced", lambda self, mine: None)
        folder.commit(new, 5)
    assert folder.manifest(4).exists()
    pinned = folder.pin()
    folder.commit(new, 5)
    assert not folder.manifest(4).exists()
    assert folder.numbers(pinned) == [1, 2, 3, 40]


@pytest.mark.parametrize("how", ["again", "back"])
def test_a_decision_that_takes_back_is_refused_by_number(folder: Folder, how: str) -> None:
    old = folder.publish(4, 4)
    read = folder.range(0, 5)
    folder.publish(5, 5)
    if how == "again":
        folder.publish(6, 40, replaces=old)
    else:
        folder.go_back(6, old)
    with raises(InvalidPipeline, "not-append-only", match="decision 6") as refused:
        folder.range(5, 7, read)
    assert "flights-lake-000004-01234567" in refused.value.why
    told = ["max_decisions=1", "--to 7", "after=['flights']"]
    assert [part for part in told if part not in refused.value.todo] == []
    assert folder.numbers(folder.range(5, 6, read)) == [5]
    folder.publish(7, 7)
    assert folder.numbers(folder.range(7, 8)) == [7]


def test_what_is_pinned_and_taken_back_is_not_read_in_part(folder: Folder) -> None:
    old = folder.publish(4, 4)
    pinned = folder.range(3, 5)
    folder.publish(5, 40, replaces=old)
    with raises(SourceLost, "source-retracted", match="3 to 4") as lost:
        folder.reader().verify((pinned,))
    assert "by decision 5" in lost.value.why


# ---- one writer


@pytest.mark.parametrize("other", [{"state": OTHER}, {"pipeline": "theirs"}])
def test_two_writers_have_no_order(folder: Folder, other: dict[str, str]) -> None:
    pinned = folder.pin()
    folder.publish(2, 99, **other)
    for asked in (folder.pin, folder.reader().check):
        with raises(InvalidPipeline, "folder-with-several-writers") as refused:
            asked()
        assert "pipeline 'flights' (state table 01234567)" in refused.value.why
    assert folder.numbers(pinned) == [1, 2, 3]  # it is clear what that is


# ---- what is not there, or not any more


@pytest.mark.parametrize("made", [False, True])
def test_nothing_was_published(tmp_path: Path, made: bool) -> None:
    folder = Folder(tmp_path)
    if made:
        folder.path.mkdir()
        (folder.path / "theirs.parquet").touch()
    for asked in (folder.reader().check, folder.pin):
        with raises(InvalidPipeline, "nothing-published"):
            asked()
    assert folder.path.exists() == made


def test_it_is_said_who_writes_it(folder: Folder) -> None:
    (note,) = folder.reader().check()
    assert note.startswith("folder 'orders' is there, at decision 3")
    assert "sink 'lake' of 'flights'" in note


def test_a_folder_that_was_replaced(folder: Folder) -> None:
    pinned = folder.pin()
    shutil.rmtree(folder.path)
    with raises(SourceLost, "source-replaced"):
        folder.reader().verify((pinned,))
    for decision in (1, 2, 3):
        folder.publish(decision, decision, state=OTHER)
    with raises(SourceLost, "source-replaced"):
        folder.reader().verify((pinned,))


def test_a_copy_that_ends_before_what_is_pinned(folder: Folder) -> None:
    pinned = folder.range(2, 4)
    folder.manifest(3).unlink()
    with raises(SourceLost, "source-replaced"):
        folder.reader().verify((pinned,))


def test_a_copy_to_which_was_published_since(folder: Folder) -> None:
    """The decisions are there again, and are others."""
    pinned = folder.range(2, 4)
    folder.manifest(3).unlink()
    folder.file(3).unlink()
    folder.publish(3, 30)
    folder.publish(4, 4)
    with raises(SourceLost, "source-replaced"):
        folder.reader().verify((pinned,))
    with raises(SourceLost, "source-replaced"):
        folder.range(4, 5, pinned)


def test_what_a_person_leaves_out_is_recognised_whether_it_can_be_read_or_not(folder: Folder) -> None:
    read = folder.range(2, 4)
    folder.publish(4, 40)
    folder.change(4, schema=None)
    with raises(InvalidPipeline, "columns-unknown", match="decision 4"):
        folder.range(4, 5, read)
    left_out = folder.reader().mark_left_out(replace(read, partitions={0: (4, 5)}, mark=None), read)
    folder.publish(5, 50)
    assert folder.range(5, 6, left_out).mark is not None
    folder.change(4, at="2024-01-01T00:00:00+00:00")
    with raises(SourceLost, "source-replaced"):
        folder.range(5, 6, left_out)


def test_what_comes_late_below_what_was_read_is_noticed(folder: Folder) -> None:
    """A sink was given up as one that no longer exists, and its process lives."""
    read = folder.range(0, 4)
    folder.publish(6, 6)
    later = folder.range(4, 7, read)
    folder.publish(5, 5)
    with raises(SourceLost, "source-replaced", match="decision 6"):
        folder.range(7, 7, later)


def test_what_was_read_and_taken_back_since_is_no_other_history(folder: Folder) -> None:
    """A person has left out the decision that did it; or it is still to come."""
    old = folder.publish(4, 4)
    read = folder.range(0, 5)
    folder.publish(5, 5)
    folder.publish(6, 40, replaces=old)
    assert folder.numbers(folder.range(5, 6, read)) == [5]


@pytest.mark.parametrize("how", ["removed", "cut", "a folder"])
def test_a_file_that_is_not_what_the_manifest_says(folder: Folder, how: str) -> None:
    pinned, whole, later = folder.range(2, 3), folder.pin(), folder.range(3, 4)
    folder.file(2).write_bytes(b"{")
    if how != "cut":
        folder.file(2).unlink()
    if how == "a folder":
        folder.file(2).mkdir()
    for range_ in (pinned, whole):
        with raises(SourceLost, "source-files-missing") as lost:
            folder.reader().verify((range_,))
        assert folder.file(2).name in lost.value.why
    folder.reader().verify((later,))


# ---- types


def fields(*more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": [VALUE, *more]}


def test_files_without_types_are_not_guessed(folder: Folder) -> None:
    folder.change(2, schema=None)
    asked = ((folder.pin, "max_decisions=2"), (lambda: folder.range(2, 3), "start=3"))
    for pin, advice in asked:  # the first range has unread files before it
        with raises(InvalidPipeline, "columns-unknown", match="decision 2") as refused:
            pin()
        assert (advice in refused.value.todo, "--to 3" in refused.value.todo) == (True, True)
    assert folder.numbers(folder.pin(start=3)) == [3]
    folder.change(3, schema=None)
    with raises(InvalidPipeline, "columns-unknown", match="decision 3"):
        folder.reader().check()


def test_a_column_has_one_type_in_a_range(folder: Folder) -> None:
    folder.publish(4, 4, schema={**SCHEMA, "fields": [{**VALUE, "type": "string"}]})
    with raises(InvalidPipeline, "column-type-changed", match="'value'") as refused:
        folder.pin()
    assert "long at decision 1 and string at decision 4" in refused.value.why
    assert "max_decisions=1" in refused.value.todo
    assert folder.numbers(folder.range(1, 4)) + folder.numbers(folder.range(4, 5)) == [1, 2, 3, 4]


def test_columns_may_come_and_go(folder: Folder) -> None:
    folder.publish(4, 4, schema=fields({**VALUE, "name": "more"}))
    assert folder.numbers(folder.pin()) == [1, 2, 3, 4]


def test_a_manifest_says_what_its_rows_are_and_when_they_came(folder: Folder) -> None:
    told = json.loads(folder.manifest(1).read_text())
    assert told["schema"] == SCHEMA
    assert abs(datetime.now(UTC) - datetime.fromisoformat(told["at"])) < timedelta(days=1)


# ---- the definition


def test_a_place_where_no_file_sink_publishes(tmp_path: Path) -> None:
    reader = FileReader(FileSource("swift://bucket/orders"), "swift://bucket/orders")
    with raises(InvalidPipeline, "storage-unsupported", match="swift://bucket/orders"):
        reader.log()


def test_storage_that_does_not_answer_is_said(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: LocalFiles, path: str) -> Iterable[str]:
        raise OSError("the disk is away")

    monkeypatch.setattr(LocalFiles, "list_names", broken)
    with raises(NotCommitted, "store-unreachable"):
        folder.pin()


def test_nothing_is_read_that_may_be_deleted(folder: Folder) -> None:
    """What a manifest may name is what a FileSink may remove."""
    files = [file for manifest in folder.reader()._manifests() for file in manifest.files]
    assert [OwnPath(folder.uri, file.path).name for file in files] == [file.path for file in files]
