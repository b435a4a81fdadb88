"""The part of the suite that is about verifications: each damage of a target is found, and nothing healthy is accused.

A sink's suite lists what can become of what it has published, and each entry becomes tests:

    class TestLines(SinkContract):
        damages = (
            Damage("file removed", remove_published_file, ("file-missing",)),
        )

Sinks that are no `VerifiableTarget` are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import ClassVar

import pytest

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.sink import ReplaceableRows
from onceonly.checkpoint.verification import Judgement, VerifiableTarget
from onceonly.errors import InvalidPipeline
from onceonly.testing.ledger import Ledger, list_codes
from onceonly.testing.targets import Committer, ContractFixtures, Damage, Stage, Target

NOT_VERIFIABLE = "it cannot be compared with what was published to it"


class VerificationContract(ContractFixtures):
    """Part of `SinkContract`."""

    damages: ClassVar[Sequence[Damage]] = ()  # whatever the sink can notice

    @pytest.fixture
    def ledger(self, target: Target, committer: Committer) -> Ledger:
        if not isinstance(target.sink(), VerifiableTarget):
            pytest.skip(NOT_VERIFIABLE)
        return Ledger(target.sink, committer)

    def publish_three_to(self, ledger: Ledger, stage: Stage) -> None:
        for epoch, numbers in enumerate(((1, 2), (3, 4), (5, 6)), 1):
            ledger.publish(epoch, stage(self.txn(epoch), *numbers))
            ledger.make_sink().release(self.txn(epoch))

    def test_damage_is_found(self, target: Target, ledger: Ledger, stage: Stage, damage: Damage) -> None:
        self.publish_three_to(ledger, stage)
        damage.do(target, ledger.published[1].handle, self.txn(2))
        for deep in (False, True):
            findings = ledger.verify(deep)
            judgement = Judgement.UNKNOWN if damage.unknown else Judgement.WRONG
            codes = set(dict(list_codes(findings, judgement)).values())
            if damage.heals or (damage.deep and not deep):
                assert codes == set()
            else:
                assert codes & set(damage.codes), findings
            if damage.unknown:
                assert list_codes(findings) == []

    @pytest.mark.parametrize("deep", [False, True])
    def test_healthy_target_is_not_accused(self, target: Target, ledger: Ledger, stage: Stage, deep: bool) -> None:
        """Neither empty checkpoints, nor what was given up or aborted, nor another pipeline in the same target."""
        self.publish_three_to(ledger, stage)
        ledger.publish(4, stage(self.txn(4)))
        target.sink().fence(stage(self.txn(5), 7), 5)
        target.sink().discard(self.txn(6), stage(self.txn(6), 8))
        ledger.committer.commit(stage(self.txn(pipeline="flights_by_day"), 9), 9)
        ledger.publish(7, stage(self.txn(7), 10), decision=6)
        findings = ledger.verify(deep)
        assert [finding for finding in findings if finding.judgement is not Judgement.RIGHT] == []
        assert [epoch for epoch, _ in list_codes(findings, Judgement.RIGHT)] == [1, 2, 3, 4, 7]

    def test_replaced_rows_are_not_accused(self, target: Target, ledger: Ledger, stage: Stage) -> None:
        sink = target.sink()
        if not isinstance(sink, ReplaceableRows):
            pytest.skip("its published rows cannot be taken back")
        self.publish_three_to(ledger, stage)
        old = ledger.published[1].handle
        try:
            sink.check_replace(old)
        except InvalidPipeline:
            pytest.skip("it supports rewinds, but not the replacement of a single checkpoint")
        ledger.publish(4, {**stage(self.txn(4), 30), "replaces": old})
        assert (2, "not-taken-out") not in list_codes(ledger.verify())
        ledger.change(2, taken_out_by=4)
        assert list_codes(ledger.verify(True)) == []
        assert (2, "taken-out") in list_codes(ledger.verify(), Judgement.RIGHT)

    def test_retracted_rows_are_not_accused(self, target: Target, ledger: Ledger, stage: Stage) -> None:
        sink = target.sink()
        if not isinstance(sink, ReplaceableRows):
            pytest.skip("its published rows cannot be taken back")
        self.publish_three_to(ledger, stage)
        olds = [one.handle for one in ledger.published]
        try:
            back: Handle = json.loads(json.dumps(sink.retraction(self.txn(4, attempt=0), olds[:0:-1], olds[0])))
        except InvalidPipeline:
            pytest.skip("it refuses to take rows back")
        ledger.publish(4, back)
        for epoch in (2, 3):
            ledger.change(epoch, taken_out_by=4)
        assert list_codes(ledger.verify(True)) == []

    def test_rows_that_come_once_more_are_not_accused(self, target: Target, ledger: Ledger, stage: Stage) -> None:
        """As a repair with --again publishes them."""
        if isinstance(target.sink(), ReplaceableRows):
            pytest.skip("its rows are replaced")
        self.publish_three_to(ledger, stage)
        ledger.publish(4, stage(self.txn(4), 3, 4))
        assert list_codes(ledger.verify(True)) == []

    def test_unrecorded_publication_is_found(self, ledger: Ledger, stage: Stage) -> None:
        self.publish_three_to(ledger, stage)
        published = list(ledger.published)
        ledger.published = published[:2]
        findings = ledger.verify(True)
        assert list_codes(findings) == []
        assert (None, "not-recorded-yet") in list_codes(findings, Judgement.UNKNOWN)
        ledger.published = [published[0], published[2]]
        findings = ledger.verify()
        assert (None, "commit-unrecorded") in list_codes(findings)
        assert [epoch for epoch, _ in list_codes(findings, Judgement.RIGHT)] == [1, 3]

    def test_accepted_loss_is_right(self, target: Target, ledger: Ledger, stage: Stage) -> None:
        """Of a target that has it still, the state table is wrong."""
        self.publish_three_to(ledger, stage)
        ledger.change(2, missing=True)
        assert {epoch for epoch, _ in list_codes(ledger.verify())} <= {2}
