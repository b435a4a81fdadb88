"""The state table of tests on fakes: the real one, and in memory for `make unit`, where hundreds of them take seconds.

Both keep one contract (test_state_contract.py).
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

from explore.steps import Steps
from explore.table import Chain, MemoryTable, coverage_of

from onceonly.checkpoint.model import Checkpoint, Row, fold
from onceonly.checkpoint.offsets import Interval
from onceonly.json_values.text import canonical
from onceonly.statetable.gaps import Coverage
from onceonly.statetable.table import StateTable

QUICK = os.environ.get("ONCEONLY_UNIT") == "quick"


class QuickTable(MemoryTable):
    """With what threads of one process need."""

    def __init__(self, uri: str) -> None:
        super().__init__(Steps())
        self.uri, self.id, self._lock = uri, uuid.uuid4().hex, RLock()

    def _write(self, chain: Chain, row: Row) -> Chain:
        stored = replace(row, body=json.loads(canonical(row.body)))  # as it is read back
        with self._lock:
            return super()._write(chain, stored)

    def coverage(self, pipelines: Iterable[str]) -> dict[str, Coverage]:
        return {name: coverage_of(self.chain(name).checkpoints.values()) for name in pipelines}

    def gaps(self, pipelines: Iterable[str]) -> dict[str, list[Interval]]:
        return {name: list(coverage.gaps) for name, coverage in self.coverage(pipelines).items()}

    def recent(self, pipelines: Iterable[str], most: int) -> dict[str, list[Row]]:
        return {name: self._recent(self.chain(name), most) for name in pipelines}

    def _recent(self, chain: Chain, most: int) -> list[Row]:
        oldest = chain.head.epoch - most + 1
        old = {*chain.head.open, *chain.head.unfit}
        return [row for row in chain.rows if row.epoch >= oldest or row.epoch in old]

    def superseding(self, pipeline: str, epochs: Sequence[int]) -> list[Checkpoint]:
        found: dict[int, Checkpoint] = {}
        for checkpoint in fold(self.chain(pipeline).rows).values():
            is_later = checkpoint.epoch > min(epochs)
            if is_later and (checkpoint.replaces in {*epochs, *found} or _rewinds(checkpoint, max(epochs))):
                found[checkpoint.epoch] = checkpoint
        return [*found.values()]

    def after_others(self, pipeline: str) -> list[Checkpoint]:
        return [checkpoint for checkpoint in fold(self.chain(pipeline).rows).values() if checkpoint.after]


def _rewinds(checkpoint: Checkpoint, epoch: int) -> bool:
    return checkpoint.rewinds_to is not None and checkpoint.rewinds_to < epoch


KIND: Any = QuickTable if QUICK else StateTable


def make(folder: Path) -> Any:
    return QuickTable(str(folder / "state")) if QUICK else real(folder)


def real(folder: Path) -> StateTable:
    return StateTable.make(str(folder / "state"))
