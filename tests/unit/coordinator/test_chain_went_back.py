"""Pipelines behind a table that went back stop, and are named."""

from typing import ClassVar

import pytest
from unit.chain import Chain
from unit.lightdelta import LightDelta

from onceonly.checkpoint.model import Outcome
from onceonly.checkpoint.sink import Answer, History, ProvesHistory
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.errors import ActionNeeded


class Proving(LightDelta, ProvesHistory):
    """Its target goes back where `lost` says so."""

    lost: ClassVar[set[str]] = set()

    def commit(self, handle, decision, receipts, last=None):
        done = super().commit(handle, decision, receipts, last)
        return Outcome(done.already, done.detail, {"target": self.uri})

    def compare(self, last):
        return History(Answer.WENT_BACK, "it is empty") if self.name in self.lost else History(Answer.SAME)

    def proof_now(self, last):
        return None


@pytest.fixture
def chain(tmp_path, monkeypatch) -> Chain:
    chain = Chain(tmp_path)
    monkeypatch.setattr(
        type(chain.parts), "sink", lambda self, pipeline, name: Proving(self.folder / pipeline.sink(name).path, name)
    )
    monkeypatch.setattr(Proving, "lost", set())
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


def test_after_the_loss_is_accepted_nothing_is_read_of_it(chain):
    Proving.lost.add("lake")
    chain.through.accept_loss("first", "lake", Acceptance("ann", "lost"))
    Proving.lost.clear()
    assert chain.now("first", 1).missing.keys() == {"lake"}
