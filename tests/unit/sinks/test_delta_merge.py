"""Changes merged into a table: the newest of each key, once, in whatever order, beside other writers."""

from __future__ import annotations

import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pytest
from codes import raises
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError
from unit.lightdelta import LightMerge, no_spark, transaction

from onceonly.checkpoint.model import Handle
from onceonly.delta import commits, table_files, table_snapshot, txn_identifiers
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.delta import merge, staged_table
from onceonly.sinks.delta import sink as delta
from onceonly.storage import durability
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.slow

RECEIPTS = FakeReceipts(Path("none"))  # a Delta sink never replaces a handle
Change = tuple[int, int, str, str]  # key, order, text, day


@pytest.fixture
def lake(tmp_path: Path) -> LightMerge:
    return LightMerge(tmp_path / "lake")


def change(key: int, order: int, day: str = "") -> Change:
    return key, order, f"{key}@{order}", day


def publish(lake: LightMerge, epoch: int, *changes: Change, decision: int | None = None) -> dict[str, Any]:
    return dict(commit(lake, lake.stage(transaction(epoch), changes), decision or epoch))


def commit(lake: LightMerge, handle: Handle, decision: int) -> Any:
    return lake.commit(handle, decision, RECEIPTS).detail


def content(*changes: Change) -> dict[int, tuple[int, str]]:
    return {key: (order, text) for key, order, text, _ in changes}


def test_the_newest_change_of_each_key_is_the_row(lake: LightMerge) -> None:
    first = publish(lake, 1, change(1, 5), change(2, 5), change(3, 5))
    second = publish(lake, 2, change(2, 9), change(3, 4), change(4, 1))
    assert lake.content() == content(change(1, 5), change(2, 9), change(3, 5), change(4, 1))
    assert first == {"rows": 3, "inserted": 3, "updated": 0, "older": 0, "rewritten": 0}
    assert second == {"rows": 3, "inserted": 1, "updated": 1, "older": 1, "rewritten": 1}


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_checkpoints_in_any_order_lead_to_the_same_table(lake: LightMerge, order: tuple[int, ...]) -> None:
    batches = [[change(1, 1), change(2, 1)], [change(1, 3)], [change(1, 2), change(3, 2)], [change(3, 1)]]
    for decision, number in enumerate(order, 1):
        publish(lake, number + 1, *batches[number], decision=decision)
    assert lake.content() == content(change(1, 3), change(2, 1), change(3, 2))


def test_a_change_with_the_order_of_the_row_has_no_effect(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 5))
    publish(lake, 2, (1, 5, "another", ""))
    assert lake.content() == content(change(1, 5))


def test_older_changes_rewrite_nothing_and_leave_the_evidence(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 5))
    files = table_files.list_active_files(DeltaTable(lake.uri))
    handle = lake.stage(transaction(2), [change(1, 4)])
    assert commit(lake, handle, 2)["older"] == 1
    assert table_files.list_active_files(DeltaTable(lake.uri)) == files
    assert lake.commit(handle, 2, RECEIPTS).already


def test_files_without_a_changed_key_are_not_rewritten(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 1), change(3, 1))
    publish(lake, 2, change(2, 1), change(4, 1))
    before = table_files.list_active_files(DeltaTable(lake.uri))
    assert publish(lake, 3, change(2, 2))["rewritten"] == 1
    assert len(before.keys() & table_files.list_active_files(DeltaTable(lake.uri)).keys()) == 1


def test_files_and_partitions_that_cannot_hold_a_key_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = Merge(keys=["n", "day"], order_by=["at"])
    lake = LightMerge(tmp_path / "lake", partition_by=["day"], merge=keys)
    publish(lake, 1, change(1, 1, "a b"), change(2, 1, "c/d%"), change(3, 1, "e"), change(9, 1, "e"))
    read: list[str] = []
    inner = merge._batches
    monkeypatch.setattr(merge, "_batches", lambda part, *more: read.append(part.path) or inner(part, *more))  # type: ignore[func-returns-value]
    detail = publish(lake, 2, change(1, 2, "a b"), change(2, 2, "c/d%"), change(7, 1, "f"))
    assert (detail["updated"], detail["inserted"]) == (2, 1)
    assert len(set(read)) == 2
    assert lake.content() == content(change(1, 2), change(2, 2), change(3, 1), change(7, 1), change(9, 1))


