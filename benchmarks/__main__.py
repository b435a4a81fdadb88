"""make bench [ARGS="checkpoint files …"]: measure; write results/NAME.json and the pages. Without names, everything."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import machine, page, results

# By name; the function has the name of the benchmark. Short ones first.
MODULES = {
    "state_table": "state_table",
    "history": "history",
    "pipelines": "pipelines",
    "many_pipelines": "many_pipelines",
    "recovery": "recovery",
    "dag_import": "dag_import",
    "pages": "pages",
    "verify": "verify",
    "targets": "targets",
    "correct_day": "correct_day",
    "fsync": "fsync",
    "registry": "registry",
    "checkpoint": "checkpoint",
    "files": "files",
    "second_sink": "files",
    "keys": "keys",
    "merge": "merge",
    "kafka_sink": "kafka_sink",
    "postgres": "postgres",
    "growth": "growth",
    "partitions": "growth",
    "hot_path": "hot_path",
    "cold_start": "cold_start",
    "first_row": "first_row",
    "demo": "demo",
    "flink": "flink",
    "flink_large": "flink",
    "memory": "memory",
    "airflow_overhead": "airflow_overhead",
}


def main(names: list[str]) -> None:
    if unknown := set(names) - set(MODULES):
        raise SystemExit(f"no such benchmark: {', '.join(unknown)}. There are: {', '.join(MODULES)}")
    for name in names or MODULES:
        work = getattr(import_module(f"benchmarks.{MODULES[name]}"), name)
        machine.await_calm()
        with TemporaryDirectory(prefix="onceonly-bench-") as folder:
            about = machine.about(Path(folder))
            result = work(Path(folder))
        file = results.write(name, result, about | {"load_after": machine.load()})
        page.main()
        print(file.read_text(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
