"""What the owner of a table has set holds for our writes, by every route that needs no Spark."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, LightMerge, LightReplace, transaction

from onceonly.delta import log_files
from onceonly.errors import CannotPublish, NotCommitted
from onceonly.sinks.delta import append
from onceonly.sinks.delta.errors import TRANSACTION_RETENTION
from onceonly.sinks.delta.handle import DeltaHandle

pytestmark = pytest.mark.slow

DAYS = 24 * 3600
EVERY, KEPT, CLEANUP = "delta.checkpointInterval", "delta.logRetentionDuration", "delta.enableExpiredLogCleanup"
Publish = Callable[[LightDelta, Any, int], Any]


def commit(lake: LightDelta, handle: Any, decision: int) -> Any:
    return lake.commit(lake.rehearse(handle, decision), decision, None)  # type: ignore[arg-type]


def put(lake: LightDelta, handle: Any, decision: int) -> Any:
    """As to an object store."""
    assert append.publish(lake.name, lake.uri, DeltaHandle.parse(lake.name, handle), decision)


def close(lake: LightDelta, handle: Any, decision: int) -> Any:
    lake.fence(handle, decision)


ROUTES: dict[str, tuple[Callable[[Path], LightDelta], Publish]] = {
    "append": (LightDelta, commit),
    "merge": (LightMerge, commit),
    "replace": (LightReplace, commit),
    "object store": (LightDelta, put),
    "closed": (LightDelta, close),
}


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LightDelta, Publish]:
    make, publish = ROUTES[request.param]
    return make(tmp_path / "lake"), publish


def set_properties(lake: LightDelta, **properties: str) -> None:
    DeltaTable(lake.uri).alter.set_table_properties(properties, raise_if_not_exists=False)


def entries(lake: LightDelta) -> list[int]:
    return sorted(
        int(path.name[:20]) for path in Path(lake.uri, log_files.LOG_FOLDER).glob("*.json") if path.name[0] == "0"
    )


def write_for_two_months(route: tuple[LightDelta, Publish], **properties: str) -> tuple[LightDelta, int]:
    """Ten commits that are two months old, a log checkpoint among them, then ten of today; and how many there were."""
    lake, publish = route
    first = lake.stage(transaction(1), [1])
    set_properties(lake, **{EVERY: "5", **properties})
    for decision in range(1, 21):
        handle = first if decision == 1 else lake.stage(transaction(decision), [decision])
        publish(lake, handle, decision)
        if decision == 10:
            old = time.time() - 60 * DAYS
            for path in Path(lake.uri, log_files.LOG_FOLDER).iterdir():
                os.utime(path, (old, old))
    return lake, DeltaTable(lake.uri).version() + 1


def test_cleanup_that_the_owner_switched_off_stays_off(route: tuple[LightDelta, Publish]) -> None:
    lake, number = write_for_two_months(route, **{CLEANUP: "false", KEPT: "interval 30 days"})
    assert entries(lake) == list(range(number))


def test_entries_within_the_retention_stay(route: tuple[LightDelta, Publish]) -> None:
    lake, number = write_for_two_months(route, **{KEPT: "interval 90 days"})
    assert entries(lake) == list(range(number))


def test_expired_entries_are_removed_otherwise(route: tuple[LightDelta, Publish]) -> None:
    """By which the two tests above show something."""
    lake, number = write_for_two_months(route, **{KEPT: "interval 30 days"})
    assert len(entries(lake)) < number


@pytest.mark.parametrize("name", ["merge", "replace"])
def test_table_of_appends_alone_keeps_its_rows(tmp_path: Path, name: str) -> None:
    """Also where it became one between stage and commit."""
    lake = ROUTES[name][0](tmp_path / "lake")
    commit(lake, lake.stage(transaction(1), [1]), 1)
    handle = lake.stage(transaction(2), [1])
    version = DeltaTable(lake.uri).version()
    set_properties(lake, **{"delta.appendOnly": "true"})
    with pytest.raises((CannotPublish, NotCommitted)):
        lake.rehearse(handle, 2)
    with pytest.raises(CannotPublish):
        lake.commit(handle, 2, None)  # type: ignore[arg-type]
    assert DeltaTable(lake.uri).version() == version + 1


def test_table_of_appends_alone_takes_appends(tmp_path: Path) -> None:
    lake = LightDelta(tmp_path / "lake")
    handle = lake.stage(transaction(1), [1])
    set_properties(lake, **{"delta.appendOnly": "true"})
    commit(lake, handle, 1)
    assert lake.numbers() == [1]


@pytest.mark.parametrize("name", [name for name in ROUTES if name != "closed"])
def test_evidence_that_would_expire_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Before the decision, by the rehearsal, and by the write itself if it was set in between."""
    make, publish = ROUTES[name]
    lake = make(tmp_path / "lake")
    handle = lake.stage(transaction(1), [1])
    set_properties(lake, **{TRANSACTION_RETENTION: "interval 7 days"})
    version = DeltaTable(lake.uri).version()
    with pytest.raises(CannotPublish) as refused:
        if publish is put:
            append.rehearse(lake.name, lake.uri, DeltaHandle.parse(lake.name, handle), 1, None)
        else:
            lake.rehearse(handle, 1)
    assert refused.value.code == "transaction-retention"
    with pytest.raises(CannotPublish):
        put(lake, handle, 1) if publish is put else lake.commit(handle, 1, None)  # type: ignore[arg-type]
    assert DeltaTable(lake.uri).version() == version


def test_evidence_that_is_kept_again_is_enough(tmp_path: Path) -> None:
    """As the refusal says: the property is unset, and what was staged is published."""
    lake = LightDelta(tmp_path / "lake")
    handle = lake.stage(transaction(1), [1])
    set_properties(lake, **{TRANSACTION_RETENTION: "interval 7 days"})
    with pytest.raises(CannotPublish):
        lake.rehearse(handle, 1)
    unset(lake, TRANSACTION_RETENTION)
    commit(lake, handle, 1)
    assert lake.numbers() == [1]


def unset(lake: LightDelta, name: str) -> None:
    """As ALTER TABLE … UNSET TBLPROPERTIES, which delta-rs does not have."""
    version = DeltaTable(lake.uri).version()
    lines = Path(lake.uri, log_files.entry_path(version)).read_text().splitlines()
    actions = [json.loads(line) for line in lines if '"metaData"' in line]
    del actions[0]["metaData"]["configuration"][name]
    Path(lake.uri, log_files.entry_path(version + 1)).write_text(json.dumps(actions[0]))
