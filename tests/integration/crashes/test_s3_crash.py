"""A process is killed at a request that it sends to a store's server, before or after the server has done it."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from integration.faults.s3_kills import dies
from integration.faults.s3_proxy import Proxy
from integration.services.store_server import StoreServer
from integration.services.stores import everywhere, on_most
from integration.victims import mortal_s3
from patience import PATIENCE

from onceonly.coordinator.coordinator import Coordinator
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeSource

pytestmark = pytest.mark.integration
numbers = count()
PARTS = 4


def records(folder: Path, root: str) -> Path:
    """A source with records, and an empty state table."""
    folder.mkdir()
    StateTable.make(f"{root}/state")
    FakeSource("flights", folder).append(0, *((mortal_s3.NOON, value) for value in range(12)))
    return folder


def settled(folder: Path, root: str) -> Coordinator:
    """After whoever was killed: all that is left is done by others."""
    while mortal_s3.run(str(folder), root):
        pass
    return mortal_s3.coordinator(folder, root)


def check_truth(through: Coordinator, root: str) -> None:
    for name in mortal_s3.SINKS:
        assert sorted(DeltaTable(f"{root}/{name}").to_pyarrow_table()["n"].to_pylist()) == list(range(12))
    assert through.state_table.view("flights").open == []
    through.sweep("flights")
    sinks: list[Any] = [through.parts.sink(mortal_s3.flights(*mortal_s3.SINKS), name) for name in mortal_s3.SINKS]
    assert [sink.leftovers(f"{through.state_table.id}-flights") for sink in sinks] == [[], []]


@pytest.mark.crash
@on_most
@pytest.mark.parametrize(("number", "after"), [(11, True), (26, False)])
def test_rows_arrive_once_wherever_it_dies_on_a_store(
    server: StoreServer, between: Proxy, tmp_path: Path, number: int, after: bool
) -> None:
    root = server.uri(f"crash-{next(numbers)}")
    folder = records(tmp_path / "source", root)
    assert dies(between, mortal_s3.run, str(folder), root, number, after)
    check_truth(settled(folder, root), root)


@pytest.mark.heavy
@everywhere
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_arrive_once_whichever_change_it_dies_at(
    server: StoreServer, between: Proxy, tmp_path: Path, part: int, after: bool
) -> None:
    for number in count(part + 1, PARTS):
        root = server.uri(f"crash-{next(numbers)}")
        folder = records(tmp_path / f"source-{number}", root)
        if not dies(between, mortal_s3.run, str(folder), root, number, after):
            break
        check_truth(settled(folder, root), root)
    assert number > 24
    print(f"killed at every change up to {number - PARTS}, in steps of {PARTS}")


@pytest.mark.heavy
def test_rows_arrive_once_when_the_server_is_killed_all_the_time(server: StoreServer, tmp_path: Path) -> None:
    root = server.uri(f"crash-{next(numbers)}")
    folder = records(tmp_path / "source", root)
    done = threading.Event()

    def restarting() -> None:
        while not done.wait(0.7):
            server.kill()
            server.start()

    killer = threading.Thread(target=restarting)
    killer.start()
    try:
        through = patiently(folder, root)
    finally:
        done.set()
        killer.join(PATIENCE)
    check_truth(through, root)


def patiently(folder: Path, root: str) -> Coordinator:
    while True:
        try:
            return settled(folder, root)
        except Exception as error:
            print(f"again, after {type(error).__name__}: {str(error).splitlines()[0]}")
