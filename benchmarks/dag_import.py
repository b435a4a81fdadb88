"""What importing a DAG file costs beyond Airflow's own import: in fresh processes, alternating."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.results import Result, Row

PROJECT = Path(__file__).parents[1]
ROUNDS = 5
AIRFLOW = "from airflow.sdk import DAG, BaseOperator, BaseHook, CronDataIntervalTimetable, TriggerRule"
PROGRAM = """
import sys, time, runpy
{airflow}
import airflow.sdk.exceptions
started = time.perf_counter()
runpy.run_path(sys.argv[1])
print((time.perf_counter() - started) * 1000)
"""


def dag_import(folder: Path) -> Result:
    """Milliseconds of each DAG file of this project."""
    files = sorted((PROJECT / "dags").glob("*.py"))
    rows = [Row(file.name, "ms", [_milliseconds(file, str(folder)) for _ in range(ROUNDS)]) for file in files]
    slowest = max(rows, key=lambda row: median(row.runs))
    how = "What a fresh process needs to import a DAG file, beyond Airflow's own import."
    return Result("Import of DAG files", how, [*rows, replace(slowest, measure="slowest DAG file")])


def _milliseconds(file: Path, home: str) -> float:
    program = PROGRAM.format(airflow=AIRFLOW)
    env = {**os.environ, "AIRFLOW_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])
