"""make bench [ARGS="checkpoint files …"]: what was measured, whether a target is met. Without names, all of them."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.airflow_overhead import airflow_overhead
from benchmarks.checkpoint import checkpoint
from benchmarks.dag_import import dag_import
from benchmarks.files import files, second_sink
from benchmarks.fsync import state_table, whole_checkpoint
from benchmarks.history import history
from benchmarks.kafka_sink import against_flink, kafka_sink
from benchmarks.keys import keys
from benchmarks.pages import pages

PROJECT = Path(__file__).parents[1]


def main(names: list[str]) -> None:
    with TemporaryDirectory(prefix="onceonly-bench-") as folder:
        benchmarks = {
            "dag_import": lambda: [dag_import(PROJECT / "dags")],
            "airflow_overhead": lambda: [airflow_overhead(Path(folder) / "airflow")],
            "history": lambda: [history(Path(folder), mode) for mode in ("chained", "interval")],
            "checkpoint": lambda: [checkpoint(Path(folder))],
            "fsync": lambda: [state_table(Path(folder) / "fakes"), whole_checkpoint(Path(folder) / "whole")],
            "pages": lambda: [pages(Path(folder) / "pages")],
            "files": lambda: [files(Path(folder) / "files")],
            "second_sink": lambda: [second_sink(Path(folder) / "second")],
            "keys": lambda: [keys(Path(folder) / "keys")],
            "kafka_sink": lambda: [kafka_sink(Path(folder) / "kafka")],
            "flink": lambda: [against_flink(Path(folder) / "flink")],
        }
        for name in names or benchmarks:
            for result in benchmarks[name]():
                print(result, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
