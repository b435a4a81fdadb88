"""Published rows that are merged into or replaced on a real object store, while processes die, meet, or get no answer.

Appended rows are here where `test_s3_crash` does not have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from integration.faults.s3_kills import dies
from integration.faults.s3_proxy import FORK, Failing, Fault, OneChange, Proxy, Rule
from integration.services.store_server import StoreServer
from integration.services.stores import everywhere
from integration.victims import mortal_store_delta
from integration.victims.mortal_store_delta import World
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.storage.objects import Objects

pytestmark = [pytest.mark.integration, pytest.mark.crash]
numbers = count()
ENTRY = r"/lake/_delta_log/\d{20}\.json$"
COPIES = r"/lake/staged-.*/merge-.*/_delta_log/\d{20}\.json$"
MARK = r"/lake/staged-.*/_settled$"
CHANGING = ["merge", "partitions", "again"]
FAULTS = (Fault.LOST_BEFORE, Fault.LOST, Fault.BUSY, Fault.BUSY_AFTER)
on_most_kinds = pytest.mark.parametrize(
    "name", ["merge", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("append", "partitions", "again"))]
)


def begun(folder: Path, server: StoreServer, name: str) -> World:
    number = next(numbers)
    world = World(folder / f"source-{number}", server.uri(f"changing-{number}"), name)
    world.begin()
    return world


def run(world: World) -> Any:
    return partial(mortal_store_delta.run, name=world.name)


def killed(between: Proxy, world: World, number: int, after: bool, where: str = "") -> bool:
    return dies(between, run(world), str(world.folder), world.root, number, after, where)


def check_truth(world: World) -> None:
    """By an independent reader; nothing is staged any more, and nobody needs what is no part of the table."""
    assert world.kind.shown(world.lake) == world.kind.truth
    through = world.through
    assert through.state_table.view("flights").open == []
    through.sweep("flights")
    assert world.kind.at(world.lake).leftovers(f"{through.state_table.id}-flights") == []
    inner = [entry.path for entry in Objects(world.lake).list_objects() if "/_delta_log/" in entry.path]
    assert inner == [], "the log of a staged folder"
    DeltaTable(world.lake).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert world.kind.shown(world.lake) == world.kind.truth


@pytest.mark.parametrize(
    ("name", "where", "after"),
    [
        ("merge", COPIES, True),
        ("merge", ENTRY, True),
        ("partitions", ENTRY, False),
        ("partitions", MARK, False),
        ("again", ENTRY, True),
    ],
)
def test_rows_are_changed_once_wherever_it_dies_on_a_store(
    server: StoreServer, between: Proxy, tmp_path: Path, name: str, where: str, after: bool
) -> None:
    world = begun(tmp_path, server, name)
    assert killed(between, world, 1, after, where)
    world.settle()
    check_truth(world)


@pytest.mark.heavy
@everywhere
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", CHANGING)
def test_rows_are_changed_once_whichever_change_it_dies_at(
    server: StoreServer, between: Proxy, tmp_path: Path, name: str, after: bool
) -> None:
    for number in count(1):
        world = begun(tmp_path, server, name)
        came = killed(between, world, number, after)
        world.settle()
        check_truth(world)
        if not came:
            break
    print(f"killed at each of {number - 1} changes")
    assert number > 18


@pytest.mark.heavy
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("first", [False, True], ids=["before the entry", "after the entry"])
@pytest.mark.parametrize("name", CHANGING)
def test_who_recovers_may_die_at_any_change_as_well(
    server: StoreServer, between: Proxy, tmp_path: Path, name: str, first: bool, after: bool
) -> None:
    for number in count(1):
        world = begun(tmp_path, server, name)
        assert killed(between, world, 1, first, ENTRY)
        came = killed(between, world, number, after)
        world.settle()
        check_truth(world)
        if not came:
            break
    print(f"killed at each of {number - 1} changes")
    assert number > 2


# ---- two at once


@on_most_kinds
def test_two_committers_at_once_publish_once_on_a_store(server: StoreServer, tmp_path: Path, name: str) -> None:
    world = begun(tmp_path, server, name)
    epoch = world.staged()
    at_once(world, epoch, [server.environment] * 2)
    assert world.through.state_table.view("flights").require(epoch).state is State.COMMITTED
    world.settle()
    check_truth(world)


def at_once(world: World, epoch: int, environments: list[Mapping[str, str]]) -> None:
    """As many processes commit that checkpoint, and each of them succeeds."""
    go = FORK.Event()
    found = [
        FORK.Process(target=mortal_store_delta.commit, args=(go, environment, world, epoch))
        for environment in environments
    ]
    for process in found:
        process.start()
    go.set()
    for process in found:
        process.join(PATIENCE)
    assert [process.exitcode for process in found] == [0] * len(found)


# ---- answers that are lost, and requests that fail or are slow


@pytest.fixture
def asking(between: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """This process asks through it, too."""
    for name, value in between.environment.items():
        monkeypatch.setenv(name, value)
    return between


@pytest.mark.parametrize(("name", "what"), list(zip(CHANGING, (Fault.LOST, Fault.BUSY_AFTER, Fault.LOST), strict=True)))
def test_rows_are_changed_once_although_the_answer_of_the_commit_is_lost(
    server: StoreServer, asking: Proxy, tmp_path: Path, name: str, what: Fault
) -> None:
    world = begun(tmp_path, server, name)
    epoch = world.staged()
    asking.let(OneChange(1, what, ENTRY))
    world.through.commit("flights", epoch)
    world.settle()
    check_truth(world)


@pytest.mark.heavy
@everywhere
@pytest.mark.parametrize("what", [Fault.LOST, Fault.BUSY_AFTER, Fault.DENIED])
@pytest.mark.parametrize("name", list(mortal_store_delta.KINDS))
def test_any_answer_may_be_lost_while_rows_are_changed(
    server: StoreServer, asking: Proxy, tmp_path: Path, name: str, what: Fault
) -> None:
    for number in count(1):
        world = begun(tmp_path, server, name)
        asking.let(OneChange(number, what))
        attempt(world)
        came = sum(request.changes for request in asking.seen) >= number
        asking.let(Rule())
        world.settle()
        check_truth(world)
        if not came:
            break
    assert number > 18


def attempt(world: World) -> None:
    try:
        mortal_store_delta.run(str(world.folder), world.root, world.name)
    except Exception as error:  # of whatever kind: others settle it
        print(type(error).__name__, str(error).splitlines()[0])


@on_most_kinds
def test_rows_are_changed_once_on_a_store_that_is_slow_and_often_fails(
    server: StoreServer, asking: Proxy, tmp_path: Path, name: str
) -> None:
    world = begun(tmp_path, server, name)
    asking.let(Failing(5, FAULTS), delay=0.01)
    attempt(world)
    asking.let(Rule())
    world.settle()
    check_truth(world)
