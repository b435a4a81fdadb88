"""What publish, abort, recover and sweep cost on 10 to 400,000 files, and with 100,000 checkpoints behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from benchmarks import big_table
from benchmarks.results import Result, Row, ratio

FILES = (10, 10_000, 400_000)
BEHIND = (100, 10_000, 100_000)
PER_CHECKPOINT = 100  # files, of those that a target has
OURS, BARE = "publish", "open and append by delta-rs"
STEPS = {  # name: (what is prepared, what is measured); the first two take turns
    OURS: ("prepare_publish", "publish"),
    BARE: ("commit", "delta_rs"),
    "abort": ("prepare_abort", "abort"),
    "recover, of an abort": ("prepare_recover_abort", "recover"),
    "recover, of what is published": ("prepare_recover_published", "recover"),
    "recover, nothing": ("nothing", "recover"),
    "sweep": ("nothing", "sweep"),
}
Found = dict[str, list[dict[str, float]]]


def targets(folder: Path, rounds: int = 5) -> Result:
    measured = {files: _of_size(folder / f"files-{files}", files, rounds) for files in FILES}
    behind = {number: _behind(folder / f"behind-{number}", number, rounds) for number in BEHIND}
    rows = [row for files, found in measured.items() for row in _against(found, files)]
    rows += [*_curves(measured, "files of the target"), *_curves(behind, "checkpoints behind")]
    return Result(
        "Targets of any size",
        "A Delta table whose log names that many files, with a log checkpoint, and a settled folder for each 100 of "
        "them. Each step in a process of its own; its peak memory (VmHWM) is given. `abort`, `recover` and "
        "`sweep` are those of the coordinator, with a real state table; `publish` is the sink's commit of one file.",
        [*rows, _large(folder / "large", rounds)],
        x="files of the target, or checkpoints behind",
        settings={"table": {"columns with statistics": "1", "files of one entry": f"{big_table.PORTION:,}"}},
        notes=[
            "delta-rs 1.6.6 reads the list of all files when it opens a table; only the commit of rows opens one.",
            "A recovery looks through all staged folders once a day, which is what a sweep takes.",
            f"The commit of {big_table.MANY:,} files has statistics of {big_table.COLUMNS} columns; rows do not count.",
        ],
    )


def _of_size(folder: Path, files: int, rounds: int) -> Found:
    big_table.make(folder, files, files // PER_CHECKPOINT)
    found: Found = defaultdict(list)
    _step(folder, "sweep")
    for _ in range(rounds):
        for name, (prepared, measured) in STEPS.items():
            _step(folder, prepared)
            found[name].append(_step(folder, measured))
    return found


def _behind(folder: Path, checkpoints: int, rounds: int) -> Found:
    big_table.make(folder, 10, checkpoints)
    found: Found = defaultdict(list)
    for _ in range(rounds):
        found["recover once a day, or sweep"].append(_step(folder, "sweep"))
        found["recover"].append(_step(folder, "recover"))
    return found


def _large(folder: Path, rounds: int) -> Row:
    runs = []
    for number in range(rounds):
        place = folder / str(number)  # a new one: a commit also reads what the log has had since its last checkpoint
        big_table.make(place, 10)
        _step(place, "prepare_commit_many")
        runs.append(_step(place, "commit")["mib"])
    return Row(f"memory of a commit of {big_table.MANY:,} files", "MiB", runs)


def _curves(found: dict[int, Found], what: str) -> list[Row]:
    kinds = (("seconds", "s", "time"), ("processor", "s", "processor time"), ("mib", "MiB", "memory"))
    return [
        Row(f"{title} by {what}", unit, _all(runs, kind), name, number)
        for kind, unit, title in kinds
        for number, steps in found.items()
        for name, runs in steps.items()
    ]


def _against(found: Found, files: int) -> list[Row]:
    """In time, and in that of the processor, which depends less on what else the machine does."""
    rows = []
    for kind, before in (("seconds", ""), ("processor", "processor time: ")):
        ours, bare = (Row(f"{before}{name}, {files:,} files", "s", _all(found[name], kind)) for name in (OURS, BARE))
        rows += [ours, bare, replace(ratio(ours, bare), measure=f"{before}{OURS} ÷ {BARE}, {files:,} files")]
    return rows


def _all(runs: list[dict[str, float]], name: str) -> list[float]:
    return [run[name] for run in runs]


def _step(folder: Path, name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.big_table", name, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    found: dict[str, float] = json.loads(done.stdout)
    return found
