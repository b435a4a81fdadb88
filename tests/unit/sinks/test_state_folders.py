"""What a StateSink does with folders, without Spark: names below its root, whatever the root is called."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from codes import raises

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Trace
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, StateBehind
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state import handle as staterun
from onceonly.sinks.state.sink import DONE, StateWriter
from onceonly.testing.fakes import FakeReceipts

STATE = "0" * 32
EMPTY = {"files": 0, "bytes": 0, "listing": hashlib.sha256().hexdigest()}
CONFIG = StateSink("totals", schema="page STRING, views BIGINT", key=["page"])


def transaction(epoch: int, attempt: int = 1, pipeline: str = "pages", sink: str = "totals") -> Transaction:
    return Transaction(STATE, pipeline, sink, epoch, attempt, f"nonce{epoch}{attempt}")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for epoch, kind in ((10, "changes"), (149, "merged"), (150, "changes")):
        (tmp_path / "state" / transaction(epoch).name / kind).mkdir(parents=True)
    return tmp_path / "state"


def handle(epoch: int = 150, attempt: int = 1, **more: Any) -> Handle:
    name = transaction(epoch, attempt).name
    return {"kind": "state", "txn": name, "forget": [], "rows": 1, "runs": [], "retired": [], **more}


def commit(root: Path | str, handle: Handle, decision: int = 7) -> Outcome:
    return StateWriter(CONFIG, str(root)).commit(handle, decision, FakeReceipts(Path("unused")))


def epochs(root: Path) -> list[int]:
    return sorted(int(path.name.split("-")[3]) for path in root.iterdir())


# ---- one root, by whatever name


@pytest.mark.parametrize("end", ["/changes", "/merged", ""])
@pytest.mark.parametrize("through", ["state", "mounted", "/state", "other/../state"])
def test_only_what_is_forgotten_is_deleted_whatever_the_root_is_called(
    root: Path, tmp_path: Path, end: str, through: str
) -> None:
    os.symlink(root, tmp_path / "mounted")
    (tmp_path / "other").mkdir()
    assert commit(f"{tmp_path}/{through}", handle(forget=[transaction(10).name + end])).detail == {"rows": 1}
    assert epochs(root) == [149, 150]


@pytest.mark.parametrize("above", ["/mnt/before/", "s3a://bucket/x/", "//", "../"])
def test_a_run_outside_of_the_root_is_refused(above: str) -> None:
    name = f"{transaction(149).name}/merged"
    assert staterun.run("totals", {"folder": name, "rows": 3}) == {"folder": name, "rows": 3}
    with pytest.raises(CannotPublish):
        staterun.run("totals", {"folder": above + name, "rows": 3})


def test_a_retraction_names_what_it_needs_below_the_root(root: Path) -> None:
    run = {"folder": f"{transaction(149).name}/merged", "rows": 5, **EMPTY}
    held = handle(149, runs=[run], retired=[{**run, "since": 3}], schema=CONFIG.schema, key=["page"])
    back = StateWriter(CONFIG, str(root)).retraction(transaction(151), [handle()], held)
    assert back["runs"] == [run]
    assert back["retired"] == [{**run, "since": 3}]
    assert back["forget"] == [transaction(150).name]
    commit(root, back)
    assert epochs(root) == [10, 149]


# ---- what is no name of this sink

FOREIGN: list[Mapping[str, Any]] = [
    {"forget": [""]},
    {"forget": ["/"]},
    {"forget": ["/mnt/before"]},
    {"forget": ["/mnt/before/"]},
    {"forget": [".."]},
    {"forget": [f"../{transaction(10).name}"]},
    {"forget": [f"{transaction(10).name}/.."]},
    {"forget": [f"{transaction(10).name}/changes/.."]},
    {"forget": [f"x/{transaction(10).name}/changes"]},
    {"forget": [transaction(10, sink="other").name]},
    {"forget": [transaction(10, pipeline="other").name]},
    {"forget": [transaction(150).name]},  # itself
    {"forget": [transaction(149).name], "runs": [{"folder": f"{transaction(149).name}/merged", "rows": 1, **EMPTY}]},
    {"forget": [None]},
    {"runs": [{"folder": "../victim/changes", "rows": 1}]},
    {"runs": [{"folder": f"{transaction(149).name}/other", "rows": 1}]},
    {"txn": "../victim"},
    {"txn": ""},
    {"txn": transaction(150, sink="other").name},
]


@pytest.mark.parametrize("wrong", FOREIGN)
def test_a_forged_handle_touches_nothing(root: Path, tmp_path: Path, wrong: Mapping[str, Any]) -> None:
    (tmp_path / "victim" / "changes").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with raises(CannotPublish, "handle-damaged"):
        commit(root, handle(**wrong))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_forged_run_is_not_read(root: Path) -> None:
    run = {"folder": "../victim/changes", "rows": 1}
    before = handle(149, runs=[run], schema=CONFIG.schema, key=["page"])
    with raises(InvalidPipeline, "handle-damaged"):
        StateWriter(CONFIG, str(root)).read(None, before)


# ---- given up, published, published before


def test_a_state_that_was_given_up_is_not_published(root: Path) -> None:
    sink = StateWriter(CONFIG, str(root))
    assert [sink.fence(handle(), 7), sink.fence(handle(), 7)] == [None, None]
    with raises(Fenced, "sink-given-up"):
        commit(root, handle())
    assert not (root / transaction(150).name / DONE).exists()
    assert (root / transaction(150).name / "changes").exists()
    assert sink.traces("pages") == []


def test_a_state_that_was_published_is_not_given_up(root: Path) -> None:
    commit(root, handle())
    assert StateWriter(CONFIG, str(root)).fence(handle(), 7) == Outcome(already=True, detail={"rows": 1})
    assert commit(root, handle()).already


def test_a_state_that_is_gone_and_a_rewind_can_be_given_up(root: Path) -> None:
    sink = StateWriter(CONFIG, str(root))
    assert sink.fence(handle(151), 7) is None
    assert sink.fence(handle(txn=None), 7) is None
    assert epochs(root) == [10, 149, 150]


def test_another_transaction_has_published_the_same_epoch(root: Path) -> None:
    """The state table was restored from an older copy, and numbers epochs again."""
    (root / transaction(150, attempt=2).name / "changes").mkdir(parents=True)
    commit(root, handle())
    with raises(StateBehind, "state-behind") as behind:
        commit(root, handle(attempt=2))
    assert "onceonly state forward FILE.py:NAME --decision" in behind.value.todo
    assert not (root / transaction(150, attempt=2).name / DONE).exists()


def test_the_last_decision_is_shown_and_of_this_pipeline_and_sink_alone(root: Path) -> None:
    sink = StateWriter(CONFIG, str(root))
    for txn in (transaction(200, sink="other"), transaction(200, pipeline="other")):
        (root / txn.name).mkdir()
        (root / txn.name / DONE).write_text(json.dumps({"decision": 99}))
    assert sink.traces("pages") == []
    (root / transaction(10).name / DONE).touch()  # by an earlier version
    assert sink.traces("pages") == [Trace(STATE, 0, f"state {root}")]
    commit(root, handle(), decision=7)
    assert sink.traces("pages") == [Trace(STATE, 7, f"state {root}")]
    assert StateWriter(CONFIG, str(root / "nowhere")).traces("pages") == []
