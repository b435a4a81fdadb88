"""Of a Delta sink whose rows name their transaction: what replaces them finds them after an OPTIMIZE."""

from __future__ import annotations

import json
from typing import Any

from contract.delta_breaks import uri_of
from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle
from onceonly.testing.contract import Committer, SinkContract, Stage, Target

COLUMN = "published_by"


def optimize(target: Any) -> None:
    """Put all rows into one file."""
    assert DeltaTable(uri_of(target)).optimize.compact()["numFilesRemoved"] > 1


class ByColumn(SinkContract):
    def test_what_is_replaced_gives_way_after_an_optimize(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        old, other = stage(self.txn(1), 1, 2), stage(self.txn(2), 3)
        for decision, handle in enumerate((old, other), 1):
            committer.commit(handle, decision)
        optimize(target)
        sink: Any = target.sink()
        sink.check_replace(old)
        new = sink.rehearse({**stage(self.txn(3), 4), "replaces": old}, 3)
        assert target.published() == [1, 2, 3]
        for _ in range(2):
            committer.commit(new, 3)
        assert target.published() == [3, 4]
        sink.release(self.txn(3))
        assert target.published() == [3, 4]
        assert not sink.is_leftover(self.txn(3))

    def test_what_is_retracted_is_taken_out_after_an_optimize(
        self, target: Target, committer: Committer, stage: Stage
    ) -> None:
        olds = [stage(self.txn(epoch), epoch) for epoch in (1, 2, 3)]
        for decision, old in enumerate(olds, 1):
            committer.commit(old, decision)
        optimize(target)
        sink: Any = target.sink()
        back: Handle = json.loads(json.dumps(sink.retraction(self.txn(4, attempt=0), olds[:0:-1], olds[0])))
        for _ in range(2):
            committer.commit(back, 4)
        assert target.published() == [1]
