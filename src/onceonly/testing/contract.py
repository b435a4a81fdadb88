"""The contract of a sink, as a test suite that every sink has to pass.

    from onceonly.testing.contract import Break, SinkContract, Target

    @dataclass(frozen=True)
    class Lines(Target):
        folder: str
        def sink(self): ...       # a new one each time, called "lake"
        def published(self): ...  # the numbers that a reader sees, sorted
        def traces(self, txn): ...  # everything that has the transaction's name
        def digests(self): ...     # a digest of each published file, by name

    class TestLines(SinkContract):
        breaks = (Break("staged file removed", remove_file, "again"),)  # see rehearsal_contract
        damages = (Damage("file removed", remove_published, ("file-missing",)),)  # see verification_contract

        @pytest.fixture
        def target(self, tmp_path):
            return Lines(str(tmp_path / "out"))

If `stage` needs DataFrames, override the fixture `make_rows`. Tests of optional capabilities are skipped.
"""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import DecisionTraces, IncrementalSweep, InspectableRows, ReplaceableRows, Sink
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, StateBehind
from onceonly.testing.rehearsal_contract import RehearsalContract
from onceonly.testing.repair_contract import RepairContract
from onceonly.testing.target_history_contract import TargetHistoryContract
from onceonly.testing.targets import SINK, Break, Committer, Damage, Rows, Stage, Target
from onceonly.testing.verification_contract import VerificationContract

__all__ = ["SINK", "Break", "Committer", "Damage", "Rows", "SinkContract", "Stage", "Target"]


def commit_twice_at_once(committer: Committer, handle: Handle) -> list[Outcome]:
    """Commit in two threads. Other processes call it, so it stands in the module."""
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda _: committer.commit(handle, 1), range(2)))


def numbers(rows: Any) -> list[int]:
    """Return the numbers in a pandas frame, of any type, in order."""
    column = "value"
    if "n" in rows.columns:
        column = "n"
    return sorted(int(value) for value in rows[column])


def list_leftovers(sink: Sink, *txns: Transaction) -> list[Transaction] | None:
    """Return those of which the sink says that something is left, one by one; None: it is never asked so."""
    if not isinstance(sink, IncrementalSweep):
        return None
    leftovers = []
    for txn in txns:
        if sink.is_leftover(txn):
            leftovers.append(txn)
    return leftovers


