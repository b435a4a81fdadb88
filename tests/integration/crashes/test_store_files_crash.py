"""Files on a real object store: a process is killed at a request, an answer is lost, uploads expire, two commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from integration.faults.s3_kills import dies
from integration.faults.s3_proxy import Fault, OneChange, Proxy, Request, Rule
from integration.projects.light_stores import LightStoreFiles, Reader, Store, reader
from integration.services.store_server import BUCKET, StoreServer
from integration.services.stores import everywhere, on_most
from integration.victims import mortal_s3, mortal_store_files
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.coordinator.coordinator import Coordinator
from onceonly.dev.demo.standalone import wait_until
from onceonly.errors import OnceonlyError
from onceonly.statetable.table import StateTable
from onceonly.storage import manifests
from onceonly.testing.fakes import FakeSource

pytestmark = pytest.mark.integration
numbers = count()
PARTS, VALUES = 2, 12
CHANGES = {  # of a checkpoint: of its stage, its commit, and its release
    "s3": 7 + 5 + 2,
    "az": 3 + 5 + 4,
    "gs": 3 + 5 + 4,
}


@dataclass
class Unreliable(Rule):
    """Of eleven requests four fail: before they are done, after it, or in the middle of the answer."""

    number: int = 0

    def fault(self, request: Request) -> Fault | None:
        self.number += 1
        failing = {1: Fault.LOST, 4: Fault.BUSY_AFTER, 7: Fault.LOST_BEFORE, 9: Fault.BROKEN}
        return failing.get(self.number % 11)


@pytest.fixture
def between(between: Proxy, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """This process asks through it, too."""
    for name, value in between.environment.items():
        monkeypatch.setenv(name, value)
    return between


@dataclass(frozen=True)
class World:
    folder: Path
    name: str
    store: StoreServer

    @classmethod
    def make(cls, folder: Path, store: StoreServer) -> World:
        """A source with records, an empty state table, and a store that was tried."""
        folder.mkdir()
        made = cls(folder, f"files-crash-{next(numbers)}", store)
        StateTable.make(str(folder / "state"))
        FakeSource("flights", folder).append(0, *((mortal_s3.NOON, value) for value in range(VALUES)))
        for sink in made.sinks:
            sink.check()
        return made

    @property
    def root(self) -> str:
        return self.store.uri(self.name)

    @property
    def sinks(self) -> list[LightStoreFiles]:
        return [LightStoreFiles(f"{self.root}/{name}", name) for name in mortal_store_files.SINKS]

    @property
    def through(self) -> Coordinator:
        return mortal_store_files.coordinator(self.folder, self.root)

    def settle(self) -> None:
        """After whoever was killed: all that is left is done by others."""
        while mortal_store_files.run(str(self.folder), self.root):
            pass

    @property
    def shown(self) -> Reader:
        return reader(self.store.uri("").rstrip("/"))

    def check_truth(self) -> None:
        store, through = self.shown, self.through
        through.sweep("flights")
        assert through.state_table.view("flights").open == []
        for sink in mortal_store_files.SINKS:
            assert store.numbers(f"{self.name}/{sink}/", "value") == list(range(VALUES))
            listed = manifests.dataset(f"{self.root}/{sink}").to_table()
            assert sorted(listed["value"].to_pylist()) == list(range(VALUES))
        staged = [key for key in store.keys(f"{self.name}/") if ".staged/" in key and not key.endswith("/.tried")]
        assert staged == []


def staged(world: World) -> int:
    """The epoch of a checkpoint that is staged and decided, and of which nothing is published."""
    through = world.through
    planned = through.plan(mortal_store_files.flights(), "run", lambda checkpoint: True).checkpoint
    assert planned
    through.stage("flights", planned.epoch, through.parts.produce, "run")  # type: ignore[attr-defined]
    return planned.epoch


@on_most
@pytest.mark.crash
@pytest.mark.parametrize(("number", "after"), [(9, True)])
def test_files_arrive_once_wherever_it_dies_on_a_store(
    server: StoreServer, between: Proxy, tmp_path: Path, number: int, after: bool
) -> None:
    world = World.make(tmp_path / "source", server)
    assert dies(between, mortal_store_files.run, str(world.folder), world.root, number, after)
    world.settle()
    world.check_truth()


@everywhere
@pytest.mark.heavy
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", range(PARTS))
def test_files_arrive_once_whichever_change_it_dies_at(
    server: StoreServer, between: Proxy, tmp_path: Path, part: int, after: bool
) -> None:
    for number in count(part + 1, PARTS):
        world = World.make(tmp_path / f"source-{number}", server)
        if not dies(between, mortal_store_files.run, str(world.folder), world.root, number, after):
            break
        world.settle()
        world.check_truth()
    assert number > CHANGES[server.scheme]
    print(f"killed at every change up to {number - PARTS}, in steps of {PARTS}")


def test_what_an_expired_upload_lost_is_written_again_from_the_staged_copy(server: StoreServer, tmp_path: Path) -> None:
    world = World.make(tmp_path / "source", server)
    epoch = staged(world)
    assert Store(BUCKET).abort_all(f"{world.name}/") == 2, "of two files"
    world.through.commit("flights", epoch)
    world.settle()
    world.check_truth()


@everywhere
@pytest.mark.heavy
def test_no_answer_that_is_lost_while_publishing_costs_or_doubles_a_row(
    server: StoreServer, between: Proxy, tmp_path: Path
) -> None:
    """The client itself asks again, and believes the object."""
    world = World.make(tmp_path / "source", server)
    epoch = staged(world)
    between.let(OneChange(2, Fault.LOST))
    world.through.commit("flights", epoch)
    world.settle()
    world.check_truth()


@everywhere
@pytest.mark.heavy
@pytest.mark.parametrize("what", [Fault.LOST, Fault.BUSY_AFTER, Fault.DENIED])
def test_any_answer_may_be_lost(server: StoreServer, between: Proxy, tmp_path: Path, what: Fault) -> None:
    for number in count(1):
        world = World.make(tmp_path / f"source-{number}", server)
        between.let(OneChange(number, what))
        try:
            mortal_store_files.run(str(world.folder), world.root)
        except Exception as error:  # of whatever kind: others settle it
            print(number, type(error).__name__)
        came = sum(request.changes for request in between.seen) >= number
        between.let(Rule())
        world.settle()
        world.check_truth()
        if not came:
            break
    assert number > CHANGES[server.scheme]


@on_most
def test_two_committers_at_once_publish_every_file_once(server: StoreServer, tmp_path: Path) -> None:
    world = World.make(tmp_path / "source", server)
    epoch = staged(world)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(world.through.commit, "flights", epoch) for _ in range(2)]:
            future.result()
    assert world.through.state_table.view("flights").require(epoch).state is State.COMMITTED
    world.settle()
    world.check_truth()


def commit(world: World, epoch: int) -> None:
    """Again and again, as Airflow does."""
    for _ in range(9):
        try:
            world.through.commit("flights", epoch)
            return
        except OnceonlyError as error:
            print(type(error).__name__, error.why)
    raise AssertionError("no try was enough")


@on_most
def test_committers_at_once_behind_slow_and_failing_requests_publish_every_file_once(
    server: StoreServer, between: Proxy, tmp_path: Path
) -> None:
    world = World.make(tmp_path / "source", server)
    epoch = staged(world)
    between.let(Unreliable(), delay=0.02)
    with ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(commit, world, epoch) for _ in range(3)]:
            future.result()
    print(f"{len(between.seen)} requests")
    between.let(Rule())
    world.settle()
    world.check_truth()


@on_most
@pytest.mark.crash
@pytest.mark.parametrize("number", [1, 2, pytest.param(4, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("after", [False, True])
def test_a_committer_that_is_killed_beside_another_one_costs_no_file(
    server: StoreServer, between: Proxy, tmp_path: Path, number: int, after: bool
) -> None:
    """Once it has looked, the other begins. The changes of both are counted, and at one of them it is killed."""
    world = World.make(tmp_path / "source", server)
    epoch = staged(world)
    between.let(Rule())
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(dies, between, mortal_store_files.run, str(world.folder), world.root, number, after)
        wait_until(lambda: bool(between.seen) or killed.done(), "it has asked for something", PATIENCE, every=0.01)
        commit(world, epoch)
        assert killed.result(), "it had come so far"
    between.let(Rule())
    world.settle()
    world.check_truth()
