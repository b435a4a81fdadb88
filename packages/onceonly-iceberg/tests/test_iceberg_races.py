"""Several committers, lost answers, rollbacks and expired snapshots: by SQL and REST catalogs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import pytest
from codes import raises
from iceberg_damages import add_column, expire, partition_anew, roll_back
from iceberg_tables import TABLE, IcebergTarget, InProcess, Place, create_table, numbers, open_catalog, sql_properties
from patience import PATIENCE
from rest_server import RestCatalog, serve

from onceonly.checkpoint.last_decision import LastDecision
from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Answer, Publication
from onceonly.errors import Fenced, InvalidPipeline, OutcomeUnknown, TargetWentBack
from onceonly.sinks import Depth, Judgement, Published
from onceonly.testing.contract import SINK, Committer
from onceonly.testing.ledger import FIRST_TIME, list_codes
from onceonly_iceberg import IcebergSink, commits
from onceonly_iceberg.catalogs import TableOpener
from onceonly_iceberg.file_store import FileStore

RETRIES = {"commit.retry.num-retries": "10", "commit.retry.min-wait-ms": "1"}


@dataclass
class Lake(Place):
    """A table, and sinks that reach it by a catalog of the given properties."""

    folder: str
    properties: Mapping[str, str]
    branch: str = "main"
    publications: list[Publication] = field(default_factory=list)

    def sink(self) -> InProcess:
        config = IcebergSink(SINK, TABLE, properties=self.properties)
        return InProcess(config, TableOpener(config, config.properties))

    def stage(self, epoch: int, *values: int) -> Handle:
        txn = Transaction("ab", "flights", SINK, epoch, 1, f"{epoch:04x}00010000")
        handle: Handle = json.loads(json.dumps(self.sink().stage(txn, numbers(*values))))
        return handle

    def commit(self, handle: Handle, decision: int, last: Publication | None = None) -> Any:
        return self.sink().commit(handle, decision, None, last)  # type: ignore[arg-type]

    def publish(self, epoch: int, *values: int) -> Publication:
        last = self.publications[-1] if self.publications else None
        outcome = self.commit(self.stage(epoch, *values), epoch, last)
        self.publications.append(Publication(epoch, epoch, json.loads(json.dumps(outcome.proof))))
        return self.publications[-1]

    def published(self) -> list[int]:
        return sorted(self.table().scan().to_arrow()["n"].to_pylist())


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestCatalog]:
    create_table(tmp_path, properties=RETRIES)
    with serve(open_catalog(str(tmp_path))) as server:
        yield server


@pytest.fixture(params=["sql", "rest"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Its owner lets commits be retried, as by default."""
    if request.param == "rest":
        return Lake(str(tmp_path), request.getfixturevalue("rest").properties)
    create_table(tmp_path, properties=RETRIES)
    return Lake(str(tmp_path), sql_properties(str(tmp_path)))


# ---- committers


def test_committers_at_once_publish_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have read the same head. PyIceberg's retry would publish the files once for each."""
    handle, both = lake.stage(1, 1, 2, 3), Barrier(2)
    append, waited = commits.append, set[int]()

    def append_together(*arguments: Any) -> Any:
        if get_ident() not in waited:
            waited.add(get_ident())
            both.wait(PATIENCE)
        return append(*arguments)

    monkeypatch.setattr(commits, "append", append_together)
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(lambda _: lake.commit(handle, 1), range(2)))
    assert sorted(outcome.already for outcome in outcomes) == [False, True]
    assert lake.published() == [1, 2, 3]


def test_committer_that_hangs_is_fenced(lake: Lake) -> None:
    handle, table = lake.stage(1, 1), lake.sink()._tables.open()
    lake.publish(2, 2)
    table = lake.sink()._tables.open()
    assert lake.sink().fence(handle, 3) is None
    with pytest.raises(commits.Refused):
        commits.append(table, "main", handle["app_id"], LastDecision(3, handle["txn"]), [], {})
    with raises(Fenced, "sink-given-up"):
        lake.commit(handle, 3)
    assert lake.published() == [2]


def test_property_alone_would_not_fence(lake: Lake) -> None:
    """Why a fence has a snapshot: catalogs compare the branch, and no property."""
    handle, table = lake.stage(1, 1), lake.sink()._tables.open()
    with lake.sink()._tables.open().transaction() as transaction:
        transaction.set_properties({"other": "1"})
    commits.append(table, "main", handle["app_id"], LastDecision(1, handle["txn"]), [], {})
    assert lake.sink().fence(handle, 1) is not None


