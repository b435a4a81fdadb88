"""The part of the suite that is about repairs: rows of one checkpoint are written once more, in this sink or beside it.

Whatever else the target holds stays as it is, byte by byte where `Target.digests` can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from onceonly.checkpoint.model import Checkpoint, Handle
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.sink import ReplaceableRows
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import StateTable
from onceonly.testing.fake_rows import FakeRows
from onceonly.testing.fakes import FakeParts, FakeSink, FakeSource
from onceonly.testing.targets import SINK, Committer, ContractFixtures, Rows, Stage, Target

OTHER = "other"  # the sink beside the one under test
NAME = "flights"  # of the pipeline, and of its topic
NOON, MINUTE = datetime(2013, 1, 1, 12, tzinfo=UTC), timedelta(minutes=1)
FIRST, SECOND = Interval(NOON, NOON + 10 * MINUTE), Interval(NOON + 10 * MINUTE, NOON + 20 * MINUTE)
RECORDS = (1, 2, 11, 12)  # by their minutes: two in each interval
CORRECTION = 100
NOTHING: Mapping[str, str] = MappingProxyType({})
NOT_REPLACEABLE = "its published rows cannot be taken back by checkpoints"


class TwoSinks(FakeParts):
    """The sink under test, and a fake one beside it. Each row is a record's number and what corrects it."""

    def __init__(self, folder: Path, target: Target, make_rows: Rows) -> None:
        super().__init__(folder)
        self._target, self._make_rows, self.correction = target, make_rows, 0

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        if name == SINK:
            return self._target.sink()
        return super().sink(pipeline, name)

    def produce(self, checkpoint: Checkpoint) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for name, records in super().produce(checkpoint).items():
            numbers = [record["value"] + self.correction for record in records]
            if name == SINK:
                outputs[name] = self._make_rows(*numbers)
            else:
                outputs[name] = FakeRows(({"n": number} for number in numbers), {"n": "long"})
        return outputs


@dataclass
class Shop:
    """A pipeline by intervals with these sinks, on a state table of its own."""

    table: StateTable
    parts: TwoSinks
    target: Target
    sinks: tuple[str, ...] = (SINK, OTHER)

    @classmethod
    def open(cls, folder: Path, target: Target, make_rows: Rows) -> Shop:
        """Return a new one, whose records are there and whose intervals have not run."""
        parts = TwoSinks(folder, target, make_rows)
        FakeSource(NAME, folder).append(0, *((NOON + number * MINUTE, number) for number in RECORDS))
        return cls(StateTable.make(str(folder / "state")), parts, target)

    def run(self, interval: Interval, request: Reprocess | None = None) -> Checkpoint:
        """Run plan, stage and commit, by a coordinator that remembers nothing."""
        pipeline = Pipeline(
            name=NAME,
            source=KafkaSource(NAME),
            transform="jobs.flights:clean",
            mode="interval",
            sinks=[DeltaSink(name, name) for name in self.sinks],
        )
        coordinator = Coordinator(self.table, self.parts)
        planned = coordinator.plan(pipeline, "run", lambda _: False, interval, request).checkpoint
        assert planned is not None
        coordinator.stage(NAME, planned.epoch, self.parts.produce)
        return coordinator.commit(NAME, planned.epoch)

    def repair(self, interval: Interval, **sinks: tuple[str, ...]) -> Checkpoint:
        """Ask twice for a repair, by a transform that was corrected: the second time it does nothing."""
        self.parts.correction = CORRECTION
        request = Reprocess("ann: rates", who="ann", reason="rates", **sinks)  # type: ignore[arg-type]
        done = self.run(interval, request)
        assert self.run(interval, request).epoch == done.epoch
        return done

    @property
    def other(self) -> FakeSink:
        return FakeSink(OTHER, self.parts.folder / OTHER)

    def other_numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.other.rows())


