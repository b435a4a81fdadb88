"""A process that stages and publishes checkpoints into a folder of files, and says what it has done after each step.

Arguments: ROOT NUMBERS SYNCS. Below ROOT everything is written that a power cut may take: the state table and the
target. ROOT/topics is the source, as a broker on another machine has it. SYNCS is 'all', or what this process syncs in
place of it: 'no folders' or 'nothing'. Run by test_power_cut.py.
"""

from __future__ import annotations

import os
import stat
import sys
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from integration.faults.syncs import mark
from unit.lightfiles import FileParts, LightFiles

from onceonly.checkpoint.model import Row
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import FileSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import owners
from onceonly.statetable import compaction, location
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View
from onceonly.storage.durability import sync_with_parents
from onceonly.testing.fakes import FakeSource

NAME, TOPICS, TARGET = "power", "topics", "target"
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


class PowerParts(FileParts):
    def __init__(self, root: Path) -> None:
        super().__init__(root / TOPICS)
        self.root = root

    def sink(self, pipeline: Pipeline, name: str) -> Any:
        return LightFiles(self.root / TARGET, name)

    def produce(self, checkpoint: Any) -> dict[str, list[Any]]:
        rows = super().produce(checkpoint)
        return {sink: [{"value": row["value"]} for row in rows[sink]] for sink in checkpoint.sinks}


def pipeline() -> Pipeline:
    return Pipeline(
        name=NAME,
        source=KafkaSource("numbers", max_records=4),
        transform="t:t",
        sinks=[FileSink("files", path="files", format="json")],
    )


def make(root: Path) -> None:
    """The state table and the folder of the target; again, if that was not completed."""
    StateTable.make(str(root / "state"))
    (root / TARGET).mkdir(exist_ok=True)
    sync_with_parents(root / TARGET)


def open_coordinator(root: Path) -> Coordinator:
    return Coordinator(StateTable(str(root / "state")), PowerParts(root))


def merge_rows(table: StateTable) -> None:
    """As a table does after many rows: one file of them all, and a log checkpoint."""
    compaction.tidy(NAME, location.table_folder(table.uri, NAME), table._log(NAME))


def run(root: Path, who: str, aborted: tuple[int, ...] = ()) -> None:
    """Checkpoint after checkpoint; those are aborted once."""
    parts = PowerParts(root)
    for turn in count():
        through, owner = open_coordinator(root), f"{who} {turn}"
        planned = through.plan(pipeline(), owner, owners.is_never_alive).checkpoint
        if planned is None:
            through.recover(NAME, owners.is_never_alive)
            return
        through.stage(NAME, planned.epoch, parts.produce, owner)
        if turn in aborted:
            through.abort(NAME, planned.epoch, "once")
            continue
        through.commit(NAME, planned.epoch)
        mark(f"committed {planned.epoch}")
        merge_rows(through.state_table)


def forget_syncs(of: str) -> None:
    """As a program does that leaves it to chance what is on disk."""
    inner = os.fsync

    def fsync(descriptor: int) -> None:
        if of == "no folders" and not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            inner(descriptor)

    os.fsync = fsync


def main() -> None:
    root = Path(sys.argv[1])
    if sys.argv[3] != "all":
        forget_syncs(sys.argv[3])
    inner = StateTable.append

    def append(table: StateTable, view: View, row: Row) -> View:
        result = inner(table, view, row)
        mark(f"row {row.seq} {row.event.value}")
        return result

    StateTable.append = append  # type: ignore[method-assign]
    (root / TOPICS).mkdir()
    FakeSource("numbers", root / TOPICS).append(0, *((NOON, number) for number in range(int(sys.argv[2]))))
    make(root)
    mark("made")
    run(root, "first", aborted=(1,))


if __name__ == "__main__":
    main()
