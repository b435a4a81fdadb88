"""Pipelines behind a table that went back stop, and are named."""

from typing import ClassVar

import pytest
from person import Person
from unit.chain import TEN, Chain, Parts
from unit.lightdelta import LightDelta

from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.errors import ActionNeeded


class Proving(LightDelta):
    """Its target goes back where `lost` says so."""

    lost: ClassVar[set[str]] = set()
    decision = 0

    def compare(self, last):
        is_lost = self.name in self.lost and not last.proof.get("accepted")
        return History(Answer.WENT_BACK, "it is older", self.decision) if is_lost else History(Answer.SAME)

    def find_current_publication(self, last):
        return Publication(last.epoch, self.decision, {**last.proof, "accepted": True})


@pytest.fixture
def proving(monkeypatch) -> None:
    def sink(self, pipeline, name):
        return Proving(self.folder / pipeline.sink(name).path, name)

    monkeypatch.setattr(Parts, "sink", sink)
    monkeypatch.setattr(Proving, "lost", set())


@pytest.fixture
def chain(tmp_path, proving) -> Chain:
    chain = Chain(tmp_path)
    chain.put(1, 2)
    chain.run(chain.first)
    chain.run(chain.second)
    chain.put(3)
    return chain


def test_the_refusal_names_the_pipelines_behind(chain):
    Proving.lost.add("lake")
    with pytest.raises(ActionNeeded) as refusal:
        chain.plan(chain.first)
    assert refusal.value.code == "target-went-back"
    assert "Pipelines that read it stop as well: second" in refusal.value.why


def test_the_pipeline_behind_stops(chain):
    chain.run(chain.first)
    Proving.lost.add("lake")
    with pytest.raises(ActionNeeded) as refusal:
        chain.plan(chain.second)
    assert refusal.value.code == "target-went-back"
    assert "sink 'lake' of 'first'" in refusal.value.what
    assert "onceonly accept-loss first lake" in refusal.value.todo
    Proving.lost.clear()
    chain.run(chain.second)
    assert chain.rows("out") == [1001, 1002, 1003]


def test_the_pipeline_before_is_not_stopped(chain):
    Proving.lost.add("out")
    chain.run(chain.first)
    with pytest.raises(ActionNeeded):
        chain.plan(chain.second)


def accept(chain: Chain) -> None:
    Proving.lost.add("lake")
    Person(chain.through).accept_loss("first", "lake", Acceptance("ann", "lost"))


def test_what_is_missing_is_not_read(chain, monkeypatch):
    chain.run(chain.first)
    monkeypatch.setattr(Proving, "decision", 1)
    accept(chain)
    assert [sorted(chain.now("first", epoch).missing) for epoch in (1, 2)] == [[], ["lake"]]
    assert chain.plan(chain.second) is None


def test_an_interval_that_is_missing_has_no_rows(proving, tmp_path):
    chain = Chain(tmp_path, "interval")
    chain.put(1, 2)
    chain.run(chain.first, TEN)
    accept(chain)
    planned = chain.plan(chain.second, TEN)
    assert (planned.state.value, [range_.offset_count for range_ in planned.ranges]) == ("committed", [0])
