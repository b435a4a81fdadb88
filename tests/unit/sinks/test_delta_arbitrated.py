"""Before the first commit to a table on an object store, it is tried whether of two writers one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from codes import raises
from unit.lightdelta import no_spark

from onceonly.delta import table_snapshot
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.sinks.delta import target_table
from onceonly.sinks.delta.sink import DeltaWriter
from onceonly.storage import arbitration

URI = "s3://lake/flights"


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tried, of stores on which all win."""
    found = list[str]()
    monkeypatch.setattr(arbitration, "_stores_that_passed", set())
    monkeypatch.setattr(arbitration, "_count_winners", lambda trial: found.append(trial) or 8)
    return found


def look(*app_ids: str) -> table_snapshot.TableSnapshot:
    return table_snapshot.TableSnapshot(URI, {}, dict.fromkeys(app_ids, 1), 3, None)


@pytest.mark.parametrize("table", [None, look(), look("another")])
def test_a_store_on_which_all_win_is_refused(tried: list[str], table: table_snapshot.TableSnapshot | None) -> None:
    with raises(InvalidPipeline, "store-not-arbitrating") as refused:
        target_table.require_exclusive_commits("lake", URI, table)
    assert len(str(refused.value).splitlines()) == 3
    assert len(tried) == 1


def test_a_table_that_was_published_to_is_not_tried_again(tried: list[str]) -> None:
    target_table.require_exclusive_commits("lake", URI, look("onceonly/5e1f/flights/lake"))
    assert tried == []


@pytest.mark.parametrize("uri", ["/lake/flights", "file:///lake/flights", "hdfs://name/lake"])
def test_what_is_no_object_store_is_not_tried(tried: list[str], uri: str) -> None:
    target_table.require_exclusive_commits("lake", uri, None)
    assert tried == []


def test_where_delta_rs_takes_a_lock_nothing_is_tried(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    target_table.require_exclusive_commits("lake", URI, None)
    assert tried == []


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_S3_ALLOW_UNSAFE_RENAME", "true"), ("AWS_CONDITIONAL_PUT", "disabled")]
)
def test_settings_by_which_the_last_writer_wins_are_refused(
    tried: list[str], monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with raises(InvalidPipeline, "store-not-arbitrating") as refused:
        target_table.require_exclusive_commits("lake", URI, None)
    assert len(str(refused.value).splitlines()) == 3
    assert tried == []


def test_what_a_killed_trial_has_left_is_no_other_table(tmp_path: Path) -> None:
    (tmp_path / f"{arbitration.TRIAL_PREFIX}a" / "0.json").parent.mkdir()
    (tmp_path / f"{arbitration.TRIAL_PREFIX}a" / "0.json").write_text("1")
    target_table.refuse_foreign_folder("lake", str(tmp_path))


@pytest.mark.parametrize("way", ["check", "stage", "stage after a look"])
def test_whoever_is_going_to_write_has_it_tried(tried: list[str], monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    sink, rows = DeltaWriter(DeltaSink("lake", URI), URI, no_spark), object()
    monkeypatch.setattr(target_table, "open_existing", lambda *_: None)
    calls: dict[str, Any] = {"check": sink.check, "stage": lambda: sink.target(rows)}
    if way == "stage after a look":
        sink._newest_look = look()
    with raises(InvalidPipeline, "store-not-arbitrating"):
        calls[way.split()[0]]()
    assert len(tried) == 1