def test_a_process_that_ends_after_a_merge_is_not_aborted_by_a_thread_that_reads(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's threads release what they read by while the interpreter ends: that must be no Python object."""
    systems: list[str] = []
    read = merge._dataset
    monkeypatch.setattr(merge, "_dataset", lambda table: (opened := read(table), systems.append(_base(opened)))[0])
    publish(lake, 1, change(1, 1))
    publish(lake, 2, change(1, 2))
    assert systems and set(systems) == {"local"}


def _base(dataset: ds.FileSystemDataset) -> str:
    """Return what kind of file system the dataset's folder lies in."""
    folder = dataset.filesystem
    assert isinstance(folder, pafs.SubTreeFileSystem)
    return str(folder.base_fs.type_name)


def test_a_row_moves_to_another_partition(tmp_path: Path) -> None:
    lake = LightMerge(tmp_path / "lake", partition_by=["day"])
    publish(lake, 1, change(1, 1, "a b"), change(2, 1, "a b"))
    publish(lake, 2, change(1, 2, "c/d%"))
    assert lake.content() == content(change(1, 2), change(2, 1))
    days = {row["n"]: row["day"] for row in DeltaTable(lake.uri).to_pyarrow_table().to_pylist()}
    assert days == {1: "c/d%", 2: "a b"}


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "tinyint": (pa.int8(), [-1, 2, 3]),
    "decimal": (pa.decimal128(38, 6), [Decimal("1.000001"), Decimal("2.5"), Decimal(10) ** 20]),
    "text": (pa.string(), ["é", "e" * 100 + "1", "e" * 100 + "2"]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(1900, 1, 1), date(2013, 1, 1), date(2262, 1, 1)]),
    "time": (pa.timestamp("us", "UTC"), [datetime(2013, 1, 1, 0, 0, 0, 999_999 - n, tzinfo=UTC) for n in range(3)]),
    "local": (pa.timestamp("us"), [datetime(2013, 1, 1, 0, 0, 0, 1 + n) for n in range(3)]),
}


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_each_type_are_told_apart(tmp_path: Path, kind: str, partitioned: bool) -> None:
    """Also where the table is partitioned by them, and where statistics of files are rounded or shortened."""
    by, (type_, keys) = ["key"] if partitioned else [], KEYS[kind]
    config = DeltaSink("lake", str(tmp_path / "lake"), partition_by=by, merge=Merge(["key"], ["at"]))
    sink = delta.DeltaWriter(config, config.path, no_spark)
    for at, changed in enumerate([keys, keys[1:2], keys[:1]], 1):
        rows = pa.table({"key": pa.array(changed, type_), "at": [at] * len(changed)})
        if at == 1:
            write_deltalake(config.path, rows, partition_by=by)
            continue
        target, txn = DeltaTable(config.path), transaction(at)
        folder = txn_identifiers.STAGED_PREFIX + txn.name
        write_deltalake(staged_table.create(target, folder, True, [], {}), rows, mode="append")
        handle = {
            "table_id": target.metadata().id,
            "fingerprint": table_snapshot.fingerprint(target),
            "app_id": txn.app_id,
        }
        handle |= {"uri": config.path, "folder": folder, "added": [], "publish": "delta-rs", "files": 1, "rows": 1}
        sink.commit({**handle, "merge": {"keys": ["key"], "order_by": ["at"]}}, at, RECEIPTS)
    found = {row["key"]: row["at"] for row in DeltaTable(config.path).to_pyarrow_table().to_pylist()}
    assert found == dict(zip(keys, [3, 2, 1], strict=False))


def test_order_by_several_columns_compares_the_first_that_differ(tmp_path: Path) -> None:
    lake = LightMerge(tmp_path / "lake", merge=Merge(keys=["n"], order_by=["at", "text"]))
    for epoch, row in enumerate([(1, 2, "b", ""), (1, 1, "z", ""), (1, 2, "a", "")], 1):
        publish(lake, epoch, row)
        assert lake.content() == {1: (2, "b")}
    publish(lake, 4, (1, 2, "c", ""))
    assert lake.content() == {1: (2, "c")}