def test_committer_that_hangs_stays_fenced_after_a_rollback(lake: Lake) -> None:
    """The branch is at the very snapshot again that it asserts: sequence numbers keep it out."""
    lake.publish(1, 1)
    lake.publish(2, 2)
    handle, table = lake.stage(3, 3), lake.sink()._tables.open()
    head = table.metadata.current_snapshot_id
    assert lake.sink().fence(handle, 3) is None
    roll_back(lake, handle, Transaction("ab", "flights", SINK, 3, 1, "x"))
    assert lake.table().metadata.current_snapshot_id == head
    with pytest.raises(commits.Refused):
        commits.append(table, "main", handle["app_id"], LastDecision(3, handle["txn"]), [], {})


def test_other_writers_are_waited_out(lake: Lake) -> None:
    handle, sink = lake.stage(1, 1), lake.sink()
    decided = sink.rehearse(handle, 1)
    lake.table().append(numbers(7).table)
    assert not sink.commit(decided, 1, None).already  # type: ignore[arg-type]
    assert lake.published() == [1, 7]


def test_table_whose_columns_changed_meanwhile_is_looked_at_again(lake: Lake) -> None:
    """The branch's head is still the same."""
    handle, sink = lake.stage(1, 1), lake.sink()
    decided, table = sink.rehearse(handle, 1), lake.sink()._tables.open()
    add_column(lake, handle, Transaction("ab", "flights", SINK, 1, 1, "x"))
    with pytest.raises(commits.Refused):
        commits.append(table, "main", handle["app_id"], LastDecision(1, handle["txn"]), [], {})
    assert not sink.commit(decided, 1, None).already  # type: ignore[arg-type]
    assert lake.published() == [1]


