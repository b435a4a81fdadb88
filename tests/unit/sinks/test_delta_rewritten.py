"""The rows of one checkpoint go out, and no others, after somebody has rewritten the files that they were in."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from codes import raises
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from unit.lightdelta import STATE, LightDelta, transaction
from unit.sinks.test_delta_altered import vector

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import active_adds, commits, log_files, txn_identifiers
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.sinks.delta import lineage, replacement
from onceonly.sinks.delta.handle import DeltaHandle

pytestmark = pytest.mark.slow

NEVER: Any = None
COLUMN = "published_by"


class Rewritten(LightDelta):
    """Rows are numbers, and the day of each is its tens."""

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        numbers = list(rows)
        days = pa.array([str(number // 10) if number >= 0 else None for number in numbers], pa.string())
        return super().rows(txn, numbers).append_column("day", days)

    def publish(self, epoch: int, *rows: int, **more: Any) -> Handle:
        handle = {**self.stage(transaction(epoch), rows), **more}
        handle = json.loads(json.dumps(handle))
        self.commit(self.rehearse(handle, epoch), epoch, NEVER)
        return handle

    def replace(self, old: Handle, epoch: int, *rows: int) -> Handle:
        self.check_replace(old)
        return self.publish(epoch, *rows, replaces=old)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.uri)

    def optimize(self) -> None:
        made = self.delta.optimize.compact()
        assert made["numFilesRemoved"] > 1

    def read(self) -> list[dict[str, Any]]:
        """As delta-rs's engine reads them, which knows deletion vectors."""
        found = QueryBuilder().register("lake", self.delta).execute("SELECT * FROM lake")
        return list(pa.table(found.read_all()).to_pylist())

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.read())

    def files(self) -> set[str]:
        return set(pa.table(self.delta.get_add_actions())["path"].to_pylist())

    def expire_log(self) -> None:
        """As a clean-up of the log does it, behind a log checkpoint."""
        self.delta.create_checkpoint()
        for entry in Path(self.uri, "_delta_log").glob("*.json"):
            if int(entry.stem) < self.delta.version():
                entry.unlink()


