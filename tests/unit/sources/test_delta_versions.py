"""Which versions of a Delta table are pinned, and which tables and ranges are refused before any work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from unit.versions import FEED, NOON, Table, minutes

from onceonly.delta import versions
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.sources import DeltaSource, source_json

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """With three versions."""
    made = Table(tmp_path)
    for number in (1, 2, 3):
        made.write(number)
    return made


# ---- where it begins


@pytest.mark.parametrize(
    ("start", "pinned"),
    [("earliest", (0, 3)), ("latest", (3, 3)), (0, (0, 3)), (2, (2, 3)), (3, (3, 3)), (NOON, (1, 3))],
)
def test_it_begins_where_it_is_told(table: Table, start: Any, pinned: tuple[int, int]) -> None:
    for version, minute in enumerate((-1, 0, 1)):
        table.date(version, minute)
    found = table.pin(start=start)
    assert (found.partitions, found.kind) == ({0: pinned}, "delta")
    table.reader().verify((found,))


def test_a_version_that_is_not_there_is_no_start(table: Table) -> None:
    with raises(
        InvalidPipeline, "start-not-in-log", match="table 'orders' cannot be read from partition 0 version 4 on"
    ) as refused:
        table.pin(start=4)
    assert "it holds the versions 0 to 2" in refused.value.why


@pytest.mark.parametrize("start", [-1, True, 1.5, "yesterday", "2024-01-01T12:00:00"])
def test_what_is_no_place_in_a_table(table: Table, start: Any) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        table.pin(start=start)


def test_at_most_so_many_versions(table: Table) -> None:
    assert table.pin(max_versions=2).partitions == {0: (0, 2)}


def test_a_log_that_was_cleaned_up_still_has_the_whole_table(table: Table) -> None:
    table.now.create_checkpoint()
    table.entry(0).unlink()
    table.entry(1).unlink()
    assert table.pin().partitions == {0: (0, 3)}
    with raises(SourceLost, "source-log-expired"):
        table.pin(start=1)


# ---- intervals


def test_an_interval_holds_the_versions_of_its_time(table: Table) -> None:
    for version, minute in enumerate((0, 9.99, 10)):
        table.date(version, minute)
    assert table.pin(minutes(0, 10)).partitions == {0: (0, 2)}
    assert table.pin(minutes(10, 20)).partitions == {0: (2, 3)}
    assert table.pin(minutes(20, 30)).partitions == {0: (3, 3)}


def test_where_times_go_backward_the_order_of_the_versions_counts(table: Table) -> None:
    for version, minute in enumerate((5, 15, 8)):
        table.date(version, minute)
    assert table.pin(minutes(0, 10)).partitions == {0: (0, 1)}
    assert table.pin(minutes(10, 20)).partitions == {0: (1, 3)}


def test_in_commit_timestamps_count_if_the_table_has_them(table: Table) -> None:
    for version, minute in enumerate((5, 6, 7)):
        table.date(version, 100)
        actions = table.actions(version)
        at = int((NOON + timedelta(minutes=minute)).timestamp() * 1000)
        told = [action for action in actions if "commitInfo" not in action]
        for action in told:
            if "metaData" in action:
                action["metaData"]["configuration"]["delta.enableInCommitTimestamps"] = "true"
            if "protocol" in action:
                action["protocol"] = {
                    "minReaderVersion": 1,
                    "minWriterVersion": 7,
                    "writerFeatures": ["inCommitTimestamp"],
                }
        table.rewrite(version, [{"commitInfo": {"inCommitTimestamp": at, "timestamp": 0, "operation": "WRITE"}}, *told])
    assert table.pin(minutes(6, 7)).partitions == {0: (1, 2)}


def test_a_time_that_the_log_no_longer_reaches_is_not_guessed(table: Table) -> None:
    for version, minute in enumerate((0, 10, 20)):
        table.date(version, minute)
    table.now.create_checkpoint()
    table.entry(0).unlink()
    with raises(SourceLost, "source-time-expired"):
        table.pin(minutes(5, 15))
    assert table.pin(minutes(15, 25)).partitions == {0: (2, 3)}


def test_version_of_the_future_is_no_boundary(table: Table) -> None:
    late = (datetime.now(UTC) + timedelta(days=1) - NOON).total_seconds() / 60
    for version, minute in enumerate((-2, late, 5)):
        table.date(version, minute)
    pinned = table.pin(minutes(0, 5))
    assert (pinned.partitions, pinned.ahead) == ({0: (2, 2)}, 0)
    table.write(4)
    table.date(3, 15)
    pinned = table.pin(minutes(-3, 10))
    assert (pinned.partitions, pinned.ahead) == ({0: (0, 3)}, 1)


def test_log_that_begins_in_the_future_is_not_guessed(table: Table) -> None:
    late = (datetime.now(UTC) + timedelta(days=1) - NOON).total_seconds() / 60
    for version, minute in enumerate((0, late, 20)):
        table.date(version, minute)
    table.now.create_checkpoint()
    table.entry(0).unlink()
    with raises(SourceLost, "source-time-expired"):
        table.pin(minutes(5, 15))
    assert table.pin(minutes(21, 25)).partitions == {0: (3, 3)}


# ---- what is appended


def test_rewritten_files_are_passed_over(table: Table) -> None:
    table.now.optimize.compact()
    table.write(4)
    (compacted, written) = versions.VersionLog(table.uri).versions([3, 4])
    assert (compacted.added, compacted.removed, len(written.added)) == ((), (), 1)
    found = table.range(1, table.end)
    table.reader().verify((found,))
    assert found.partitions == {0: (1, 5)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda table: table.now.delete("n = 2"), "DELETE"),
        (lambda table: table.now.update({"n": "n + 10"}, predicate="n = 2"), "UPDATE"),
        (lambda table: table.write(9, mode="overwrite"), "WRITE"),
        (lambda table: table.now.restore(0), "RESTORE"),
    ],
)
def test_a_version_that_does_more_than_append_is_refused_by_number(
    table: Table, change: Callable[[Table], Any], told: str
) -> None:
    change(table)
    with raises(InvalidPipeline, "not-append-only") as refused:
        table.range(2, 4)
    assert (told in refused.value.why, "changes=True" in refused.value.todo) == (True, True)
    assert ("max_versions=1" in refused.value.todo, "--to 4" in refused.value.todo) == (True, True)
    table.write(5)
    assert table.pin(start=4).partitions == {0: (4, 5)}


def list_added(table: Table, start: int, end: int) -> list[str]:
    """The files of a range of versions, as a reader that passes over deletions finds them."""
    pinned = table.range(start, end, ignore_deletes=True)
    reader = table.reader(ignore_deletes=True)
    reader.verify((pinned,))
    return [file.path for file in reader._list_files(pinned)]


def test_deletions_are_passed_over_where_that_is_said(table: Table) -> None:
    """One before, one between and one after the versions that add: of files as a whole, and of a part."""
    table.write(4, 5)
    table.now.delete("n = 5")
    table.write(6)
    table.now.delete("n = 6")
    table.write(7)
    added = {number: list_added(table, number, number + 1) for number in range(1, table.end)}
    assert {number: len(files) for number, files in added.items()} == {1: 1, 2: 1, 3: 1, 4: 0, 5: 1, 6: 0, 7: 1}
    assert "remove" in {kind for action in table.actions(4) for kind in action}
    for start in range(1, table.end):
        for end in range(start + 1, table.end + 1):
            assert list_added(table, start, end) == [path for number in range(start, end) for path in added[number]]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.now.update({"n": "n + 10"}, predicate="n = 2"),
        lambda table: table.write(9, mode="overwrite"),
        lambda table: table.now.restore(0),
        lambda table: merge_rows(table),
    ],
)
def test_all_else_is_refused_where_deletions_are_passed_over(table: Table, change: Callable[[Table], Any]) -> None:
    change(table)
    with raises(InvalidPipeline, "not-append-only"):
        table.range(2, 4, ignore_deletes=True)


def merge_rows(table: Table) -> None:
    """Another program adds rows and takes others out, in one version."""
    table.write(9)
    actions = [action for action in table.actions(3) if "commitInfo" not in action]
    (old,) = [action["add"]["path"] for action in table.actions(2) if "add" in action]
    removal = {"remove": {"path": old, "deletionTimestamp": 1, "dataChange": True}}
    table.rewrite(3, [{"commitInfo": {"operation": "MERGE"}}, *actions, removal])


def test_deletion_that_only_adds_is_read(table: Table) -> None:
    table.write(9)
    actions = [action for action in table.actions(3) if "commitInfo" not in action]
    table.rewrite(3, [{"commitInfo": {"operation": "DELETE"}}, *actions])
    assert len(list_added(table, 3, 4)) == 1, "it is read as what it does"


def test_refusal_of_a_deletion_names_the_way_to_pass_over_it(table: Table) -> None:
    table.now.delete("n = 2")
    with raises(InvalidPipeline, "not-append-only") as refused:
        table.range(3, 4)
    assert "ignore_deletes=True" in refused.value.todo


def test_deletions_are_changes_or_passed_over_and_not_both() -> None:
    with raises(InvalidPipeline, "options-conflict"):
        DeltaSource("orders", changes=True, ignore_deletes=True)
    stored = source_json(DeltaSource("orders"))
    assert "ignore_deletes" not in stored and source_json(DeltaSource("orders", ignore_deletes=True))["ignore_deletes"]


def test_rows_that_come_back_are_no_new_rows(table: Table) -> None:
    """A RESTORE may only add files: those of rows that were read before."""
    table.now.delete("n = 2")
    table.now.restore(2)
    assert not [action for action in table.actions(4) if "remove" in action]
    with raises(InvalidPipeline, "not-append-only"):
        table.range(4, 5)


# ---- the Change Data Feed


def test_a_feed_that_is_off_is_refused_before_any_work(table: Table) -> None:
    for refused in (lambda: table.pin(changes=True), table.reader(changes=True).check):
        with raises(InvalidPipeline, "change-feed-missing", match="has no Change Data Feed at version 2") as error:
            refused()
        assert "'delta.enableChangeDataFeed' = 'true'" in error.value.todo


def test_a_feed_that_was_off_in_a_pinned_version(table: Table) -> None:
    table.now.alter.set_table_properties(FEED)  # version 3
    table.write(5)
    table.now.alter.set_table_properties({**FEED, "delta.enableChangeDataFeed": "false"})  # version 5
    table.write(6)
    table.now.alter.set_table_properties(FEED)  # version 7
    assert table.range(3, 5, changes=True).partitions == {0: (3, 5)}
    assert table.range(7, 8, changes=True).partitions == {0: (7, 8)}
    assert table.range(0, 8, changes=True).partitions == {0: (0, 8)}  # the whole table, as of version 7
    with raises(InvalidPipeline, "change-feed-missing", match="no Change Data Feed at version 2"):
        table.range(2, 4, changes=True)
    with raises(InvalidPipeline, "change-feed-missing", match="no Change Data Feed at version 5"):
        table.range(4, 8, changes=True)


def test_changes_may_remove_rows(table: Table) -> None:
    table.now.alter.set_table_properties(FEED)
    table.now.delete("n = 2")
    found = table.range(4, 5, changes=True)
    table.reader(changes=True).verify((found,))


# ---- what is not there, or not any more


@pytest.mark.parametrize("made", [False, True])
def test_no_table(tmp_path: Path, made: bool) -> None:
    table = Table(tmp_path)
    if made:
        Path(table.uri).mkdir()
    for asked in (table.reader().check, table.pin):
        with raises(InvalidPipeline, "source-missing"):
            asked()
    assert Path(table.uri).exists() == made


def test_a_table_that_was_replaced(table: Table) -> None:
    pinned = table.pin()
    shutil.rmtree(table.uri)
    with raises(SourceLost, "source-missing"):
        table.reader().verify((pinned,))
    for number in (1, 2, 3):
        table.write(number)
    with raises(SourceLost, "source-recreated"):
        table.reader().verify((pinned,))


def test_a_table_that_was_replaced_within_its_log(table: Table) -> None:
    pinned = table.pin()
    metadata = next(action for action in table.actions(0) if "metaData" in action)
    metadata["metaData"]["id"] = "another"
    table.rewrite(3, [metadata])
    with raises(SourceLost, "source-recreated"):
        table.reader().verify((pinned,))
    with raises(SourceLost, "source-replaced"):
        table.pin(max_versions=2)  # of the table that was there before


def test_files_that_a_vacuum_took(table: Table) -> None:
    pinned, whole = table.range(1, 3), table.pin()
    table.now.optimize.compact()
    table.reader().verify((pinned, whole))
    table.now.vacuum(0, dry_run=False, enforce_retention_duration=False)
    for range_ in (pinned, whole):
        with raises(SourceLost, "source-files-missing") as lost:
            table.reader().verify((range_,))
        assert "VACUUM" in lost.value.why


def test_a_file_that_is_cut(table: Table) -> None:
    pinned = table.range(1, 3)
    name = next(action["add"]["path"] for action in table.actions(2) if "add" in action)
    Path(table.uri, name).write_bytes(b"PAR1")
    with raises(SourceLost, "source-files-missing"):
        table.reader().verify((pinned,))


def test_a_log_entry_that_was_cleaned_up(table: Table) -> None:
    pinned = table.range(1, 3)
    DeltaTable(table.uri, version=1).create_checkpoint()
    table.entry(0).unlink()
    table.entry(1).unlink()
    with raises(SourceLost, "source-log-expired"):
        table.reader().verify((pinned,))


def test_a_copy_that_ends_before_what_is_pinned(table: Table) -> None:
    pinned = table.range(1, 3)
    table.entry(2).unlink()
    with raises(SourceLost, "source-replaced"):
        table.reader().verify((pinned,))


def test_a_copy_that_others_have_written_to(table: Table) -> None:
    """The versions are there again, and are others."""
    pinned = table.range(1, 3)
    table.entry(2).unlink()
    table.write(30)
    table.write(40)
    with raises(SourceLost, "source-replaced"):
        table.reader().verify((pinned,))
    with raises(SourceLost, "source-replaced"):
        table.range(3, 4, previous=pinned)


def test_an_entry_that_was_read_and_cleaned_up_since_is_no_loss(table: Table) -> None:
    read = table.range(1, 2)
    table.write(4)
    table.now.create_checkpoint()
    table.entry(1).unlink()
    assert table.range(2, 4, previous=read).partitions == {0: (2, 4)}


# ---- what is not supported


def with_protocol(table: Table, feature: str, **settings: str) -> None:
    told = table.actions(0)
    for action in told:
        if "protocol" in action:
            names = {"readerFeatures": [feature], "writerFeatures": [feature]}
            action["protocol"] = {"minReaderVersion": 3, "minWriterVersion": 7, **names}
        if "metaData" in action:
            action["metaData"]["configuration"] |= settings
    table.rewrite(0, told)


@pytest.mark.parametrize(
    ("feature", "code"),
    [
        ("typeWidening", "source-unsupported"),
        ("variantType", "source-unsupported"),
        ("nobodyKnows", "table-unreadable"),
    ],
)
def test_features_that_change_what_a_file_means(table: Table, code: str, feature: str) -> None:
    with_protocol(table, feature)
    for asked in (table.pin, table.reader().check):
        with raises(InvalidPipeline, code, match="table 'orders' cannot be") as refused:
            asked()
        assert feature in refused.value.why


def test_column_mapping(table: Table) -> None:
    with_protocol(table, "columnMapping", **{"delta.columnMapping.mode": "name"})
    told = table.actions(0)
    for action in told:
        if "metaData" in action:
            schema = json.loads(action["metaData"]["schemaString"])
            for number, field in enumerate(schema["fields"], 1):
                field["metadata"] = {
                    "delta.columnMapping.id": number,
                    "delta.columnMapping.physicalName": field["name"],
                }
            action["metaData"]["schemaString"] = json.dumps(schema)
    table.rewrite(0, told)
    with pytest.raises(InvalidPipeline) as refused:
        table.pin()
    assert "column mapping" in refused.value.why


def test_features_that_do_not_matter(table: Table) -> None:
    with_protocol(table, "deletionVectors")
    assert table.pin().partitions == {0: (0, 3)}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"path": "s3://elsewhere/part.parquet"}, "outside of the table's folder"),
        ({"deletionVector": {"storageType": "u", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}}, "hide"),
    ],
)
def test_files_that_are_not_what_they_seem(table: Table, change: dict[str, Any], told: str) -> None:
    actions = table.actions(2)
    for action in actions:
        if "add" in action:
            action["add"] |= change
    table.rewrite(2, actions)
    with pytest.raises(InvalidPipeline) as refused:
        table.range(1, 3)
    assert told in refused.value.why


def test_a_whole_table_with_files_of_another_one(table: Table) -> None:
    """As a shallow clone has them: refused when it is planned, not when it is read."""
    actions = table.actions(0)
    for action in actions:
        if "add" in action:
            action["add"]["path"] = "file:///elsewhere/part.parquet"
    table.rewrite(0, actions)
    with raises(InvalidPipeline, "source-unsupported") as refused:
        table.pin()
    assert "shallow clone" in refused.value.why


def redefined(table: Table, mode: str) -> list[dict[str, Any]]:
    """Of a version that switches column mapping on or off."""
    schema = json.loads(table.now.schema().to_json())
    for number, field in enumerate(schema["fields"], 1):
        field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": field["name"]}
    metadata = next(action for action in table.actions(0) if "metaData" in action)["metaData"]
    settings = {"delta.columnMapping.mode": mode}
    feature = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
    return [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"metaData": {**metadata, "schemaString": json.dumps(schema), "configuration": settings}},
    ]


def test_a_table_that_was_another_one_within_the_range(table: Table) -> None:
    """Its files have columns of other names, which would be null."""
    whole = table.actions(2)
    table.rewrite(2, redefined(table, "name"))
    table.rewrite(3, whole)
    table.rewrite(4, redefined(table, "none"))
    with raises(InvalidPipeline, "source-unsupported") as refused:
        table.range(2, 5)
    assert "column mapping" in refused.value.why
    assert table.range(4, 5).partitions == {0: (4, 5)}


def test_an_empty_text_of_a_partition_is_null(table: Table) -> None:
    """So Delta's protocol says; some writers put it that way."""
    actions = table.actions(2)
    for action in actions:
        if "add" in action:
            action["add"]["partitionValues"] = {"day": ""}
    table.rewrite(2, actions)
    ((file,),) = [version.added for version in versions.VersionLog(table.uri).versions([2])]
    assert file.values == {"day": None}
