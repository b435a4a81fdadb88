"""What importing a DAG file costs beyond Airflow's own import: in fresh processes, alternating."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

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


def dag_import(dags: Path, limit: float = 100) -> str:
    """Milliseconds per DAG file, medians; `limit` is the target."""
    lines = []
    with TemporaryDirectory() as home:
        for file in sorted(dags.glob("*.py")):
            cost = median(_milliseconds(file, home) for _ in range(ROUNDS))
            verdict = "met" if cost < limit else "NOT met"
            lines.append(f"  {file.name:20} {cost:6.1f} ms, target < {limit:.0f} ms: {verdict}")
    return "\n".join(["importing a DAG file, beyond Airflow's own import", *lines])


def _milliseconds(file: Path, home: str) -> float:
    program = PROGRAM.format(airflow=AIRFLOW)
    env = {**os.environ, "AIRFLOW_HOME": home, "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(file)], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])