def test_commits_that_are_refused_for_ever_have_no_known_outcome(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = lake.stage(1, 1)

    def refuse(*arguments: Any) -> Any:
        raise commits.Refused

    with monkeypatch.context() as patch, raises(OutcomeUnknown, "iceberg-crowded"):
        patch.setattr(commits, "append", refuse)
        lake.commit(handle, 1)
    assert not lake.commit(handle, 1).already


def test_spec_that_changed_after_the_decision_is_no_obstacle(lake: Lake) -> None:
    """Files keep the spec for which they were written."""
    handle = lake.stage(1, 1, 2)
    partition_anew(lake, handle, Transaction("ab", "flights", SINK, 1, 1, "x"))
    assert not lake.commit(handle, 1).already
    assert lake.published() == [1, 2]
    [task] = lake.table().scan().plan_files()
    assert task.file.spec_id == handle["spec_id"]


def test_first_snapshot_of_a_table_is_one_of_a_branch(tmp_path: Path) -> None:
    """PyIceberg itself refuses that. Whoever reads main sees nothing."""
    create_table(tmp_path)
    target = IcebergTarget(str(tmp_path), "audit")
    committer, txn = Committer(target, str(tmp_path)), Transaction("ab", "flights", SINK, 1, 1, "000100010000")
    handle = json.loads(json.dumps(target.sink().stage(txn, numbers(1, 2))))
    assert not committer.commit(committer.rehearse(handle, 1), 1).already
    assert committer.commit(handle, 1).already
    assert target.published() == [1, 2]
    assert target.table().scan().to_arrow().num_rows == 0


# ---- REST


@pytest.mark.parametrize("failure", ["before", "after"])
def test_commit_without_an_answer_has_no_known_outcome(rest: RestCatalog, tmp_path: Path, failure: str) -> None:
    lake = Lake(str(tmp_path), rest.properties)
    handle = lake.stage(1, 1)
    rest.failures.append(failure)
    with raises(OutcomeUnknown, "iceberg-no-answer"):
        lake.commit(handle, 1)
    assert lake.commit(handle, 1).already is (failure == "after")
    assert lake.published() == [1]


def test_commit_takes_one_load_and_one_commit(rest: RestCatalog, tmp_path: Path) -> None:
    """With its rehearsal, and beside the catalog's configuration, which each process reads once."""
    lake = Lake(str(tmp_path), rest.properties)
    last, handle, sink = lake.publish(1, 1), lake.stage(2, 2), lake.sink()
    rest.requests.clear()
    sink.commit(sink.rehearse(handle, 2, last), 2, None, last)  # type: ignore[arg-type]
    assert rest.requests == {"config": 1, "load": 1, "commit": 1}
    assert lake.published() == [1, 2]


# ---- history


def test_expiry_keeps_the_evidence(lake: Lake) -> None:
    handle = lake.stage(1, 1)
    lake.commit(handle, 1)
    for value in (7, 8, 9):
        lake.table().append(numbers(value).table)
    expire(lake, handle, Transaction("ab", "flights", SINK, 1, 1, "x"))
    assert len(lake.table().metadata.snapshots) == 1
    assert lake.commit(handle, 1).already
    assert lake.published() == [1, 7, 8, 9]


def test_expired_snapshot_is_never_taken_for_a_rollback(lake: Lake) -> None:
    last = lake.publish(1, 1)
    for value in (7, 8):
        lake.table().append(numbers(value).table)
    expire(lake, {}, Transaction("ab", "flights", SINK, 1, 1, "x"))
    assert lake.sink().compare(last).answer is Answer.UNKNOWN
    assert lake.publish(2, 2)


def test_rollback_is_told_though_others_have_gone_on(lake: Lake) -> None:
    lake.publish(1, 1)
    last = lake.publish(2, 2)
    roll_back(lake, {}, Transaction("ab", "flights", SINK, 1, 1, "x"))
    lake.table().append(numbers(7).table)
    history = lake.sink().compare(last)
    assert (history.answer, history.decision) == (Answer.WENT_BACK, 1)
    with raises(TargetWentBack, "target-went-back"):
        lake.commit(lake.stage(3, 3), 3, last)
    assert lake.published() == [1, 7]


def test_accepted_loss_goes_on_from_the_branch_as_it_is(lake: Lake) -> None:
    lake.publish(1, 1)
    lost = lake.publish(2, 2)
    undo = roll_back(lake, {}, Transaction("ab", "flights", SINK, 1, 1, "x"))
    baseline = lake.sink().find_current_publication(lost)
    assert baseline is not None
    assert baseline.decision == 1
    assert lake.sink().compare(baseline).answer is Answer.SAME
    baseline = Publication(baseline.epoch, baseline.decision, baseline.proof, lost=(lost,))
    undo()
    with raises(TargetWentBack, "target-is-back"):
        lake.commit(lake.stage(3, 3), 3, baseline)
    roll_back(lake, {}, Transaction("ab", "flights", SINK, 1, 1, "x"))
    assert not lake.commit(lake.stage(4, 4), 4, baseline).already
    assert lake.published() == [1, 4]


# ---- secrets


@pytest.mark.parametrize(
    "properties", [{"token": "x"}, {"s3.secret-access-key": "x"}, {"uri": "postgresql://me:secret@db/catalog"}]
)
def test_definition_holds_no_secret(properties: dict[str, str]) -> None:
    with raises(InvalidPipeline, "iceberg-secret"):
        IcebergSink(SINK, TABLE, properties=properties)


def test_handle_holds_no_secret(tmp_path: Path) -> None:
    create_table(tmp_path)
    lake = Lake(str(tmp_path), sql_properties(str(tmp_path)))
    config = IcebergSink(SINK, TABLE, connection="lake")
    sink = InProcess(config, TableOpener(config, {**lake.properties, "token": "hush"}))
    handle = sink.stage(Transaction("ab", "flights", SINK, 1, 1, "000100010000"), numbers(1))
    outcome = sink.commit(handle, 1, None)  # type: ignore[arg-type]
    assert "hush" not in json.dumps([handle, dict(outcome.proof), dict(lake.table().properties)])


def test_a_verification_lists_the_files_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    published = []
    for epoch in (1, 2, 3):
        handle = lake.stage(epoch, epoch)
        proof = dict(lake.commit(handle, epoch).proof)
        published.append(Published(epoch, epoch, handle, Publication(epoch, epoch, proof), FIRST_TIME))
    listings, list_files = list[str](), FileStore.list_parquet_files

    def list_and_count(store: FileStore, folder: str = "") -> list[tuple[str, int]]:
        listings.append(folder)
        return list_files(store, folder)

    monkeypatch.setattr(FileStore, "list_parquet_files", list_and_count)
    monkeypatch.setattr(FileStore, "find_sizes", None)
    findings = list(lake.sink().verify(published, Depth(False)))
    assert list_codes(findings, Judgement.RIGHT) == [(1, "right"), (2, "right"), (3, "right")]
    assert listings == [""]
