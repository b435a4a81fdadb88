"""The state table on a real S3 server: what it promises on a disk, it promises there."""

import inspect
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count

import pytest
import unit.statetable.test_state_contract as contract
from integration import s3
from patience import PATIENCE

from onceonly.checkpoint.model import Event
from onceonly.errors import NotCommitted
from onceonly.statetable import table as state
from onceonly.statetable.table import Lost, StateTable

pytestmark = [pytest.mark.integration, pytest.mark.skipif(s3.BINARY is None, reason=s3.MISSING)]
WRITERS, TRIES = 8, 12
numbers = count()


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3]:
    with s3.server() as running:
        yield running


@pytest.fixture
def uri(server, monkeypatch) -> str:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{s3.BUCKET}/state-{next(numbers)}"


@pytest.fixture
def table(uri) -> StateTable:
    return StateTable.make(uri)


# Every demand of the contract that can be made of any table.
globals().update(
    (name, test)
    for name, test in vars(contract).items()
    if name.startswith("test_") and not {"stored", "tmp_path"} & set(inspect.signature(test).parameters)
)


def race(uri: str, writer: int) -> list[str]:
    """Try to be first that many times; returns the ids of the rows that were."""
    table, won = StateTable(uri), []
    for _ in range(TRIES):
        view = table.view("flights")
        row = contract.planned(view, f"writer {writer}", view.head.epoch, event=Event.EMPTY)
        try:
            table.append(view, row)
        except Lost:
            continue
        won.append(row.id)
    return won


def test_of_many_writers_exactly_one_is_first_each_time(uri, table):
    with ProcessPoolExecutor(WRITERS, multiprocessing.get_context("spawn")) as pool:
        won = [id for found in pool.map(race, [uri] * WRITERS, range(WRITERS)) for id in found]
    rows = table.history("flights")
    assert sorted(won) == sorted(row.id for row in rows)
    assert [row.seq for row in rows] == list(range(1, len(won) + 1))
    assert len(won) >= TRIES


def test_a_table_that_is_tidied_while_others_write_keeps_every_row(uri, table, monkeypatch):
    monkeypatch.setattr(state, "LONG", 5)
    for _ in range(4):
        contract.pin(table, 4)
        stale = StateTable(uri).view("flights")
        table.tidy(table.view("flights"))
        StateTable(uri).append(stale, contract.planned(stale, start=stale.head.epoch, event=Event.EMPTY))
    assert [row.seq for row in table.history("flights")] == list(range(1, 21))
    assert [row.seq for row in StateTable(uri).history("flights")] == list(range(1, 21))


def test_a_server_that_is_killed_leaves_each_row_written_or_not(server, uri, table):
    contract.pin(table, 3)
    view = table.view("flights")
    server.kill()
    try:
        with pytest.raises(NotCommitted, match="cannot be opened") as refused:
            table.append(view, contract.planned(view, start=3, event=Event.EMPTY))
        assert len(str(refused.value).splitlines()) == 3
    finally:
        server.start()
    after = StateTable(uri).view("flights")
    assert after.head.seq == 3
    assert StateTable(uri).append(after, contract.planned(after, start=3, event=Event.EMPTY)).head.seq == 4


def test_a_writer_that_is_killed_leaves_each_row_written_or_not(uri, table):
    contract.pin(table, 1)
    child = multiprocessing.get_context("spawn").Process(target=race_on, args=(uri,))
    child.start()
    while len(table.history("flights")) < 10:
        assert child.is_alive()
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(PATIENCE)
    rows = table.history("flights")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    view = table.view("flights")
    assert table.append(view, contract.planned(view, start=len(rows), event=Event.EMPTY)).head.seq == len(rows) + 1


def race_on(uri: str) -> None:
    while True:
        race(uri, 0)
