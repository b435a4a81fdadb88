"""Each sink that proves its target's history, on real tables and folders: restored, not mounted, brought back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from person import Person
from unit.lightdelta import LightDelta, LightParts
from unit.lightfiles import FileParts, LightFiles
from unit.world import World

from onceonly.checkpoint.model import State, Transaction
from onceonly.checkpoint.sink import TargetHistory
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.target_history import last_publication
from onceonly.errors import ActionNeeded, TargetWentBack
from onceonly.pipeline.sinks import DeltaSink
from onceonly.testing.fakes import FakeParts, FakeSink, FakeSource

pytestmark = pytest.mark.slow

THREE = [DeltaSink(name, name) for name in ("lake", "files", "late")]
FIVE = [0, 1, 2, 3, 4]
NEVER: Any = None  # the handles of these sinks are never replaced


class DeltaParts(LightParts):
    """Real Delta tables; rows are numbers."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "delta", FakeParts(folder))

    def produce(self, checkpoint: Any) -> dict[str, list[int]]:
        rows: dict[str, Any] = self._rest.produce(checkpoint)
        return {name: [row["value"] for row in rows[name]] for name in checkpoint.sinks}


@dataclass(frozen=True)
class Kind:
    """How a kind of sink is made and read."""

    sink: type
    parts: type

    def folder(self, live: Any) -> Path:
        return Path(getattr(live, "folder", None) or live.uri)

    def values(self, live: Any) -> list[int]:
        if not self.folder(live).exists():
            return []
        if isinstance(live, FakeSink):
            return [row["value"] for row in live.rows()]
        values: list[int] = live.numbers() if isinstance(live, LightDelta) else live.values()
        return values


KINDS = [Kind(FakeSink, FakeParts), Kind(LightFiles, FileParts), Kind(LightDelta, DeltaParts)]
PROVING = [kind for kind in KINDS if issubclass(kind.sink, TargetHistory)]


