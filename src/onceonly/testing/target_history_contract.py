"""The part of the suite that is about targets that went back: a healthy one is recognised by the proofs of its commits.

What a damaged one has to show is for a sink's `breaks` and `damages`. Sinks that are no `TargetHistory` are skipped.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onceonly.checkpoint.sink import Answer, Publication, TargetHistory
from onceonly.testing.ledger import Ledger
from onceonly.testing.targets import Committer, ContractFixtures, Stage, Target


class TargetHistoryContract(ContractFixtures):
    """Part of `SinkContract`."""

    def publish_two(self, target: Target, committer: Committer, stage: Stage) -> list[Publication]:
        """Publish twice. Returns what is recorded of it."""
        if not isinstance(target.sink(), TargetHistory):
            pytest.skip("it does not show whether its target went back")
        ledger = Ledger(target.sink, committer)
        for epoch in (1, 2):
            ledger.publish(epoch, stage(self.txn(epoch), epoch))
            target.sink().release(self.txn(epoch))
        return [published.publication for published in ledger.published]

    def test_a_target_has_what_was_published_to_it(self, target: Target, committer: Committer, stage: Stage) -> None:
        for publication in self.publish_two(target, committer, stage):
            sink: Any = target.sink()
            assert sink.compare(publication).answer is Answer.SAME

    def test_another_place_is_not_taken_for_a_target_that_went_back(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        _, last = self.publish_two(target, committer, stage)
        sink: Any = target.sink()
        other = replace(last, proof={**last.proof, "target": "another place"})
        assert sink.compare(other).answer in (Answer.ELSEWHERE, Answer.SAME)  # the same: it is mounted here by now

    def test_what_a_target_shows_now_can_be_recorded(self, target: Target, committer: Committer, stage: Stage) -> None:
        _, last = self.publish_two(target, committer, stage)
        sink: Any = target.sink()
        current = sink.find_current_publication(last)
        assert current.decision == last.decision
        recorded = replace(current, proof=json.loads(json.dumps(dict(current.proof))))
        sink = target.sink()
        assert sink.compare(recorded).answer is Answer.SAME
        assert target.published() == [1, 2]
