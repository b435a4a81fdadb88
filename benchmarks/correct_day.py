"""What correcting one day takes after OPTIMIZE, in a table of up to 400,000 files, beside delta-rs's own statements.

python -m benchmarks.correct_day STEP FOLDER prints the seconds that the step took, those of the processor, and what
memory the process has used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.unit.lightdelta import LightDelta, transaction

from benchmarks.big_table import PORTION, _peak
from benchmarks.results import Result, Row, ratio
from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import log_files

FILES = (10, 400_000)
ROWS = 500_000  # of the checkpoint, and as many of others in the same file
DAYS = 1_000  # partitions, of which the log alone has files
DAY, COLUMN = "2013-01-05", "published_by"
OURS, BARE = "replace a checkpoint", "DELETE and append by delta-rs"
NEVER: Any = None  # a Delta handle is never replaced
Found = dict[str, list[dict[str, float]]]


class Days(LightDelta):
    """Rows of one day."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lake", partition_by=["day"], checkpoint_column=COLUMN)
        self.note = folder / "handle.json"

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        numbers = pa.array(rows, pa.int64())
        words = pa.array([f"row {number} of {txn.epoch}" for number in rows])
        return pa.table({"n": numbers, "word": words, "day": pa.array([DAY] * len(rows))})

    def publish(self, epoch: int) -> Handle:
        handle = self.stage(transaction(epoch), range(ROWS))
        self.commit(handle, epoch, NEVER)
        self.release(transaction(epoch))
        return handle


def make(folder: Path, files: int) -> None:
    """A table of that many files in many days, named by its log alone."""
    lake = Days(folder)
    lake.publish(1)
    for version, start in enumerate(range(0, files, PORTION), start=DeltaTable(lake.uri).version() + 1):
        adds = [{"add": _file(number)} for number in range(start, min(files, start + PORTION))]
        (Path(lake.uri) / log_files.entry_path(version)).write_text("\n".join(map(json.dumps, adds)))
    DeltaTable(lake.uri).create_checkpoint()
    os.sync()


def _file(number: int) -> dict[str, Any]:
    """One that an OPTIMIZE has written: its statistics leave room for every transaction of the state table."""
    name = transaction().name
    low, high = name[:32], f"{name[:32]}\U0010ffff"
    stats = {"numRecords": 10, "minValues": {"n": 1, COLUMN: low}, "maxValues": {"n": 9, COLUMN: high}}
    day = f"day-{number % DAYS}"
    return {
        "path": f"day={day}/part-{number:05}-{uuid.uuid4()}-c000.snappy.parquet",
        "partitionValues": {"day": day},
        **{"size": 1000, "modificationTime": 1_700_000_000_000, "dataChange": True},
        "stats": json.dumps({**stats, "nullCount": {"n": 0, COLUMN: 0}}),
    }


# ---- steps; what is prepared for one is not measured


def prepare(folder: Path) -> None:
    """Two checkpoints of that day, whose rows an OPTIMIZE puts into one file."""
    lake = Days(folder)
    number = json.loads(lake.note.read_text())[1] if lake.note.exists() else 1
    old = lake.publish(number + 1)
    lake.publish(number + 2)
    DeltaTable(lake.uri).optimize.compact(partition_filters=[("day", "=", DAY)])
    lake.note.write_text(json.dumps([old, number + 3]))
    os.sync()


def correct(folder: Path) -> None:
    """The check of the plan, the stage, the rehearsal, and the commit that continues from it."""
    lake = Days(folder)
    old, decision = json.loads(lake.note.read_text())
    lake.check_replace(old)
    handle = {**lake.stage(transaction(decision), range(ROWS)), "replaces": old}
    lake.commit(lake.rehearse(handle, decision), decision, NEVER)


def delta_rs(folder: Path) -> None:
    """Two commits, between which the rows are missing."""
    lake = Days(folder)
    old, number = json.loads(lake.note.read_text())
    DeltaTable(lake.uri).delete(f"day = '{DAY}' AND {COLUMN} = '{_name(old)}'")
    rows = lake.rows(transaction(number), range(ROWS))
    write_deltalake(lake.uri, rows.append_column(COLUMN, pa.array([transaction(number).name] * ROWS)), mode="append")


def verify(folder: Path) -> None:
    """By DuckDB: the old rows are gone, the new ones are there once, and so are those of the other checkpoint."""
    lake = Days(folder)
    old, number = json.loads(lake.note.read_text())
    files = DeltaTable(lake.uri).file_uris(file_pruning_predicate=[("day", "=", DAY)])
    count = f"SELECT {COLUMN}, count(*), count(DISTINCT n) FROM read_parquet(?, union_by_name = true) GROUP BY ALL"
    found = {name: (rows, numbers) for name, rows, numbers in duckdb.execute(count, [files]).fetchall()}
    assert _name(old) not in found
    for name in (transaction(number - 1).name, transaction(number).name):
        assert found[name] == (ROWS, ROWS), (name, found[name])


def _name(handle: Handle) -> str:
    return str(handle["folder"]).removeprefix("staged-")


STEPS: dict[str, Callable[[Path], None]] = {
    "prepare": prepare,
    "correct": correct,
    "delta_rs": delta_rs,
    "verify": verify,
}


# ---- the benchmark


def correct_day(folder: Path, rounds: int = 5) -> Result:
    rows: list[Row] = []
    for files in FILES:
        place = folder / f"files-{files}"
        make(place, files)
        found: Found = defaultdict(list)
        for number in range(rounds):
            sides = [(OURS, "correct"), (BARE, "delta_rs")]
            for name, step in sides if number % 2 else sides[::-1]:
                _step(place, "prepare")
                found[name].append(_step(place, step))
                _step(place, "verify")
        rows += _against(found, files)
    return Result(
        "Correcting one day after OPTIMIZE",
        f"A checkpoint of {ROWS:,} rows is replaced that an OPTIMIZE has put into one file with as many rows of "
        "others, in a Delta table whose log names that many files of other days. Beside it what delta-rs takes to "
        "DELETE the same rows by day and name, and to append the new ones. Each in a process of its own, in turns.",
        rows,
        x="files of the target",
        settings={"table": {"files of one entry": f"{PORTION:,}", "partitions": f"{DAYS:,}"}},
        notes=[
            "Ours has the check of the plan, the stage of the new rows with fsync, the rehearsal and the commit, which "
            "is one. delta-rs makes two commits, between which the day is missing, and syncs nothing. DuckDB checks "
            "the rows of the day after each.",
            "The log reaches back to the checkpoint, so only files that were written since are looked into. Where it "
            "has expired, the name is looked for in every file of which the log's statistics leave room for it.",
        ],
    )


def _against(found: Found, files: int) -> list[Row]:
    rows = []
    for kind, before in (("seconds", ""), ("processor", "processor time: ")):
        ours, bare = (
            Row(f"{before}{name}, {files:,} files", "s", [run[kind] for run in found[name]]) for name in (OURS, BARE)
        )
        rows += [ours, bare, replace(ratio(ours, bare), measure=f"{before}{OURS} ÷ {BARE}, {files:,} files")]
    rows.append(Row(f"memory: {OURS}, {files:,} files", "MiB", [run["mib"] for run in found[OURS]]))
    return rows


def _step(folder: Path, name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.correct_day", name, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(step: str, folder: str) -> None:
    pa.table({"n": [1]})  # the first one of a process is slow
    started, worked = time.perf_counter(), time.process_time()
    STEPS[step](Path(folder))
    took, work = time.perf_counter() - started, time.process_time() - worked
    print(json.dumps({"seconds": took, "processor": work, "mib": _peak()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