class Lake(World):
    """A pipeline with three sinks of one kind, whose targets can be exchanged."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        super().__init__(folder, sinks=THREE)
        self.kind, self.parts = kind, kind.parts(folder)
        self.kept = folder / "kept"
        self.run("run-1")

    @property
    def source(self) -> FakeSource:
        rest = getattr(self.parts, "_rest", self.parts)
        return FakeSource("flights", rest.folder)

    def live(self, name: str) -> Any:
        return self.parts.sink(self.pipeline, name)

    def values(self, name: str) -> list[int]:
        return sorted(self.kind.values(self.live(name)))

    def places(self, name: str) -> Iterator[Path]:
        """The target, and what a sink keeps beside it."""
        folder = self.kind.folder(self.live(name))
        yield from sorted(folder.parent.glob(f"*{folder.name}*"))

    def keep(self, name: str, to: str) -> None:
        for place in self.places(name):
            shutil.copytree(place, self.kept / to / place.name)

    def exchange(self, name: str, to: str = "", is_mounted: bool = False) -> None:
        """The target as it was kept; empty: a volume that is not mounted. What is there now is kept as "newest".

        Args:
            is_mounted: the target's folder exists, whatever is in it.
        """
        shutil.rmtree(self.kept / "newest", ignore_errors=True)
        parent = self.kind.folder(self.live(name)).parent
        self.keep(name, "newest")
        for place in self.places(name):
            shutil.rmtree(place)
        for place in (self.kept / to).iterdir() if to else ():
            shutil.copytree(place, parent / place.name)
        if is_mounted:
            self.kind.folder(self.live(name)).mkdir(exist_ok=True)

    def bring_back(self, name: str) -> None:
        parent = self.kind.folder(self.live(name)).parent
        for place in self.places(name):
            shutil.rmtree(place)
        for place in (self.kept / "newest").iterdir():
            shutil.copytree(place, parent / place.name)

    def rows(self, numbers: list[int]) -> list[Any]:
        """As the sinks of this kind stage them."""
        return numbers if self.kind.sink is LightDelta else [{"value": number} for number in numbers]

    def refuses(self, step: Any, code: str = "target-went-back") -> ActionNeeded:
        with pytest.raises(ActionNeeded) as refusal:
            step()
        assert refusal.value.code == code, str(refusal.value)
        return refusal.value


@pytest.fixture(params=PROVING, ids=lambda kind: kind.sink.__name__)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, request.param)


def test_a_restored_copy_is_refused_until_the_newest_is_back(lake):
    lake.keep("lake", "old")
    for number in (10, 11):
        lake.put(number)
        lake.run(f"run-{number}")
    lake.exchange("lake", "old")
    lake.put(12)
    error = lake.refuses(lambda: lake.plan("run-12"))
    assert "'lake'" in error.what and "epochs 2, 3 (2 rows)" in error.why
    assert lake.values("lake") == FIVE
    lake.bring_back("lake")
    lake.run("run-12")
    assert [lake.values(name) for name in ("lake", "files", "late")] == [[*FIVE, 10, 11, 12]] * 3


def test_an_empty_mount_point_stays_empty(lake):
    lake.put(10)
    lake.plan("run-2")
    lake.exchange("lake")
    lake.refuses(lambda: lake.stage(2))
    lake.refuses(lambda: lake.plan("run-2"))
    assert lake.values("lake") == []
    lake.bring_back("lake")
    lake.stage(2)
    assert lake.commit(2).state is State.COMMITTED
    assert lake.values("lake") == [*FIVE, 10]


def test_a_target_lost_after_the_stage_is_not_published_to(lake):
    lake.put(10)
    lake.plan("run-2")
    lake.stage(2)
    lake.exchange("lake")
    with pytest.raises(Exception) as refusal:
        lake.commit(2)
    assert refusal.value.code == "target-went-back"
    assert lake.values("lake") == []
    lake.bring_back("lake")
    lake.commit(2)
    assert lake.values("lake") == [*FIVE, 10]


def test_an_accepted_copy_is_continued(lake):
    lake.keep("lake", "old")
    lake.put(10)
    lake.run("run-2")
    lake.exchange("lake", "old")
    missing = Person(lake.coordinator).accept_loss("flights", "lake", Acceptance("ann", "the copy is all there is"))
    assert [publication.epoch for publication in missing] == [2]
    lake.put(11)
    lake.run("run-3")
    assert (lake.values("lake"), lake.values("files")) == ([*FIVE, 11], [*FIVE, 10, 11])


def test_what_was_accepted_as_lost_is_noticed_when_it_returns(lake):
    """Also right away, when nothing was published to the copy yet."""
    lake.keep("lake", "old")
    for number in (10, 11):
        lake.put(number)
        lake.run(f"run-{number}")
    lake.exchange("lake", "old")
    person, lost = Person(lake.coordinator), Acceptance("ann", "the copy is all there is")
    assert [publication.epoch for publication in person.accept_loss("flights", "lake", lost)] == [2, 3]
    lake.bring_back("lake")
    lake.put(12)
    error = lake.refuses(lambda: lake.plan("run-12"), "target-is-back")
    assert "It shows epochs 2, 3, recorded as missing" in error.why
    assert person.accept_loss("flights", "lake", Acceptance("ann", "it was found")) == []
    lake.run("run-12")
    assert [lake.values(name) for name in ("lake", "files")] == [[*FIVE, 10, 11, 12]] * 2
    assert lake.state.view("flights").head.missing == {}


def test_nothing_is_published_to_what_was_accepted_as_lost(lake):
    """It returns after the rehearsal has looked."""
    lake.keep("lake", "old")
    lake.put(10)
    lake.run("run-2")
    lake.exchange("lake", "old")
    person = Person(lake.coordinator)
    person.accept_loss("flights", "lake", Acceptance("ann", "the copy is all there is"))
    lake.bring_back("lake")
    live, view = lake.live("lake"), lake.state.view("flights")
    last = last_publication(live, view)
    lake.put(11)
    handle = live.stage(Transaction("ab" * 16, "flights", "lake", 3, 1, "0" * 12), lake.rows([11]))
    for step in (live.rehearse, lambda *given: live.commit(*given[:2], NEVER, given[2])):
        with pytest.raises(TargetWentBack) as refusal:
            step(handle, 3, last)
        assert refusal.value.code == "target-is-back"
    assert lake.values("lake") == [*FIVE, 10]


def test_an_accepted_absence_lets_the_next_stage_make_it(lake):
    lake.exchange("lake")
    Person(lake.coordinator).accept_loss("flights", "lake", Acceptance("ann", "the disk is lost"))
    lake.put(10)
    lake.run("run-2")
    assert (lake.values("lake"), lake.values("files")) == ([10], [*FIVE, 10])
    lake.exchange("lake")
    lake.put(11)
    lake.refuses(lambda: lake.plan("run-3"))


def test_a_sink_added_later_makes_its_target_once(lake):
    lake.pipeline = World(lake.parts.folder / "other", sinks=[*THREE, DeltaSink("new", "new")]).pipeline
    lake.put(10)
    lake.run("run-2")
    assert lake.values("new") == [10]
    lake.exchange("new")
    lake.put(11)
    lake.refuses(lambda: lake.plan("run-3"))
    assert lake.values("new") == []


def test_other_writers_are_no_loss(lake):
    """Rows of other pipelines, and of the same one under another state table, may come in between."""
    other = World(lake.parts.folder / "second", sinks=THREE, name="others")
    other.parts = lake.parts
    other.pipeline = World(lake.parts.folder / "third", sinks=THREE, name="others").pipeline
    other.put(30)
    planned = other.coordinator.plan(other.pipeline, "run-1", other.alive).checkpoint
    other.coordinator.stage("others", planned.epoch, lake.parts.produce)
    other.coordinator.commit("others", planned.epoch)
    lake.put(31)
    assert lake.run("run-2").state is State.COMMITTED


@pytest.mark.parametrize("copy", ["old", "empty"])
def test_a_target_that_was_found_again_may_go_back_again(lake, copy):
    """Whether the loss was of some publications, or of all."""
    lake.keep("lake", "old")
    (lake.kept / "empty").mkdir()
    lake.put(10)
    lake.run("run-2")
    epochs = {"old": [2], "empty": [1, 2]}[copy]
    person, lost = Person(lake.coordinator), Acceptance("ann", "the copy is all there is")
    for _ in range(2):
        lake.exchange("lake", copy, is_mounted=True)
        lake.refuses(lambda: lake.plan("run-3"))
        assert [publication.epoch for publication in person.accept_loss("flights", "lake", lost)] == epochs
        lake.bring_back("lake")
        assert person.accept_loss("flights", "lake", Acceptance("ann", "it was found")) == []
    lake.put(11)
    lake.run("run-3")
    assert lake.values("lake") == [*FIVE, 10, 11]
