"""An append to a table on an object store, by a log entry of its own. Here the store is a folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from codes import raises
from deltalake import CommitProperties, DeltaTable, Field, write_deltalake
from deltalake import Transaction as DeltaTxn
from deltalake.schema import PrimitiveType
from unit.lightdelta import LightDelta, transaction

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.sink import Publication
from onceonly.delta import commits, log_files, log_summary, table_features, table_snapshot, txn_identifiers
from onceonly.errors import Fenced, OutcomeUnknown, StateBehind, TargetWentBack
from onceonly.sinks.delta import append
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.storage.objects import Objects

NEVER: Any = None  # the handles of this sink are never replaced


@pytest.fixture
def lake(tmp_path: Path) -> LightDelta:
    return LightDelta(tmp_path / "lake")


def publish(lake: LightDelta, handle: Handle, decision: int = 1) -> bool | None:
    """Whether it had been published already; None: it is not for this way."""
    outcome = append.publish(lake.name, lake.uri, DeltaHandle.parse(lake.name, handle), decision)
    return outcome.already if outcome else None


def foreign(lake: LightDelta, number: int = 100, app: str = "another") -> None:
    stamp = CommitProperties(app_transactions=[DeltaTxn(app, number)])
    write_deltalake(lake.uri, pa.table({"n": [number]}), mode="append", commit_properties=stamp)


def version(lake: LightDelta) -> int:
    return DeltaTable(lake.uri).version()


def test_rows_are_published_once(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1, 2])
    assert [publish(lake, handle), publish(lake, handle)] == [False, True]
    assert lake.numbers() == [1, 2]
    assert [trace.decision for trace in lake.traces("flights")] == [1]


def test_of_no_rows_the_decision_is_published(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [])
    assert [publish(lake, handle), publish(lake, handle)] == [False, True]


def test_another_writer_between_the_look_and_the_put_is_no_conflict(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, real, others = lake.stage(transaction(), [1]), Objects.create, [1]

    def create(files: Objects, path: str, content: bytes) -> str | None:
        if others:
            foreign(lake, 100 + others.pop())
        return real(files, path, content)

    monkeypatch.setattr(Objects, "create", create)
    assert publish(lake, handle) is False
    assert lake.numbers() == [1, 101]


def test_a_rival_between_the_look_and_the_put_is_seen(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, real, rivals = lake.stage(transaction(), [1]), Objects.create, [1]

    def create(files: Objects, path: str, content: bytes) -> str | None:
        if rivals.pop() if rivals else False:
            lake.commit(handle, 1, None)  # type: ignore[arg-type]
        return real(files, path, content)

    monkeypatch.setattr(Objects, "create", create)
    assert publish(lake, handle) is True
    assert lake.numbers() == [1]


def test_a_put_whose_answer_is_lost_is_found(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle, real = lake.stage(transaction(), [1]), Objects.create

    def create(files: Objects, path: str, content: bytes) -> str | None:
        real(files, path, content)
        return real(files, path, content)  # the client tries again

    monkeypatch.setattr(Objects, "create", create)
    assert publish(lake, handle) is True
    assert lake.numbers() == [1]


@pytest.mark.parametrize("step", ["create", "list_objects"])
def test_what_the_storage_does_not_answer_is_not_known(
    lake: LightDelta, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    handle = lake.stage(transaction(), [1])

    def fails(*_: Any, **__: Any) -> Any:
        raise OSError("connection reset")

    monkeypatch.setattr(Objects, step, fails)
    with raises(OutcomeUnknown, "commit-unconfirmed") as error:
        publish(lake, handle)
    assert len(str(error.value).splitlines()) == 3


def test_other_writers_without_end_leave_it_open(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1])

    def taken(*_: Any) -> Any:
        raise FileExistsError

    monkeypatch.setattr(Objects, "create", taken)
    with raises(OutcomeUnknown, "commit-unconfirmed"):
        publish(lake, handle)


def test_the_evidence_decides(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1])
    target = DeltaTable(lake.uri)
    commits.commit_entry(target, [], [], handle["app_id"], txn_identifiers.closing_version(1))
    with pytest.raises(Fenced):
        publish(lake, handle)
    commits.commit_entry(
        DeltaTable(lake.uri), [], [], handle["app_id"], txn_identifiers.txn_version(2, handle["folder"])
    )
    with pytest.raises(StateBehind):
        publish(lake, handle)
    assert lake.numbers() == []


def test_what_is_more_than_an_append_is_left_to_others(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(transaction(), [1])
    added = {"name": "more", "type": "long", "nullable": True, "metadata": {}}
    for more in (
        {"publish": "spark"},
        {"where": "partitions"},
        {"merge": {"keys": ["n"], "order_by": ["n"]}},
        {"retracts": [{"folder": handle["folder"], "files": 1, "table_id": handle["table_id"]}]},
        {"added": [added]},
        {"table_id": "another"},
        {"fingerprint": "another"},
        {"files": 2},
    ):
        assert publish(lake, {**handle, **more}) is None, more
    for name, value in {"AWS_S3_LOCKING_PROVIDER": "dynamodb", "AWS_CONDITIONAL_PUT": "disabled"}.items():
        with monkeypatch.context() as patched:
            patched.setenv(name, value)
            assert publish(lake, handle) is None
    assert version(lake) == 0


def test_a_table_that_was_altered_or_lost_files_is_left_to_others(lake: LightDelta) -> None:
    handle = lake.stage(transaction(), [1])
    other = lake.stage(transaction(2), [2])
    for file in (Path(lake.uri) / handle["folder"]).glob("*.parquet"):
        file.unlink()
    assert publish(lake, handle) is None
    DeltaTable(lake.uri).alter.add_columns([Field("more", PrimitiveType("long"))])
    assert publish(lake, other) is None
    shutil.rmtree(Path(lake.uri) / "_delta_log")
    assert publish(lake, other) is None


# ---- what a commit says of the table


def same(lake: LightDelta) -> None:
    """A look shows what delta-rs shows."""
    look, table = log_summary.read_snapshot(lake.uri), DeltaTable(lake.uri)
    assert look is not None
    assert look.version() == table.version()
    assert table_snapshot.fingerprint(look) == table_snapshot.fingerprint(table)
    assert look.metadata().id == table.metadata().id
    assert look.metadata().configuration == table.metadata().configuration
    for app, number in look.txns.items():
        assert table.transaction_version(app) == number
    assert table_features.find_unsupported(look) == table_features.find_unsupported(table)


def test_a_look_shows_what_delta_rs_shows_whoever_has_written(lake: LightDelta) -> None:
    for epoch in (1, 2, 3):
        publish(lake, lake.stage(transaction(epoch), [epoch]), epoch)
        same(lake)
        foreign(lake, 100 + epoch)
        same(lake)
    DeltaTable(lake.uri).create_checkpoint()
    same(lake)
    DeltaTable(lake.uri).alter.add_constraint({"small": "n < 1000"})
    same(lake)
    publish(lake, lake.stage(transaction(4), [4]), 4)
    same(lake)
    DeltaTable(lake.uri).alter.set_table_properties({"delta.appendOnly": "true"})
    DeltaTable(lake.uri).optimize.compact()
    same(lake)
    found = log_summary.read_snapshot(lake.uri)
    assert found is not None and found.txns["another"] == 103


def test_the_newest_entry_of_ours_is_enough(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in range(1, 6):
        publish(lake, lake.stage(transaction(epoch), [epoch]), epoch)
    read, real = list[str](), Objects.read
    monkeypatch.setattr(Objects, "read", lambda files, path, tag=None: read.append(path) or real(files, path, tag))
    assert log_summary.read_snapshot(lake.uri) is not None
    assert set(read) == {log_files.entry_path(5)}


def test_a_large_table_is_not_repeated_in_each_commit(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_summary, "MAX_SUMMARY_BYTES", 100)
    for epoch in (1, 2):
        publish(lake, lake.stage(transaction(epoch), [epoch]), epoch)
    assert log_summary.TABLE_KEY not in (Path(lake.uri) / log_files.entry_path(2)).read_text()
    same(lake)


def test_a_log_that_lacks_an_entry_is_not_known(lake: LightDelta) -> None:
    for number in range(3):
        lake.stage(transaction(), [1]) if not number else foreign(lake, number)
    (Path(lake.uri) / log_files.entry_path(1)).unlink()
    with raises(OutcomeUnknown, "table-unreadable"):
        log_summary.read_snapshot(lake.uri)


# ---- what a rehearsal has looked at


@pytest.fixture
def store(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> LightDelta:
    """The table as if it were on an object store."""
    monkeypatch.setattr("onceonly.sinks.delta.sink.local_path", lambda uri: None)
    return lake


def test_commit_begins_with_the_look_of_its_rehearsal(store: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = store.rehearse(store.stage(transaction(), [1]), 1)
    monkeypatch.setattr(log_summary, "read_snapshot", lambda uri: pytest.fail("looked again"))
    assert not store.commit(handle, 1, NEVER).already


def test_look_for_another_decision_does_not_count(store: LightDelta) -> None:
    store.commit(store.stage(transaction(1), [1]), 2, NEVER)
    handle = store.rehearse(store.stage(transaction(2), [2]), 3)
    with pytest.raises(StateBehind):
        store.commit(handle, 2, NEVER)
    assert store.numbers() == [1]


def test_old_look_does_not_count(store: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may have gone back since, and a put would leave a gap in its log."""
    outcome = store.commit(store.stage(transaction(1), [1]), 1, NEVER)
    last, newest = Publication(1, 1, outcome.proof), Path(store.uri, log_files.entry_path(version(store)))
    handle = store.rehearse(store.stage(transaction(2), [2]), 2, last)
    newest.unlink()
    monkeypatch.setattr(append, "MAX_AGE_SECONDS", -1)
    with pytest.raises(TargetWentBack):
        store.commit(handle, 2, NEVER, last)
    assert not newest.exists()


def test_a_log_checkpoint_is_made_as_by_delta_rs(lake: LightDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "DEFAULT_CHECKPOINT_INTERVAL", 2)
    for epoch in (1, 2, 3):
        publish(lake, lake.stage(transaction(epoch), [epoch]), epoch)
    assert [path.name[:20] for path in Path(lake.uri, "_delta_log").glob("*.checkpoint.parquet")] == [f"{2:020}"]
    same(lake)


def test_an_entry_is_one_that_others_read(lake: LightDelta) -> None:
    publish(lake, lake.stage(transaction(), [1, 2, 3]))
    actions = [json.loads(line) for line in (Path(lake.uri) / log_files.entry_path(1)).read_text().splitlines()]
    assert [next(iter(action)) for action in actions] == ["commitInfo", "txn", "add"]
    history = DeltaTable(lake.uri).history(1)[0]
    assert (history["operation"], history["engineInfo"]) == ("WRITE", "onceonly")
