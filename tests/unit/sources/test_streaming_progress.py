"""The checkpoint folder of a Structured Streaming query: how far it has come, and when nobody can tell."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import NoReturn

import pytest
from codes import raises
from unit.streaming_checkpoint import COMMIT, QUERY, write, write_checkpoint, write_offsets, write_starts

from onceonly.checkpoint.earlier_job import PlannedBatch, StreamingProgress
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.sources.streaming_progress import read_progress
from onceonly.storage.local import LocalFiles

BROKEN = "not-a-streaming-checkpoint"


def read(folder: Path) -> StreamingProgress:
    return read_progress(LocalFiles(), str(folder))


def test_idle_query_has_committed_all_that_it_planned(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=11, planned=11)
    progress = read(tmp_path)
    assert progress == StreamingProgress(str(tmp_path), QUERY, 11, {"flights": {0: 12}})


def test_killed_query_has_planned_one_more_batch(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=9, planned=10)
    progress = read(tmp_path)
    assert (progress.committed, progress.ends) == (9, {"flights": {0: 10}})
    assert progress.planned == PlannedBatch(10, {"flights": {0: 11}})


def test_first_batch_begins_where_its_sources_begin(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=None, planned=0)
    write_starts(tmp_path, {"flights": {0: 40, 1: 50}})
    progress = read(tmp_path)
    assert (progress.committed, progress.ends) == (None, {"flights": {0: 40, 1: 50}})
    assert progress.planned == PlannedBatch(0, {"flights": {0: 1}})


def test_all_topics_of_all_sources_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=0, planned=0)
    table = json.dumps({"sourceVersion": 1, "reservoirId": "a-b", "reservoirVersion": 7, "index": -1})
    topics = {"orders": {0: 5, 1: 6}, "refunds": {0: 7}}
    write_offsets(tmp_path, 0, topics, '{"logOffset":3}', "-", {"flights": {2: 9}}, table, "1795833674536")
    progress = read(tmp_path)
    assert (progress.ends, progress.other_sources) == ({**topics, "flights": {2: 9}}, 3)


def test_logs_that_were_cleaned_up_still_show_the_last_batches(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=150, planned=151)
    for batch in range(50):
        (tmp_path / "offsets" / str(batch)).unlink()
        (tmp_path / "commits" / str(batch)).unlink()
    assert read(tmp_path).committed == 150


def test_query_that_has_planned_nothing(tmp_path: Path) -> None:
    write_starts(tmp_path, {"flights": {0: 0}})
    with raises(InvalidPipeline, "nothing-to-adopt"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("committed", "planned"), [(None, 1), (3, 5), (3, 2)], ids=["no commit", "two batches", "a commit without a plan"]
)
def test_logs_that_do_not_fit_together_are_refused(tmp_path: Path, committed: int | None, planned: int) -> None:
    """Asynchronous progress tracking leaves such logs, and so does a copy that was made while the query ran."""
    write_checkpoint(tmp_path, committed=committed, planned=planned)
    if committed is not None:
        write(tmp_path / "commits" / str(committed), COMMIT)
    with raises(InvalidPipeline, "streaming-batch-unknown"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metadata", "{}"),
        ("metadata", "no JSON"),
        ("commits/1", ""),  # as a power cut leaves it
        ("offsets/1", ""),
        ("offsets/2", "v1\n"),
        ("offsets/2", "v2\n{}\n0:{}"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, file: str, text: str) -> None:
    write_checkpoint(tmp_path, committed=1, planned=2)
    (tmp_path / file).write_text(text)
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path)


@pytest.mark.parametrize("file", ["metadata", "offsets/1"])
def test_missing_files_are_refused(tmp_path: Path, file: str) -> None:
    write_checkpoint(tmp_path, committed=1, planned=2)
    (tmp_path / file).unlink()
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path)


def test_commits_without_offsets_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=0, planned=0)
    (tmp_path / "offsets" / "0").unlink()
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path)
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path / "nowhere")


def test_topic_that_is_read_twice_at_different_places_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, committed=0, planned=0)
    write_offsets(tmp_path, 0, {"flights": {0: 5}}, {"flights": {0: 5}})
    assert read(tmp_path).ends == {"flights": {0: 5}}
    write_offsets(tmp_path, 0, {"flights": {0: 5}}, {"flights": {0: 6}})
    with raises(InvalidPipeline, BROKEN):
        read(tmp_path)


def test_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    write_checkpoint(tmp_path, committed=0, planned=0)
    monkeypatch.setattr(LocalFiles, "list_names", refuse)
    with raises(NotCommitted, "source-inaccessible"):
        read(tmp_path)
