"""make bench [ARGS="checkpoint history dag_import"]: what was measured, whether a target is met or not."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoint import checkpoint
from benchmarks.dag_import import dag_import
from benchmarks.history import history

PROJECT = Path(__file__).parents[1]


def main(names: list[str]) -> None:
    with TemporaryDirectory(prefix="onceonly-bench-") as folder:
        benchmarks = {
            "dag_import": lambda: [dag_import(PROJECT / "dags")],
            "history": lambda: [history(Path(folder), mode) for mode in ("chained", "interval")],
            "checkpoint": lambda: [checkpoint(Path(folder))],
        }
        for name in names or benchmarks:
            for result in benchmarks[name]():
                print(result, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
