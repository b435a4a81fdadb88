"""Publishes rows to a table, as a pipeline does it checkpoint after checkpoint."""

from __future__ import annotations

import json
import uuid
from copy import copy
from dataclasses import replace
from pathlib import Path

from arrow_rows import ArrowRows, number_rows
from targets import NumberTable

from onceonly.sinks import Answer, Handle, Publication, TargetHistory, Transaction
from onceonly.testing.contract import Committer


class Publisher:
    """Publishes rows by each decision, as epoch of the same number."""

    def __init__(self, target: NumberTable, receipts: Path) -> None:
        self.target, self.state_id = target, uuid.uuid4().hex
        self.committer = Committer(target, str(receipts))

    def stage(self, epoch: int, *numbers: int) -> Handle:
        """Stage these numbers; without any, that of the epoch."""
        return self.stage_rows(epoch, number_rows(*(numbers or [epoch])))

    def stage_rows(self, epoch: int, rows: ArrowRows) -> Handle:
        txn = Transaction(self.state_id, "flights", "lake", epoch, 1, "a")
        handle: Handle = json.loads(json.dumps(self.target.sink().stage(txn, rows)))
        return handle

    def publish(self, epoch: int, last: Publication | None, rows: ArrowRows | None = None) -> Publication:
        """Publish these rows; without any, the number of the epoch."""
        handle = self.stage_rows(epoch, rows) if rows else self.stage(epoch)
        handle = self.committer.rehearse(handle, epoch, last)
        return Publication(epoch, epoch, self.committer.commit(handle, epoch, last).proof)

    def compare(self, publication: Publication) -> Answer:
        return self.history.compare(publication).answer

    @property
    def history(self) -> TargetHistory:
        sink = self.target.sink()
        assert isinstance(sink, TargetHistory)
        return sink

    def on(self, port: int) -> Publisher:
        """Return the same publisher, whose table is looked at on another server."""
        moved = copy(self)
        moved.target = replace(self.target, port=port)
        moved.committer = Committer(moved.target, self.committer.receipts)
        return moved
