"""What an entry of a log on an object store tells of those before it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from codes import raises
from unit.statetable.test_state_contract import pin, planned, through_delta_rs

from onceonly.checkpoint.model import Event
from onceonly.errors import OutcomeUnknown
from onceonly.statetable import location, store_log
from onceonly.statetable import table as state
from onceonly.statetable.log import Entry
from onceonly.statetable.table import StateTable
from onceonly.storage.objects import Objects


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateTable:
    through_delta_rs(monkeypatch)
    return StateTable.make(str(tmp_path / "state"))


def log(stored: StateTable) -> Path:
    return Path(location.table_folder(stored.uri, "flights"), "_delta_log")


def entry(stored: StateTable, version: int) -> Path:
    return log(stored) / f"{version:020}.json"


def told(stored: StateTable, version: int) -> list[Entry]:
    return store_log.unpack_entries(version, entry(stored, version).read_text().splitlines())


def test_an_entry_tells_of_all_before_it(stored: StateTable) -> None:
    pin(stored, 4)
    found = told(stored, 4)
    assert [each.version for each in found] == [3, 2, 1, 0]
    assert [each.row.seq if each.row else None for each in found] == [3, 2, 1, None]
    rows = {row.id for row in stored.history("flights")}
    assert {each.row.id for each in found if each.row} < rows


def test_one_entry_is_read_for_all_rows(stored: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    pin(stored, 9)
    read, real = list[str](), Objects.read
    monkeypatch.setattr(Objects, "read", lambda files, path, tag=None: read.append(path) or real(files, path, tag))
    assert [row.seq for row in StateTable(stored.uri).history("flights")] == list(range(1, 10))
    assert [path for path in read if path.endswith(".json") and f"{0:020}" not in path] == [f"_delta_log/{9:020}.json"]


def test_it_ends_with_the_row_before_the_last_merge(stored: StateTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 2)
    pin(stored, 4)
    stored.tidy(stored.view("flights"))
    pin(stored, 2)
    (merged,) = [each for each in told(stored, max_version(stored)) if each.merges]
    assert told(stored, max_version(stored))[-1].version == merged.version - 1
    assert [row.seq for row in StateTable(stored.uri).history("flights")] == list(range(1, 7))


def max_version(stored: StateTable) -> int:
    return max(int(path.name[:20]) for path in log(stored).glob("*.json") if path.name[0] != "_")


def test_it_stops_where_it_grows_large_or_another_program_has_written(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(stored, 4)
    known = {each.version: each for each in told(stored, 4)}
    assert store_log.pack_entries(4, {**known, 2: Entry(2, foreign=True)}) == store_log.pack_entries(4, {3: known[3]})
    assert store_log.pack_entries(4, {3: known[3], 1: known[1]}) == store_log.pack_entries(4, {3: known[3]})
    assert store_log.pack_entries(4, {}) == {}
    monkeypatch.setattr(store_log, "MAX_PACKED_BYTES", 10)
    assert store_log.pack_entries(4, known) == store_log.pack_entries(4, {3: known[3]})


def test_what_cannot_be_unpacked_is_damage(stored: StateTable) -> None:
    pin(stored, 2)
    lines = [json.loads(line) for line in entry(stored, 2).read_text().splitlines()]
    lines[0]["commitInfo"][store_log.PACKED] = "0" * 20
    entry(stored, 2).write_text("\n".join(map(json.dumps, lines)))
    with raises(OutcomeUnknown, "state-table-damaged"):
        StateTable(stored.uri).view("flights")


def test_an_entry_that_is_missing_is_damage_although_later_ones_tell_of_it(stored: StateTable) -> None:
    pin(stored, 4)
    entry(stored, 2).unlink()
    with raises(OutcomeUnknown, "state-table-damaged"):
        StateTable(stored.uri).view("flights")


# ---- looks at the identity of the state table, which count for a while


def test_a_new_table_in_its_place_is_noticed_at_once(stored: StateTable) -> None:
    view = pin(stored)
    shutil.rmtree(stored.uri)
    StateTable.make(stored.uri)
    with raises(OutcomeUnknown, "state-table-replaced"):
        stored.view("flights")
    with raises(OutcomeUnknown, "row-unknown") as unknown:
        stored.append(view, planned(view, start=1))
    assert stored.id in unknown.value.why


def test_a_new_table_that_has_rows_already_is_noticed_at_once(stored: StateTable) -> None:
    view = pin(stored)
    shutil.rmtree(stored.uri)
    pin(StateTable.make(stored.uri), 3)
    for again in (
        lambda: stored.view("flights"),
        lambda: stored.append(view, planned(view, start=1, event=Event.EMPTY)),
    ):
        with pytest.raises(OutcomeUnknown):
            again()


def test_a_table_that_was_forked_is_noticed_when_the_look_is_old(
    stored: StateTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    pin(stored)
    location.fork(stored.uri)
    monkeypatch.setattr(stored, "_looked", time.monotonic() - state.IDENTITY_FRESH_SECONDS)
    with raises(OutcomeUnknown, "state-table-replaced"):
        stored.view("flights")
