"""The half of the suite that is about rehearsals: what changes between stage and commit is refused before the decision.

A sink's suite lists what can change, and each entry becomes tests:

    class TestLines(SinkContract):
        breaks = (
            Break("staged file removed", remove_file, "again", first=True),
            Break("folder removed", remove_folder, "action"),
        )
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from onceonly.checkpoint.model import Handle, Outcome
from onceonly.checkpoint.sink import REFUSALS, DecisionTraces, Publication
from onceonly.errors import CannotPublish, StageAgain
from onceonly.testing.targets import Break, Committer, ContractFixtures, Stage, Target

EARLIER = 7  # the row of the checkpoint that was published before


def what_rehearsal_says(committer: Committer, handle: Handle, decision: int, last: Publication | None) -> str:
    """Rehearse, and return what it raises in the words of `Break.expected`, with the error if there is one."""
    try:
        committer.rehearse(handle, decision, last)
    except StageAgain as error:
        return f"again: {error}"
    except REFUSALS as error:
        return f"action: {error}"
    except Exception as error:
        return f"no answer: {error!r}"
    return "passes"


class RehearsalContract(ContractFixtures):
    """Part of `SinkContract`."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make tests of each break, after an earlier publication and, if it says so, for the first checkpoint.

        And one of each damage, see `verification_contract`.
        """
        if "damage" in metafunc.fixturenames:
            damages = getattr(self, "damages", ())
            metafunc.parametrize("damage", damages, ids=[damage.name for damage in damages])
        if "broken" not in metafunc.fixturenames:
            return
        cases: list[tuple[Break, bool]] = []
        names: list[str] = []
        for entry in self.breaks:
            cases.append((entry, True))
            names.append(entry.name)
        for entry in self.breaks:
            if entry.first:
                cases.append((entry, False))
                names.append(f"{entry.name}, first")
        metafunc.parametrize(("broken", "later"), cases, ids=names)

    # ---- a rehearsal changes nothing

    def test_rehearsal_publishes_nothing(self, target: Target, committer: Committer, stage: Stage) -> None:
        last = self.publish_earlier(committer, stage)
        handle, sink = stage(self.txn(2), 1, 2, 3), target.sink()
        traces = sink.traces("flights") if isinstance(sink, DecisionTraces) else None
        committer.rehearse(handle, 2, last)
        assert target.published() == [EARLIER]
        assert traces is None or target.sink().traces("flights") == traces  # type: ignore[attr-defined]

    def test_rehearsal_leaves_no_evidence(self, target: Target, committer: Committer, stage: Stage) -> None:
        """What a person gives up after it was rehearsed is not taken for published."""
        handle = committer.rehearse(stage(self.txn(), 1, 2, 3), 1)
        assert committer.fence(handle, 1) is None
        assert target.published() == []

    @pytest.mark.parametrize("with_handle", [True, False])
    def test_abort_after_rehearsal_leaves_nothing(
        self, target: Target, committer: Committer, stage: Stage, with_handle: bool
    ) -> None:
        """The recorded handle names no copies yet."""
        handle = stage(self.txn(), 1, 2, 3)
        committer.rehearse(handle, 1)
        target.sink().discard(self.txn(), handle if with_handle else None)
        assert target.traces(self.txn()) == []
        assert target.sink().leftovers(self.txn().prefix) == []
        assert target.published() == []

    # ---- a rehearsal may be repeated, and any process may commit

    def test_rehearsed_object_publishes_once(self, target: Target, committer: Committer, stage: Stage) -> None:
        last, sink = self.publish_earlier(committer, stage), target.sink()
        handle = committer.rehearse(stage(self.txn(2), 1, 2, 3), 2, last, sink)
        outcome = committer.commit(handle, 2, last, sink)
        assert (outcome.already, outcome.detail["rows"]) == (False, 3)
        assert target.published() == [1, 2, 3, EARLIER]
        assert committer.commit(handle, 2, last, sink).already
        assert target.published() == [1, 2, 3, EARLIER]

    def test_another_object_publishes_what_was_rehearsed(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        last = self.publish_earlier(committer, stage)
        handle = committer.rehearse(stage(self.txn(2), 1, 2, 3), 2, last)
        assert committer.commit(handle, 2, last).already is False
        assert committer.commit(handle, 2, last).already is True
        assert target.published() == [1, 2, 3, EARLIER]

    def test_rehearsal_may_be_repeated(self, target: Target, committer: Committer, stage: Stage) -> None:
        """By the same object, for a later decision, too: another checkpoint was decided meanwhile."""
        last, sink = self.publish_earlier(committer, stage), target.sink()
        handle = stage(self.txn(2), 1, 2, 3)
        for decision in (2, 2, 3):
            rehearsed = committer.rehearse(handle, decision, last, sink)
        assert not committer.commit(rehearsed, 3, last, sink).already
        assert target.published() == [1, 2, 3, EARLIER]

    def test_rehearsals_of_two_processes_agree(self, target: Target, committer: Committer, stage: Stage) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            first, second = pool.map(committer.rehearse, [handle] * 2, [1] * 2)
        assert not committer.commit(first, 1).already
        assert target.published() == [1, 2, 3]
        assert first["rows"] == second["rows"] == 3

    def test_rehearsed_object_sees_later_publications(self, target: Target, committer: Committer, stage: Stage) -> None:
        """What it has computed is of the target as it was."""
        handle, other, sink = stage(self.txn(), 1), stage(self.txn(pipeline="flights_by_day"), 2), target.sink()
        rehearsed = committer.rehearse(handle, 1, None, sink)
        committer.commit(other, 1)
        assert not committer.commit(rehearsed, 1, None, sink).already
        assert target.published() == [1, 2]

    def test_published_transaction_passes_rehearsal(self, target: Target, committer: Committer, stage: Stage) -> None:
        """A state table that was restored from an older copy decides once more, and then finds it published."""
        handle = stage(self.txn(), 1, 2, 3)
        committer.commit(handle, 1)
        rehearsed = committer.rehearse(handle, 1)
        assert committer.commit(rehearsed, 1).already
        assert target.published() == [1, 2, 3]

    def test_rehearsal_refuses_a_decision_of_another(self, target: Target, committer: Committer, stage: Stage) -> None:
        if not target.shows_decisions or target.shows_each:
            pytest.skip("its evidence has no order")
        handle, another = stage(self.txn(1, attempt=1), 1), stage(self.txn(1, attempt=2), 2)
        committer.commit(another, 1)
        with pytest.raises(CannotPublish):
            committer.rehearse(handle, 1)
        assert target.published() == [2]

    # ---- what is broken is refused

    def test_rehearsal_refuses_what_is_broken(
        self, target: Target, committer: Committer, stage: Stage, broken: Break, later: bool
    ) -> None:
        handle, decision, last = self.stage_second(committer, stage, later)
        undo = broken.do(target, handle, self.txn(2))
        answer = what_rehearsal_says(committer, handle, decision, last)
        assert answer.split(":")[0] == broken.expected, answer
        if broken.expected == "again":
            return self.check_staging_again(target, committer, stage, decision, last)
        if undo:
            undo()
        elif broken.expected != "passes":
            return None
        rehearsed = committer.rehearse(handle, decision, last)
        assert not committer.commit(rehearsed, decision, last).already
        assert set(target.published()) >= {1, 2, 3}
        assert len(target.published()) == len(set(target.published()))
        return None

    def test_rehearsed_object_looks_again(
        self, target: Target, committer: Committer, stage: Stage, broken: Break, later: bool
    ) -> None:
        """What changes between rehearsal and commit is never taken for published without its rows."""
        handle, decision, last = self.stage_second(committer, stage, later)
        sink = target.sink()
        rehearsed = committer.rehearse(handle, decision, last, sink)
        undo = broken.do(target, handle, self.txn(2))
        try:
            committer.commit(rehearsed, decision, last, sink)
        except Exception as error:
            assert not isinstance(error, AssertionError | TypeError | AttributeError | KeyError), error
        else:
            assert set(target.published()) >= {1, 2, 3}
            assert len(target.published()) == len(set(target.published()))
        finally:
            if undo:
                undo()  # a service that several tests share does not keep what was broken

    def check_staging_again(
        self, target: Target, committer: Committer, stage: Stage, decision: int, last: Publication | None
    ) -> None:
        """Discard the attempt as the coordinator does it, and publish the next one."""
        target.sink().discard(self.txn(2), None)
        assert target.traces(self.txn(2)) == []
        sink = target.sink()
        handle = committer.rehearse(stage(self.txn(2, attempt=2), 1, 2, 3), decision, last, sink)
        assert not committer.commit(handle, decision, last, sink).already
        published = [1, 2, 3]
        if last:
            published.append(EARLIER)
        assert target.published() == published

    # ---- an earlier publication

    def publish_earlier(self, committer: Committer, stage: Stage) -> Publication:
        """Publish the row `EARLIER` by epoch 1, as decision 1."""
        outcome: Outcome = committer.commit(stage(self.txn(1), EARLIER), 1)
        return Publication(1, 1, outcome.proof)

    def stage_second(self, committer: Committer, stage: Stage, later: bool) -> tuple[Handle, int, Publication | None]:
        """Return the staged handle of epoch 2, the decision that it will have, and the sink's last publication."""
        if not later:
            return stage(self.txn(2), 1, 2, 3), 1, None
        last = self.publish_earlier(committer, stage)
        return stage(self.txn(2), 1, 2, 3), 2, last