class RepairContract(ContractFixtures):
    """Part of `SinkContract`."""

    @pytest.fixture
    def shop(self, target: Target, make_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Shop:
        """Both intervals have records, and none has run."""
        return Shop.open(tmp_path_factory.mktemp("repairs"), target, make_rows)

    # ---- by calls of the sink alone

    def test_repair_takes_out_the_rows_of_one_checkpoint_alone(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        sink = target.sink()
        if not isinstance(sink, ReplaceableRows):
            pytest.skip("its published rows cannot be taken back")
        old, stored_before, stored = self.publish_three(target, committer, stage)
        try:
            sink.check_replace(old)
        except InvalidPipeline:
            pytest.skip(NOT_REPLACEABLE)
        new = committer.rehearse({**stage(self.txn(4), 4, 40), "replaces": old}, 4)
        assert target.published() == [1, 2, 3, 4, 5, 6]
        assert [committer.commit(new, 4).already for _ in range(2)] == [False, True]
        assert target.published() == [1, 2, 4, 5, 6, 40]
        check_kept(stored, target.digests(), may_go=stored_before)

    def test_repair_adds_rows_where_none_are_in_force(self, target: Target, committer: Committer, stage: Stage) -> None:
        """What was given up, or lost, and what a new sink has never had, is added beside what is there."""
        if not target.is_repairable:
            pytest.skip("a repair writes no state")
        committer.commit(stage(self.txn(1), 1, 2), 1)
        committer.fence(stage(self.txn(2), 3, 4), 2)
        committer.commit(stage(self.txn(3), 5, 6), 3)
        stored = target.digests()
        new = committer.rehearse(stage(self.txn(4), 3, 4), 4)
        assert not committer.commit(new, 4).already
        committer.commit(new, 4)
        assert target.published() == [1, 2, 3, 4, 5, 6]
        check_kept(stored, target.digests())

    def test_rows_come_once_more_where_they_cannot_be_taken_back(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        if isinstance(target.sink(), ReplaceableRows):
            pytest.skip("its rows are replaced")
        _, _, stored = self.publish_three(target, committer, stage)
        again = committer.rehearse(stage(self.txn(4), 3, 4), 4)
        for _ in range(3):
            committer.commit(again, 4)
        assert target.published() == [1, 2, 3, 3, 4, 4, 5, 6]
        check_kept(stored, target.digests())

    def publish_three(
        self, target: Target, committer: Committer, stage: Stage
    ) -> tuple[Handle, Mapping[str, str], Mapping[str, str]]:
        """Publish three checkpoints; returns the second one's handle, what it has brought, and all that is stored."""
        first, second, third = stage(self.txn(1), 1, 2), stage(self.txn(2), 3, 4), stage(self.txn(3), 5, 6)
        committer.commit(first, 1)
        stored_before = target.digests()
        committer.commit(second, 2)
        brought = {name: digest for name, digest in target.digests().items() if name not in stored_before}
        committer.commit(third, 3)
        return second, brought, target.digests()

    # ---- in a pipeline, beside another sink

    def test_kept_sink_stays_as_it_is(self, target: Target, shop: Shop) -> None:
        if not target.is_repairable:
            pytest.skip("a repair writes no state")
        shop.run(FIRST)
        shop.run(SECOND)
        stored, published = target.digests(), target.published()
        done = shop.repair(FIRST, keep=(SINK,))
        assert shop.other_numbers() == [11, 12, 101, 102]
        assert target.published() == published == list(RECORDS)
        assert target.digests() == stored
        assert target.traces(done.transaction(SINK)) == []

    def test_sink_that_was_added_gets_its_past_alone(self, target: Target, shop: Shop) -> None:
        if not target.is_repairable:
            pytest.skip("a repair writes no state")
        shop.sinks = (OTHER,)
        shop.run(FIRST)
        shop.run(SECOND)
        entries = shop.other.entries()
        shop.sinks = (SINK, OTHER)
        for interval in (SECOND, FIRST, SECOND):  # in any order; what it has is passed over
            shop.repair(interval, only=(SINK,))
        assert target.published() == [101, 102, 111, 112]
        assert shop.other.entries() == entries

    def test_sink_is_corrected_beside_one_that_is_kept(self, target: Target, shop: Shop) -> None:
        if not target.is_repairable:
            pytest.skip("a repair writes no state")
        shop.run(FIRST)
        stored_before = target.digests()
        shop.run(SECOND)
        stored, entries = target.digests(), shop.other.entries()
        replaces = isinstance(target.sink(), ReplaceableRows)
        try:
            shop.repair(FIRST, keep=(OTHER,), again=() if replaces else (SINK,))
        except InvalidPipeline as refused:
            assert target.digests() == stored
            pytest.skip(f"{NOT_REPLACEABLE}: {refused.code}")
        corrected = [number + CORRECTION for number in RECORDS[:2]]
        old = [] if replaces else list(RECORDS[:2])
        assert target.published() == sorted([*old, *RECORDS[2:], *corrected])
        assert shop.other.entries() == entries
        check_kept(stored, target.digests(), may_go=stored_before if replaces else NOTHING)


def check_kept(before: Mapping[str, str], after: Mapping[str, str], may_go: Mapping[str, str] = NOTHING) -> None:
    """Check that nothing has changed which was stored before, and that nothing is gone but what may go."""
    gone = set(before) - set(after)
    assert gone <= set(may_go), f"gone: {sorted(gone - set(may_go))}"
    changed = [name for name in before if name in after and before[name] != after[name]]
    assert changed == []
