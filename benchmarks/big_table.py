"""A Delta table of many files, made by its log entries directly, and a step on it in a process of its own.

python -m benchmarks.big_table STEP FOLDER prints the seconds that the step took, those of the processor, and what
memory the process has used.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from tests.unit.lightdelta import LightDelta, LightParts

from onceonly.checkpoint.model import Checkpoint
from onceonly.coordinator.coordinator import Coordinator
from onceonly.delta import log_files
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.sinks.delta import staged_folders, staged_table
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeParts

PIPELINE = Pipeline(name="p", source=KafkaSource("t"), transform="m:f", sinks=[DeltaSink("lake", path="lake")])
PORTION = 10_000  # files named by one log entry
MANY, COLUMNS = 10_000, 20  # files of a large commit, and the columns of which its log has statistics
Step = Callable[["World"], None]


class World:
    def __init__(self, folder: Path) -> None:
        self.fakes = FakeParts(folder / "parts")
        parts: Any = LightParts(folder, self.fakes)
        self.coordinator = Coordinator(StateTable.make(str(folder / "state")), parts)
        self.sink = LightDelta(folder / "lake")
        self.note = folder / "handle.json"  # of what is prepared for a step

    def stage(self) -> Checkpoint:
        self.fakes.sources(PIPELINE)["t"].append(0, (datetime.now(UTC), "row"))
        planned = self.coordinator.plan(PIPELINE, str(uuid.uuid4()), lambda checkpoint: True).checkpoint
        assert planned is not None
        return self.coordinator.stage("p", planned.epoch, lambda checkpoint: {"lake": [planned.epoch]})

    @property
    def last(self) -> Checkpoint:
        found = self.coordinator.state_table.view("p").latest
        assert found is not None
        return found

    def recover(self) -> None:
        self.coordinator.recover("p", lambda checkpoint: False)


def make(folder: Path, files: int, settled: int = 0) -> None:
    """A world whose table has that many files, named by its log alone, and `settled` folders of published rows."""
    world = World(folder)
    world.coordinator.commit("p", world.stage().epoch)
    entries = Path(world.sink.uri) / log_files.LOG_FOLDER
    for version, start in enumerate(range(0, files, PORTION), start=len(list(entries.glob("*.json")))):
        adds = [{"add": _file(number)} for number in range(start, min(files, start + PORTION))]
        (Path(world.sink.uri) / log_files.entry_path(version)).write_text("\n".join(map(json.dumps, adds)))
    DeltaTable(world.sink.uri).create_checkpoint()
    for number in range(settled):
        _settled(Path(world.sink.uri) / f"staged-{world.coordinator.state_table.id}-p-lake-1-1-{number:012x}")
    os.sync()  # as of a table that has been there for a while


def _file(number: int) -> dict[str, Any]:
    path = f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet"
    kept = {"size": 1000, "modificationTime": 1_700_000_000_000, "dataChange": True}
    return {"path": path, "partitionValues": {}, **kept, "stats": json.dumps(_statistics(1))}


def _statistics(columns: int) -> dict[str, Any]:
    names = ["n", *(f"column_{number}" for number in range(1, columns))]
    least, most, nulls = (dict.fromkeys(names, value) for value in (1, 9, 0))
    return {"numRecords": 10, "minValues": least, "maxValues": most, "nullCount": nulls}


def _settled(folder: Path) -> None:
    folder.mkdir()
    for name in ("part-00000.snappy.parquet", staged_folders.MARK):
        (folder / name).touch()


# ---- steps; what is prepared for one is not measured


def prepare_publish(world: World) -> None:
    """Decide; the process dies before anything is published."""
    staged = world.stage()
    with patch.object(LightDelta, "commit", _dies), suppress(KeyboardInterrupt):
        world.coordinator.commit("p", staged.epoch)
    world.note.write_text(json.dumps([staged.handles["lake"], world.last.decision]))


def prepare_commit_many(world: World) -> None:
    """The same, of as many files as a large stage writes."""
    with patch.object(LightDelta, "stage", _stage_many):
        prepare_publish(world)


def _stage_many(sink: LightDelta, txn: Any, rows: Any, stage: Any = LightDelta.stage) -> Any:
    handle = stage(sink, txn, rows)
    folder = Path(sink.uri) / handle["folder"]
    add = staged_table.read_adds(sink.uri, handle["folder"], 1)[0]
    names = [f"part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet" for number in range(MANY)]
    for name in names:
        os.link(folder / add["path"], folder / name)
    adds = [{"add": {**add, "path": name, "stats": json.dumps(_statistics(COLUMNS))}} for name in names]
    (folder / log_files.entry_path(1)).write_text("\n".join(map(json.dumps, adds)))
    return {**handle, "files": MANY}


def publish(world: World) -> None:
    """The rehearsal, and the commit that continues from it."""
    handle, decision = json.loads(world.note.read_text())
    handle = world.sink.rehearse(handle, decision)
    world.sink.commit(handle, decision, None)  # type: ignore[arg-type]


def commit(world: World) -> None:
    world.coordinator.commit("p", world.last.epoch)


def delta_rs(world: World) -> None:
    """What a commit of one file takes without us: open, append."""
    table = DeltaTable(world.sink.uri)
    add = AddAction(f"{uuid.uuid4()}.parquet", 1000, {}, 1_700_000_000_000, True, '{"numRecords": 10}')
    stamp = CommitProperties(app_transactions=[Transaction("bare", time.time_ns())])
    table.create_write_transaction([add], "append", table.schema(), partition_by=[], commit_properties=stamp)


def prepare_abort(world: World) -> None:
    world.stage()


def abort(world: World) -> None:
    world.coordinator.abort("p", world.last.epoch, "a benchmark")


def prepare_recover_abort(world: World) -> None:
    staged = world.stage()
    with patch.object(LightDelta, "discard", _dies), suppress(KeyboardInterrupt):
        world.coordinator.abort("p", staged.epoch, "a benchmark")


def prepare_recover_published(world: World) -> None:
    staged = world.stage()
    with patch("onceonly.delta.table_files.sync_to_disk", _dies), suppress(KeyboardInterrupt):
        world.coordinator.commit("p", staged.epoch)


def _dies(*_: Any) -> None:
    raise KeyboardInterrupt


def nothing(world: World) -> None:
    """What a process of ours has used before it does anything."""


STEPS: dict[str, Step] = {
    "nothing": nothing,
    "prepare_publish": prepare_publish,
    "prepare_commit_many": prepare_commit_many,
    "publish": publish,
    "commit": commit,
    "delta_rs": delta_rs,
    "prepare_abort": prepare_abort,
    "abort": abort,
    "prepare_recover_abort": prepare_recover_abort,
    "prepare_recover_published": prepare_recover_published,
    "recover": World.recover,
    "sweep": lambda world: world.coordinator.sweep("p") and None,
}


def main(step: str, folder: str) -> None:
    pa.table({"n": [1]})  # the first one of a process is slow
    world = World(Path(folder))
    started, worked = time.perf_counter(), time.process_time()
    STEPS[step](world)
    took, work = time.perf_counter() - started, time.process_time() - worked
    print(json.dumps({"seconds": took, "processor": work, "mib": _peak()}))


def _peak() -> float:
    """MiB. Not `getrusage`, which begins with what the process used that started this one."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