def test_a_row_without_an_order_that_another_writer_left_gives_way(lake: LightMerge) -> None:
    publish(lake, 1)
    append(lake, [1, 2], order=None)
    publish(lake, 2, change(1, 1))
    assert lake.content() == {**content(change(1, 1)), 2: (None, "foreign")}


def test_rows_of_one_key_that_another_writer_left_give_way_together(lake: LightMerge) -> None:
    publish(lake, 1)
    append(lake, [1, 1])
    append(lake, [1, 7])
    publish(lake, 2, change(1, 50))
    assert lake.content() == {1: (50, "1@50"), 7: (3, "foreign")}


# ---- beside other writers


def append(lake: LightMerge, keys: list[int], order: int | None = 3) -> None:
    rows = {"n": keys, "at": pa.array([order] * len(keys), pa.int64()), "text": ["foreign"] * len(keys)}
    write_deltalake(lake.uri, pa.table({**rows, "day": [""] * len(keys)}), mode="append")


@pytest.mark.parametrize(
    ("beside", "leaves"),
    [
        (lambda lake: append(lake, [8]), {**content(change(1, 2), change(2, 1), change(5, 1)), 8: (3, "foreign")}),
        (lambda lake: append(lake, [5]), {**content(change(1, 2), change(2, 1)), 5: (3, "foreign")}),
        (lambda lake: DeltaTable(lake.uri).optimize.compact(), content(change(1, 2), change(2, 1), change(5, 1))),
        (lambda lake: DeltaTable(lake.uri).delete("n = 2"), content(change(1, 2), change(5, 1))),
    ],
)
def test_what_another_writer_commits_between_the_look_and_the_commit_is_merged_with(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch, beside: Any, leaves: dict[int, Any]
) -> None:
    publish(lake, 1, change(1, 1))
    publish(lake, 2, change(2, 1))
    handle, inner, looked = lake.stage(transaction(3), [change(1, 2), change(5, 1)]), merge.compute, []

    def compute(*arguments: Any) -> Any:
        merged = inner(*arguments)
        if not looked:
            beside(lake)
        looked.append(1)
        return merged

    monkeypatch.setattr(merge, "compute", compute)
    commit(lake, handle, 3)
    assert len(looked) == 2
    assert lake.content() == leaves