@pytest.fixture(params=[[], ["day"]], ids=["flat", "by day"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Rewritten:
    return Rewritten(tmp_path / "lake", checkpoint_column=COLUMN, partition_by=request.param)


@pytest.fixture(params=[[], ["day"]], ids=["flat", "by day"])
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Rewritten:
    return Rewritten(tmp_path / "lake", partition_by=request.param)


# ---- by the column


def test_exactly_the_rows_of_the_checkpoint_go_out_after_optimize(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11, 20)
    lake.publish(2, 12, 21, 30)
    lake.optimize()
    before = lake.delta.version()
    lake.replace(first, 3, 10, 99)
    assert lake.numbers() == [10, 12, 21, 30, 99]
    assert lake.delta.version() == before + 1
    kept = {row["n"]: row[COLUMN] for row in lake.read()}
    assert kept[12] == transaction(2).name
    assert kept[99] == transaction(3).name
    assert {row["day"] for row in lake.read()} == {"1", "2", "3", "9"}


def test_files_that_hold_nothing_else_are_not_rewritten(lake: Rewritten) -> None:
    first = lake.publish(1, 10)
    lake.publish(2, 10, replaces=first)
    again = lake.publish(3, 11, 12)
    other = lake.publish(4, 21)
    lake.optimize() if not lake.config.partition_by else None
    untouched = {path for path in lake.files() if path.startswith(other["folder"])}
    lake.replace(again, 5, 13)
    assert lake.numbers() == [10, 13, 21]
    assert untouched <= lake.files()


def test_rows_are_replaced_that_an_earlier_replacement_has_copied(lake: Rewritten) -> None:
    first, second = lake.publish(1, 10, 11), lake.publish(2, 12, 20)
    lake.optimize()
    third = lake.replace(first, 3, 13)
    fourth = lake.replace(second, 4, 14, 20)
    assert lake.numbers() == [13, 14, 20]
    lake.optimize()
    lake.replace(third, 5, 15)
    lake.replace(fourth, 6, 16)
    assert lake.numbers() == [15, 16]


def test_a_copy_is_not_taken_for_the_rows_beside_which_it_lies(lake: Rewritten) -> None:
    first = lake.publish(1, 10)
    lake.publish(2, 11)
    lake.optimize()
    third = lake.replace(first, 3, 12)
    assert any(txn_identifiers.is_kept_copy(path) for path in lake.files())
    lake.replace(third, 4, 13)
    assert lake.numbers() == [11, 13]


def test_a_copy_beside_rows_that_have_moved_is_not_taken_for_them(tmp_path: Path) -> None:
    """As many files lie in the folder as were staged there; the one that is left holds rows of another checkpoint."""
    lake = Rewritten(tmp_path / "lake", checkpoint_column=COLUMN, partition_by=["day"])
    first = lake.publish(1, 10)
    lake.publish(2, 11)
    lake.optimize()
    third = lake.replace(first, 3, 20)
    lake.publish(4, 21)
    lake.optimize()
    (left,) = (path for path in lake.files() if path.startswith(third["folder"]))
    assert txn_identifiers.is_kept_copy(left)
    lake.replace(third, 5, 22)
    assert lake.numbers() == [11, 21, 22]


def test_two_pipelines_share_the_table(lake: Rewritten, tmp_path: Path) -> None:
    other = Rewritten(tmp_path / "lake", checkpoint_column=COLUMN, partition_by=lake.config.partition_by)
    first = lake.publish(1, 10, 11)
    theirs = Transaction("beef" * 8, "flights", "lake", 1, 1, "000100010000")
    handle = other.stage(theirs, [10, 12])
    other.commit(handle, 1, NEVER)
    lake.optimize()
    lake.replace(first, 2, 13)
    assert lake.numbers() == [10, 12, 13]
    other.check_replace(handle)


def test_rows_without_a_name_stay(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    write_deltalake(lake.uri, pa.table({"n": [12], "day": ["1"], COLUMN: pa.array([None], pa.string())}), mode="append")
    lake.optimize()
    lake.replace(first, 2, 13)
    assert lake.numbers() == [12, 13]


def test_rows_of_no_day_keep_it(lake: Rewritten) -> None:
    first = lake.publish(1, -1, 11)
    lake.publish(2, -2, 12)
    lake.optimize()
    lake.replace(first, 3, 13)
    assert {row["n"]: row["day"] for row in lake.read()} == {-2: None, 12: "1", 13: "1"}


def test_no_new_rows_only_take_the_old_ones_out(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    lake.check_replace(first)
    empty = {**lake.stage(transaction(3), [1]), "replaces": first}
    lake.commit(empty, 3, NEVER)
    assert lake.numbers() == [1, 12]


def test_several_are_retracted_at_once(lake: Rewritten) -> None:
    olds = [lake.publish(epoch, 10 * epoch, 11) for epoch in (1, 2, 3)]
    lake.optimize()
    back = json.loads(json.dumps(lake.retraction(transaction(4, 0), olds[:0:-1], olds[0])))
    for _ in range(2):
        lake.commit(lake.rehearse(back, 4), 4, NEVER)
    assert lake.numbers() == [10, 11]


def test_the_log_is_not_needed(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    lake.publish(3, 14)
    lake.expire_log()
    assert lineage.trace(lake.uri, lake.delta.version(), [first["folder"]]) is None
    lake.replace(first, 4, 13)
    assert lake.numbers() == [12, 13, 14]


def test_columns_that_came_later_are_kept(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    more = pa.table({"n": [12], "day": ["1"], COLUMN: ["somebody"], "more": ["x"]})
    write_deltalake(lake.uri, more, mode="append", schema_mode="merge")
    lake.optimize()
    lake.commit(lake.retraction(transaction(2, 0), [first], None), 2, NEVER)
    assert [(row["n"], row["more"]) for row in lake.read()] == [(12, "x")]


def test_a_table_that_lost_the_column_is_refused(plain: Rewritten) -> None:
    first = {**plain.publish(1, 10, 11), "checkpoint_column": COLUMN}
    plain.publish(2, 12)
    plain.optimize()
    with raises(InvalidPipeline, "published-rows-fixed") as refused:
        plain.check_replace(first)
    assert f"'{COLUMN}'" in refused.value.why


# ---- what somebody else has done to the rows


def consent(lake: Rewritten, old: Handle) -> None:
    name = DeltaHandle.parse("lake", old).transaction.name
    lake.delta.alter.set_table_properties({replacement.CONSENT: name}, raise_if_not_exists=False)


EDITS: dict[str, Callable[[Rewritten], Any]] = {
    "deleted": lambda lake: lake.delta.delete("n = 11"),
    "all deleted": lambda lake: lake.delta.delete("n < 12"),
    "updated": lambda lake: lake.delta.update({"n": "17"}, predicate="n = 11"),
    "renamed": lambda lake: lake.delta.update({COLUMN: "'mine'"}, predicate="n = 11"),
    "moved to another day": lambda lake: lake.delta.update({"day": "'7'"}, predicate="n = 11"),
}


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("edit", EDITS)
def test_what_somebody_did_to_the_rows_is_not_undone_silently(lake: Rewritten, edit: str, optimized: bool) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    if optimized:
        lake.optimize()
    EDITS[edit](lake)
    before = lake.numbers()
    with raises(InvalidPipeline, "published-rows-edited") as refused:
        lake.check_replace(first)
    assert transaction(1).name in refused.value.todo
    new = {**lake.stage(transaction(3), [10, 11]), "replaces": first}
    for publish in (lake.rehearse, lambda handle, decision: lake.commit(handle, decision, NEVER)):
        with raises(CannotPublish, "replaced-rows-changed") as changed:
            publish(new, 3)
        assert replacement.CONSENT in changed.value.todo
    assert lake.numbers() == before
    consent(lake, first)
    lake.check_replace(first)
    lake.commit(lake.rehearse(new, 3), 3, NEVER)
    assert lake.numbers() == ([10, 11, 11, 12] if edit == "renamed" else [10, 11, 12])


def test_the_consent_to_one_checkpoint_is_none_to_another(lake: Rewritten) -> None:
    first, second = lake.publish(1, 10, 11), lake.publish(2, 12)
    lake.delta.delete("n = 11")
    consent(lake, second)
    with raises(InvalidPipeline, "published-rows-edited"):
        lake.check_replace(first)


def test_what_somebody_did_to_other_rows_of_a_file_stays(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12, 13, 14)
    lake.optimize()
    lake.delta.delete("n = 12")
    lake.replace(first, 3, 15)
    assert lake.numbers() == [13, 14, 15]


def test_rows_that_somebody_has_copied_are_told(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    rows = pa.Table.from_pylist(lake.read())
    write_deltalake(lake.uri, rows.filter(pc.equal(rows["n"], 10)), mode="append")
    with raises(InvalidPipeline, "published-rows-edited") as refused:
        lake.check_replace(first)
    assert "copied" in refused.value.why
    consent(lake, first)
    lake.replace(first, 3, 13)
    assert lake.numbers() == [12, 13]


# ---- deletion vectors


def hide_row(lake: Rewritten, path: str) -> None:
    """The first row of the file, as Spark does it."""
    entry = Path(lake.uri, log_files.entry_path(lake.delta.version() + 1))
    add = active_adds.read(lake.uri, lake.delta.version(), [path])[path]
    stats = json.loads(add["stats"])
    feature = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    hidden = {**add, "deletionVector": vector(), "stats": json.dumps({**stats, "tightBounds": False})}
    actions = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, **feature}},
        {"remove": {"path": path, "deletionTimestamp": 1, "dataChange": True, "size": add["size"]}},
        {"add": hidden},
    ]
    entry.write_text("\n".join(map(json.dumps, actions)))


@pytest.fixture
def hidden(lake: Rewritten) -> tuple[Handle, list[int]]:
    """One file of two checkpoints, with a hidden row of one: the handle of the other, and the rows of the one."""
    handles = {10: lake.publish(1, 10, 11), 12: lake.publish(2, 12, 13)}
    lake.optimize()
    (path,) = lake.files()
    hide_row(lake, path)
    shown = set(lake.numbers())
    (number,) = {10, 11, 12, 13} - shown
    edited, other = (10, 12) if number < 12 else (12, 10)
    with raises(InvalidPipeline, "published-rows-edited"):
        lake.check_replace(handles[edited])
    return handles[other], sorted(shown - {other, other + 1})


def somebody(number: int) -> pa.Table:
    return pa.table({"n": [number], "day": [str(number // 10)], COLUMN: ["somebody"]})


@pytest.mark.parametrize("expired", [False, True])
def test_rows_that_a_deletion_vector_hides_do_not_come_back(
    lake: Rewritten, hidden: tuple[Handle, list[int]], expired: bool
) -> None:
    old, rest = hidden
    if expired:
        lake.expire_log()
    new = {**lake.stage(transaction(3), [14]), "replaces": old}
    lake.check_replace(old)
    handle = lake.rehearse(new, 3)
    before = lake.delta.version()
    outcome = lake.commit(handle, 3, NEVER)
    assert lake.delta.version() == before + 1
    assert lake.numbers() == sorted([14, *rest])
    assert not outcome.already
    assert lake.commit(handle, 3, NEVER).already
    assert pa.RecordBatchReader.from_stream(lake.delta.deletion_vectors()).read_all().num_rows == 0


@pytest.mark.parametrize("work", ["append", "optimize"])
def test_another_commit_comes_before_an_entry_of_our_own(
    lake: Rewritten, hidden: tuple[Handle, list[int]], monkeypatch: pytest.MonkeyPatch, work: str
) -> None:
    old, rest = hidden
    write_deltalake(lake.uri, somebody(15), mode="append")
    new, real = {**lake.stage(transaction(3), [14]), "replaces": old}, commits.put_entry

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "put_entry", real)
        if work == "append":
            write_deltalake(lake.uri, somebody(16), mode="append")
        else:
            lake.delta.optimize.compact()
        real(*arguments)

    monkeypatch.setattr(commits, "put_entry", late)
    lake.commit(new, 3, NEVER)
    assert lake.numbers() == sorted([14, 15, *rest, *([16] if work == "append" else [])])
    assert not list(Path(lake.uri, "_delta_log").glob("*.tmp"))


# ---- without the column: what the log proves


def test_a_day_that_only_its_checkpoint_has_written_is_replaced(tmp_path: Path) -> None:
    lake = Rewritten(tmp_path / "lake", partition_by=["day"])
    days = [lake.publish(epoch, *range(10 * epoch, 10 * epoch + 3)) for epoch in (1, 2, 3)]
    split(lake, 2)
    lake.optimize()
    assert not any(path.startswith(days[1]["folder"]) for path in lake.files())
    lake.replace(days[1], 4, 29)
    assert lake.numbers() == [10, 11, 12, 29, 30, 31, 32]


def split(lake: Rewritten, day: int) -> None:
    """Rewrite a day into single rows, as an OPTIMIZE may do it that changes no data."""
    rewrite(lake, lambda add: add["partitionValues"].get("day") == str(day), 1)


def rewrite(lake: Rewritten, wanted: Callable[[dict[str, Any]], bool], rows_of_a_file: int, **removal: Any) -> None:
    """Move rows to other files, without a change of data."""
    adds = active_adds.read(lake.uri, lake.delta.version(), [path.replace("%25", "%") for path in lake.files()])
    actions: list[dict[str, Any]] = [{"commitInfo": {"timestamp": 1, "operation": "OPTIMIZE"}}]
    for path, add in adds.items():
        if not wanted(dict(add)):
            continue
        rows = pq.read_table(Path(lake.uri, path))
        actions.append({"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": False, **removal}})
        for start in range(0, len(rows), rows_of_a_file):
            name = f"part-{len(actions):05}-{add['size']}{start}.parquet"
            part = rows.slice(start, rows_of_a_file)
            pq.write_table(part, Path(lake.uri, name))
            size = Path(lake.uri, name).stat().st_size
            stats = json.dumps({"numRecords": len(part)})
            new = {**add, "path": name, "size": size, "dataChange": False, "stats": stats}
            actions.append({"add": new})
    entry = Path(lake.uri, log_files.entry_path(lake.delta.version() + 1))
    entry.write_text("\n".join(map(json.dumps, actions)))


def test_rows_that_share_a_file_with_others_cannot_be_told(plain: Rewritten) -> None:
    first = plain.publish(1, 10, 11)
    plain.publish(2, 12)
    plain.optimize()
    with raises(InvalidPipeline, "published-rows-fixed") as refused:
        plain.check_replace(first)
    assert "together with rows of others" in refused.value.why
    assert "checkpoint_column" in refused.value.why
    new = {**plain.stage(transaction(3), [13]), "replaces": first}
    with raises(CannotPublish, "replaced-rows-changed"):
        plain.commit(new, 3, NEVER)
    assert plain.numbers() == [10, 11, 12]


def test_equal_counts_prove_nothing(plain: Rewritten) -> None:
    """Somebody has deleted a row and added another: as many rows, and not the same."""
    first = plain.publish(1, 10, 11)
    plain.delta.delete("n = 11")
    write_deltalake(plain.uri, pa.table({"n": [12], "day": ["1"]}), mode="append")
    plain.optimize()
    with raises(InvalidPipeline, "published-rows-fixed") as refused:
        plain.check_replace(first)
    assert "DELETE changed data" in refused.value.why
    assert plain.numbers() == [10, 12]


def test_a_log_that_no_longer_reaches_back_proves_nothing(tmp_path: Path) -> None:
    lake = Rewritten(tmp_path / "lake", partition_by=["day"])
    first = lake.publish(1, 10, 11)
    split(lake, 1)
    lake.publish(2, 20)
    lake.check_replace(first)
    lake.expire_log()
    with raises(InvalidPipeline, "published-rows-fixed") as refused:
        lake.check_replace(first)
    assert "log no longer reaches back" in refused.value.why


def test_a_checkpoint_with_the_same_number_in_the_log_keeps_its_rows(tmp_path: Path) -> None:
    """That number has the first 8 digits of a nonce only, so two of them may be the same."""
    lake, handles = Rewritten(tmp_path / "lake", partition_by=["day"]), []
    for epoch, numbers in ((1, [10, 11]), (2, [20, 21]), (3, [30])):
        txn = Transaction(STATE, "flights", "lake", epoch, 1, f"cafecafe000{epoch}")
        handles.append(json.loads(json.dumps(lake.stage(txn, numbers))))
        lake.commit(handles[-1], epoch, NEVER)
    split(lake, 1)
    lake.replace(handles[0], 4, 12)
    assert lake.numbers() == [12, 20, 21, 30]


def test_rows_that_an_optimize_has_put_together_are_retracted_together(plain: Rewritten) -> None:
    olds = [plain.publish(epoch, 10 + epoch) for epoch in (1, 2, 3)]
    rewrite(plain, lambda add: not add["path"].startswith(olds[0]["folder"]), 9)
    back = plain.retraction(transaction(4, 0), olds[:0:-1], olds[0])
    plain.commit(plain.rehearse(back, 4), 4, NEVER)
    assert plain.numbers() == [11]


def test_rows_are_not_told_by_a_removal_that_names_no_partition(tmp_path: Path) -> None:
    """Its file may have been in the same one."""
    lake = Rewritten(tmp_path / "lake", partition_by=["day"])
    first = lake.publish(1, 10, 11)
    lake.publish(2, 20)
    rewrite(lake, lambda add: True, 9)
    with raises(InvalidPipeline, "published-rows-fixed"):
        lake.check_replace(first)


# ---- others at work between the rehearsal and the commit

WORK: dict[str, tuple[Callable[[Rewritten], Any], list[int]]] = {
    "optimize": (lambda lake: lake.delta.optimize.compact(), [12, 13]),
    "append": (lambda lake: write_deltalake(lake.uri, somebody(14), mode="append"), [12, 13, 14]),
    "delete of other rows": (lambda lake: lake.delta.delete("n = 12"), [13]),
    "another repair": (lambda lake: other_repair(lake), [13, 15]),
}


def other_repair(lake: Rewritten) -> None:
    """Of the other checkpoint, by another pipeline."""
    other = Rewritten(Path(lake.uri), checkpoint_column=COLUMN)
    txn = Transaction("beef" * 8, "flights", "lake", 1, 1, "000100010000")
    second = {"folder": f"staged-{transaction(2).name}", "files": 1, "rows": 1, "checkpoint_column": COLUMN}
    new = {**other.stage(txn, [15]), "replaces": {**second, "table_id": str(lake.delta.metadata().id)}}
    other.commit(new, 1, NEVER)


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("when", ["before the commit", "within it"])
def test_others_at_work(
    lake: Rewritten, work: str, when: str, optimized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    if optimized:
        lake.optimize()
    new = lake.rehearse({**lake.stage(transaction(3), [13]), "replaces": first}, 3)
    act, expected = WORK[work]
    if when == "before the commit":
        act(lake)
    else:
        real = commits.commit_entry

        def late(*arguments: Any) -> None:
            monkeypatch.setattr(commits, "commit_entry", real)
            act(lake)
            real(*arguments)

        monkeypatch.setattr(commits, "commit_entry", late)
    lake.commit(new, 3, NEVER)
    assert lake.numbers() == expected
    assert lake.commit(new, 3, NEVER).already
    assert lake.numbers() == expected


@pytest.mark.parametrize("within", [False, True])
def test_a_delete_of_the_rows_between_rehearsal_and_commit_is_not_undone(
    lake: Rewritten, within: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    new = lake.rehearse({**lake.stage(transaction(3), [10, 11]), "replaces": first}, 3)
    real = commits.commit_entry

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(commits, "commit_entry", real)
        lake.delta.delete("n = 11")
        real(*arguments)

    if within:
        monkeypatch.setattr(commits, "commit_entry", late)
    else:
        lake.delta.delete("n = 11")
    with raises(CannotPublish, "replaced-rows-changed"):
        lake.commit(new, 3, NEVER)
    assert lake.numbers() == [10, 12]
    consent(lake, first)
    lake.commit(new, 3, NEVER)
    assert lake.numbers() == [10, 11, 12]


def test_a_lost_round_does_not_copy_again(lake: Rewritten, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    new = lake.rehearse({**lake.stage(transaction(3), [13]), "replaces": first}, 3)
    write_deltalake(lake.uri, somebody(14), mode="append")
    lake.commit(new, 3, NEVER)
    assert lake.numbers() == [12, 13, 14]
    assert len(list(Path(lake.uri, new["folder"]).glob("kept-*"))) == 1


# ---- folders


def test_the_copies_outlive_the_settling_and_a_vacuum(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    new = lake.replace(first, 3, 13)
    txn = transaction(3)
    lake.discard(txn, new)
    lake.release(txn)
    assert lake.leftovers(txn.prefix) == [transaction(1), transaction(2)]
    assert not list(Path(lake.uri, new["folder"]).rglob("_delta_log"))
    lake.delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert lake.numbers() == [12, 13]


def test_what_was_copied_for_nothing_is_discarded(lake: Rewritten) -> None:
    first = lake.publish(1, 10, 11)
    lake.publish(2, 12)
    lake.optimize()
    new = lake.rehearse({**lake.stage(transaction(3), [13]), "replaces": first}, 3)
    lake.discard(transaction(3), new)
    assert not Path(lake.uri, new["folder"]).exists()
    assert lake.numbers() == [10, 11, 12]