class SinkContract(RehearsalContract, RepairContract, TargetHistoryContract, VerificationContract):
    """Subclass it as `Test…`, with a fixture `target`."""

    def test_nothing_is_visible_before_the_commit(self, target: Target, stage: Stage) -> None:
        stage(self.txn(), 1, 2, 3)
        assert target.published() == []

    def test_a_commit_publishes_all_rows(self, target: Target, committer: Committer, stage: Stage) -> None:
        outcome = committer.commit(stage(self.txn(), 1, 2, 3), 1)
        assert target.published() == [1, 2, 3]
        assert (outcome.already, outcome.detail["rows"]) == (False, 3)

    def test_people_are_told_what_it_publishes_to_and_what_it_shows(self, target: Target, stage: Stage) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        for lines in (target.sink().check(), target.sink().evidence(handle)):
            assert all(isinstance(line, str) and line for line in lines)
        assert target.published() == []

    def test_a_handle_says_how_many_rows(self, stage: Stage) -> None:
        assert stage(self.txn(), 1, 2, 3)["rows"] == 3

    @pytest.mark.parametrize("some", [(), (1, 2, 3)])
    def test_what_is_staged_can_be_looked_at_here_and_on_spark(
        self, target: Target, stage: Stage, session: Any, some: tuple[int, ...]
    ) -> None:
        handle, sink = stage(self.txn(), *some), target.sink()
        if not isinstance(sink, InspectableRows):
            pytest.skip("a gate cannot read it")
        rows = sink.read_staged(handle).read_all()
        if some:
            assert numbers(rows.to_pandas()) == list(some)
        else:
            assert rows.num_rows == 0
        if session is not None and some:
            assert numbers(sink.staged_frame(handle, session).toPandas()) == list(some)
        assert target.published() == []

    def test_what_is_revoked_can_still_be_looked_at(self, target: Target, stage: Stage) -> None:
        handle, sink = stage(self.txn(), 1, 2, 3), target.sink()
        sink.revoke(self.txn())
        if isinstance(sink, InspectableRows):
            assert numbers(sink.read_staged(handle).read_all().to_pandas()) == [1, 2, 3]
        assert target.published() == []
        target.sink().discard(self.txn(), handle)
        assert target.traces(self.txn()) == []

    def test_an_output_without_rows_is_staged_and_published_too(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        empty = stage(self.txn(1))
        assert empty["rows"] == 0
        committer.commit(empty, 1)
        committer.commit(stage(self.txn(2), 1), 2)
        assert target.published() == [1]

    def test_a_commit_repeated_ten_times_publishes_once(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        already = [committer.commit(handle, 1).already for _ in range(10)]
        assert already == [False] + [True] * 9
        assert target.published() == [1, 2, 3]

    def test_commits_from_several_processes_and_threads_at_once_publish_once(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            first, second = pool.map(commit_twice_at_once, [committer] * 2, [handle] * 2)
        already = sorted(outcome.already for outcome in [*first, *second])
        if target.tells_first:
            assert already == [False, True, True, True]
        else:
            assert already[0] is False
        assert target.published() == [1, 2, 3]

    def test_what_was_published_is_known_from_the_target_alone(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        """The process may have died before it recorded the publication in the state table."""
        first, second = stage(self.txn(1), 1), stage(self.txn(2), 2)
        committer.commit(first, 1)
        assert committer.commit(first, 1).already
        committer.commit(second, 2)
        if target.shows_each:
            assert committer.commit(first, 1).already
        assert committer.commit(second, 2).already
        assert target.published() == [1, 2]

    def test_decisions_are_published_one_after_the_other(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handles: dict[int, Handle] = {}
        for decision in (1, 2, 3):
            handles[decision] = stage(self.txn(epoch=10 - decision), decision)
        for decision, handle in handles.items():
            assert committer.commit(handle, decision).already is False
        assert target.published() == [1, 2, 3]

    # ---- evidence names the transaction

    def test_another_transaction_at_the_same_decision_is_not_taken_for_ours(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        """A state table that was restored from an older copy assigns the same numbers again."""
        if not target.shows_decisions:
            pytest.skip("the marker that ends a transaction identifies it")
        handle, another = stage(self.txn(1, attempt=1), 1, 2), stage(self.txn(1, attempt=2), 2, 3)
        committer.commit(handle, 1)
        with pytest.raises(StateBehind) as behind:
            committer.commit(another, 1)
        assert "state table" in str(behind.value)
        assert "onceonly state forward" in behind.value.todo
        assert target.published() == [1, 2]
        assert committer.commit(handle, 1).already

    def test_a_lower_decision_than_the_published_one_is_not_taken_for_published(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        """A sink never publishes 8 while 7 waits. So if 8 is published and 7 waits, the state table was restored."""
        if target.shows_each:
            pytest.skip("each transaction has its own evidence: a marker, a manifest, or a folder")
        earlier, later = stage(self.txn(1), 1), stage(self.txn(2), 2)
        committer.commit(later, 8)
        with pytest.raises(StateBehind):
            committer.commit(earlier, 7)
        assert target.published() == [2]

    def test_the_target_shows_the_last_decision_to_whoever_has_no_other_memory(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        sink = target.sink()
        if not isinstance(sink, DecisionTraces):
            pytest.skip("it shows no decisions: only commits detect a state table that is behind it")
        assert sink.traces("flights") == []
        for decision, epoch in ((3, 1), (4, 2)):
            committer.commit(stage(self.txn(epoch), epoch), decision)
        stage(self.txn(3), 3)
        committer.commit(stage(self.txn(pipeline="flights_by_day"), 4), 9)
        decisions = [(trace.state_id, trace.decision) for trace in sink.traces("flights")]
        assert decisions == [(self.state_id, 4)]
        for trace in sink.traces("flights"):
            assert trace.where
        assert sink.traces("nobody") == []

    # ---- retracted

    def test_what_is_replaced_gives_way_in_the_commit_that_replaces_it(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        old, sink = stage(self.txn(1), 1, 2), target.sink()
        if not isinstance(sink, ReplaceableRows):
            pytest.skip("its published rows cannot be taken back")
        committer.commit(old, 1)
        try:
            sink.check_replace(old)
        except InvalidPipeline:
            pytest.skip("it supports rewinds, but not the replacement of a single checkpoint")
        new = {**stage(self.txn(2), 2, 3), "replaces": old}
        assert target.published() == [1, 2]
        assert committer.commit(new, 2).already is False
        assert committer.commit(new, 2).already is True
        assert target.published() == [2, 3]

    def test_what_is_retracted_is_taken_out_and_stays_out(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        olds, sink = [stage(self.txn(1), 1), stage(self.txn(2), 2)], target.sink()
        if not isinstance(sink, ReplaceableRows):
            pytest.skip("its published rows cannot be taken back")
        for decision, old in enumerate(olds, 1):
            committer.commit(old, decision)
        try:
            back: Handle = json.loads(json.dumps(sink.retraction(self.txn(3, attempt=0), olds[:0:-1], olds[0])))
        except InvalidPipeline:
            assert target.published() == [1, 2]
            pytest.skip("it refuses to take rows back")
        assert target.published() == [1, 2]
        for _ in range(2):
            committer.commit(back, 3)
        assert target.published() == [1]

    # ---- given up

    def test_what_is_fenced_is_never_published_and_its_rows_are_kept(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        assert [committer.fence(handle, 1), committer.fence(handle, 1)] == [None, None]
        with pytest.raises((Fenced, CannotPublish)):
            committer.commit_given_up(handle, 1)
        assert target.published() == []
        assert target.traces(self.txn()) != []
        committer.commit(stage(self.txn(2), 4), 2)
        assert target.published() == [4]

    def test_what_was_published_is_said_by_the_fence(self, target: Target, committer: Committer, stage: Stage) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        committer.commit(handle, 1)
        for _ in range(2):
            outcome = committer.fence(handle, 1)
            assert outcome is not None
            assert (outcome.already, outcome.detail["rows"]) == (True, 3)
        assert target.published() == [1, 2, 3]
        assert committer.commit(handle, 1).already

    def test_a_commit_and_a_fence_at_once_agree(self, target: Target, committer: Committer, stage: Stage) -> None:
        if not target.is_atomic:
            pytest.skip("its rows are published in several steps, or by the record in the state table")
        handle = stage(self.txn(), 1, 2, 3)
        with ThreadPoolExecutor(2) as pool:
            committed, fenced = pool.submit(committer.commit, handle, 1), pool.submit(target.sink().fence, handle, 1)
        if fenced.result() is None:
            assert isinstance(committed.exception(), Fenced | CannotPublish)
            assert target.published() == []
        else:
            assert committed.result().detail["rows"] == 3
            assert target.published() == [1, 2, 3]

    def test_rows_that_are_gone_are_never_taken_for_published(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handle = stage(self.txn(), 1)
        target.sink().discard(self.txn(), handle)
        with pytest.raises(CannotPublish) as refused:
            committer.commit(handle, 1)
        assert "onceonly resolve" in refused.value.todo
        assert target.published() == []

    @pytest.mark.parametrize("with_handle", [True, False])
    def test_an_abort_leaves_nothing_and_may_be_repeated(self, target: Target, stage: Stage, with_handle: bool) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        for _ in range(2):
            target.sink().discard(self.txn(), handle if with_handle else None)
        assert target.traces(self.txn()) == []
        assert target.sink().leftovers(self.txn().prefix) == []
        assert target.published() == []

    def test_an_abort_of_what_was_never_staged_does_nothing(self, target: Target) -> None:
        target.sink().discard(self.txn(), None)
        assert target.sink().leftovers(self.txn().prefix) == []

    @pytest.mark.parametrize("with_handle", [True, False])
    def test_an_abort_never_touches_what_is_published(
        self, target: Target, committer: Committer, stage: Stage, with_handle: bool
    ) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        committer.commit(handle, 1)
        target.sink().discard(self.txn(), handle if with_handle else None)
        assert target.published() == [1, 2, 3]
        assert committer.commit(handle, 1).already

    def test_an_abort_spares_every_other_attempt(self, target: Target, committer: Committer, stage: Stage) -> None:
        stage(self.txn(attempt=1), 1)
        current = stage(self.txn(attempt=2), 2)
        target.sink().discard(self.txn(attempt=1), None)
        committer.commit(current, 1)
        assert target.published() == [2]

    def test_leftovers_are_exactly_what_is_staged_and_not_published(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        prefix = self.txn().prefix
        assert target.sink().leftovers(prefix) == []
        published, aborted, waiting = self.txn(1), self.txn(2), self.txn(3)
        handle = stage(published, 1)
        stage(aborted, 2)
        stage(waiting, 3)
        committer.commit(handle, 1)
        target.sink().release(published)
        target.sink().discard(aborted, None)
        assert target.sink().leftovers(prefix) == [waiting]
        assert target.sink().leftovers(f"{self.state_id}-flights") == [waiting]  # as recovery asks
        assert list_leftovers(target.sink(), published, aborted, waiting) in ([waiting], None)

    def test_a_release_leaves_what_is_published_and_may_be_repeated(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        handle = stage(self.txn(), 1, 2, 3)
        committer.commit(handle, 1)
        for _ in range(2):
            target.sink().release(self.txn())
        assert target.published() == [1, 2, 3]
        assert committer.commit(handle, 1).already

    def test_two_pipelines_into_one_target_do_not_disturb_each_other(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        txn, other = self.txn(), self.txn(pipeline="flights_by_day")
        handles = stage(txn, 1), stage(other, 2)
        stage(self.txn(epoch=2, pipeline="flights_by_day"), 3)
        assert target.sink().leftovers(txn.prefix) == [txn]
        for handle in handles:
            assert committer.commit(handle, 1).already is False
        target.sink().discard(self.txn(epoch=2, pipeline="flights_by_day"), None)
        assert target.published() == [1, 2]