def test_a_try_after_another_writer_reads_and_copies_only_what_is_new(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lake, 1, change(1, 1), change(2, 1))
    handle, looked, written, tries = lake.stage(transaction(2), [change(1, 2), change(3, 1)]), [], [], []
    look, write, commit_ = merge._match_changes, merge._write, commits.commit_entry

    def commit_files(*given: Any, **more: Any) -> None:
        tries.append(1)
        if len(tries) < 4:  # of the second one, a key that the changes have
            append(lake, [3 if len(tries) == 2 else 10 + len(tries)])
        commit_(*given, **more)

    monkeypatch.setattr(merge, "_match_changes", lambda *given: looked.append(1) or look(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(merge, "_write", lambda *given: written.append(1) or write(*given))  # type: ignore[func-returns-value]
    monkeypatch.setattr(commits, "commit_entry", commit_files)
    assert commit(lake, handle, 2)["older"] == 1
    foreign = {key: (3, "foreign") for key in (3, 11, 13)}
    assert lake.content() == content(change(1, 2), change(2, 1)) | foreign
    assert (len(tries), len(written)) == (4, 2)
    assert len(looked) == 2, "the file that was there, and that of the append with a key in the range of the changes"


def test_an_insert_alone_is_not_committed_beside_an_insert_of_the_same_key(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is removed, so delta-rs would accept both."""
    publish(lake, 1)
    mine, others = lake.stage(transaction(2), [change(1, 1)]), lake.stage(transaction(3), [change(1, 2)])
    inner = merge.compute

    def compute(*arguments: Any) -> Any:
        merged = inner(*arguments)
        monkeypatch.setattr(merge, "compute", inner)
        commit(lake, {**others, "app_id": f"{others['app_id']}_other"}, 1)
        return merged

    monkeypatch.setattr(merge, "compute", compute)
    assert commit(lake, mine, 2)["older"] == 1
    assert lake.content() == content(change(1, 2))


def test_other_writers_that_never_pause_are_an_outcome_to_try_again(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lake, 1, change(1, 1))
    handle, inner, tries = lake.stage(transaction(2), [change(1, 2)]), merge.compute, []

    def compute(*arguments: Any) -> Any:
        merged = inner(*arguments)
        tries.append(1)
        append(lake, [len(tries) + 10])
        return merged

    monkeypatch.setattr(merge, "compute", compute)
    with raises(OutcomeUnknown, "commit-unconfirmed", match=r"20 commits in a row conflicted.*Pause them"):
        commit(lake, handle, 2)
    assert len(tries) == delta.MAX_COMMIT_ATTEMPTS
    monkeypatch.setattr(merge, "compute", inner)
    commit(lake, handle, 2)
    assert lake.content()[1] == (2, "1@2")


def merge_into(folder: str, handle: Handle) -> bool:
    lake = LightMerge(Path(folder))
    return lake.commit(handle, 2, RECEIPTS).already


def test_one_merge_by_several_processes_has_one_effect(lake: LightMerge) -> None:
    publish(lake, 1, *(change(key, 1) for key in range(100)))
    handle = lake.stage(transaction(2), [change(key, 2) for key in range(50, 150)])
    with ProcessPoolExecutor(3, multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(merge_into, [lake.uri] * 3, [handle] * 3))
    assert sorted(done) == [False, True, True]
    assert DeltaTable(lake.uri).version() == 2
    assert lake.content() == content(*(change(key, 2 if key >= 50 else 1) for key in range(150)))


# ---- interrupted


@pytest.mark.parametrize(
    ("module", "step"),
    [(staged_table, "create"), (staged_table, "read_adds"), (table_files, "sync_to_disk"), (table_files, "to_removes")],
)
def test_a_merge_that_dies_at_any_step_is_repeated(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch, module: ModuleType, step: str
) -> None:
    publish(lake, 1, change(1, 1), change(2, 1))
    handle = lake.stage(transaction(2), [change(1, 2)])
    for after in (False, True):
        inner, died = getattr(module, step), []

        def dying(*arguments: Any, _inner: Any = inner, _after: bool = after, _died: Any = died, **more: Any) -> Any:
            if _after:
                _inner(*arguments, **more)
            _died.append(1)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(module, step, dying)
            with pytest.raises(KeyboardInterrupt):
                commit(lake, handle, 2)
        assert died
    commit(lake, handle, 2)
    assert lake.content() == content(change(1, 2), change(2, 1))


def test_what_others_publish_between_the_attempts_is_not_lost(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 1))
    handle = lake.stage(transaction(2), [change(1, 2)])
    commit(lake, handle, 2)
    append(lake, [9])
    assert lake.commit(handle, 2, RECEIPTS).already
    assert lake.content() == {1: (2, "1@2"), 9: (3, "foreign")}


def test_after_the_outcome_a_merge_leaves_no_logs_beside_its_copies(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 1), change(2, 1))
    publish(lake, 2, change(1, 2))
    for epoch in (1, 2):
        lake.release(transaction(epoch))
    logs = [path.parent for path in Path(lake.uri).rglob("_delta_log")]
    assert logs == [Path(lake.uri)]
    assert lake.content() == content(change(1, 2), change(2, 1))
    assert lake.leftovers(transaction().prefix) == []


def test_a_full_vacuum_deletes_copies_that_were_not_committed(
    lake: LightMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(lake, 1, change(1, 1), change(2, 1))
    handle = lake.stage(transaction(2), [change(1, 2)])
    with monkeypatch.context() as patch:
        patch.setattr(table_files, "to_removes", lambda files: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            commit(lake, handle, 2)
    commit(lake, handle, 2)
    for epoch in (1, 2):
        lake.release(transaction(epoch))
    copies = set(Path(lake.uri).glob(f"*/{staged_table.COPY_PREFIX}*/*.parquet"))
    DeltaTable(lake.uri).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    assert len(copies) == 2 and len(set(Path(lake.uri).rglob("*.parquet")) & copies) == 1
    assert lake.content() == content(change(1, 2), change(2, 1))


def test_copies_are_on_disk_before_the_entry_that_names_them(lake: LightMerge, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(lake, 1, change(1, 1), change(2, 1))
    handle, events = lake.stage(transaction(2), [change(1, 2)]), []
    synced, committed = durability.sync_tree, commits.commit_entry

    def sync_tree(folder: Path) -> None:
        synced(folder)
        events.append("disk" if staged_table.COPY_PREFIX in folder.name and any(folder.glob("*.parquet")) else "other")

    monkeypatch.setattr(durability, "sync_tree", sync_tree)
    monkeypatch.setattr(
        commits, "commit_entry", lambda *given, **more: events.append("entry") or committed(*given, **more)
    )
    commit(lake, handle, 2)
    assert events == ["disk", "entry"]


@pytest.mark.parametrize("properties", [{}, {"delta.enableChangeDataFeed": "true"}])
def test_a_table_with_constraints_is_merged_into(lake: LightMerge, properties: dict[str, str]) -> None:
    """Copies are of rows that the table has, so its constraints are not applied again: delta-rs may not know them."""
    publish(lake, 1, change(1, 1), change(2, 1))
    DeltaTable(lake.uri).alter.add_constraint({"low": "at < 1000"})
    if properties:
        DeltaTable(lake.uri).alter.set_table_properties(properties)
    publish(lake, 2, change(1, 2), change(3, 1))
    assert lake.content() == content(change(1, 2), change(2, 1), change(3, 1))


# ---- refused


def test_changes_for_a_table_that_was_altered_are_refused_and_kept(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 1))
    handle = lake.stage(transaction(2), [change(1, 2)])
    DeltaTable(lake.uri).alter.add_constraint({"low": "at < 1000"})
    with raises(CannotPublish, "staged-rows-refused") as refused:
        commit(lake, handle, 2)
    assert "--give-up" in refused.value.todo
    assert lake.content() == content(change(1, 1))


@pytest.mark.parametrize("setting", ["delta.appendOnly", "delta.enableDeletionVectors"])
def test_a_table_in_which_rows_cannot_be_replaced_is_refused(lake: LightMerge, setting: str) -> None:
    publish(lake, 1, change(1, 1))
    handle = lake.stage(transaction(2), [change(1, 2)])
    DeltaTable(lake.uri).alter.set_table_properties({setting: "true"})
    with raises(InvalidPipeline, "rows-not-replaceable"):
        lake.check()
    before = table_files.list_active_files(DeltaTable(lake.uri))
    with pytest.raises(CannotPublish):
        commit(lake, handle, 2)
    assert table_files.list_active_files(DeltaTable(lake.uri)) == before


def test_a_table_without_the_columns_is_refused(tmp_path: Path) -> None:
    publish(LightMerge(tmp_path / "lake"), 1, change(1, 1))
    config = DeltaSink("lake", str(tmp_path / "lake"), merge=Merge(["id"], ["at"], "gone"))
    with raises(InvalidPipeline, "rows-not-replaceable"):
        delta.DeltaWriter(config, str(tmp_path / "lake"), no_spark).check()


def test_an_empty_text_by_which_the_table_is_partitioned_is_no_key(tmp_path: Path) -> None:
    """Delta has null there: each change of that key would add a row."""
    keys = Merge(keys=["n", "day"], order_by=["at"])
    lake = LightMerge(tmp_path / "lake", partition_by=["day"], merge=keys)
    publish(lake, 1, change(1, 1, "mon"))
    with raises(InvalidPipeline, "merge-partition-value") as refused:
        lake.stage(transaction(2), [change(1, 2, "")])
    assert "'day' is an empty string" in refused.value.why


def test_what_was_merged_is_not_taken_back(lake: LightMerge) -> None:
    old = lake.stage(transaction(1), [change(1, 1)])
    commit(lake, old, 1)
    with raises(InvalidPipeline, "published-rows-fixed"):
        lake.check_replace(old)
    with raises(InvalidPipeline, "rows-not-retractable"):
        lake.retraction(transaction(2), [old], None)
    assert lake.content() == content(change(1, 1))


def test_from_a_stale_snapshot_not_even_the_evidence_is_committed(lake: LightMerge) -> None:
    publish(lake, 1, change(1, 1))
    stale = DeltaTable(lake.uri)
    append(lake, [9])
    with pytest.raises(CommitFailedError):
        commits.commit_entry(stale, [], [], "onceonly/s/p/k", 1 << 32, exactly_next=True)
