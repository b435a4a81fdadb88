"""PyFlink in an environment of its own, fetched on first use: it cannot share one with Airflow."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path

from onceonly.spark.jars import SETTINGS, ivy_jar

PROJECT = Path(__file__).parents[1]
HOME = PROJECT / ".bench" / "flink"
PYTHON = HOME / "venv" / "bin" / "python"
FLINK = "apache-flink==2.2.1"
CONNECTOR = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")


def seconds(bootstrap: str, source: str, target: str) -> float:
    """One exactly-once job, parallelism 2, checkpoints every 5 s; without the start of its JVM."""
    job = [PYTHON, PROJECT / "benchmarks" / "flink_job.py", bootstrap, source, target, _jar(), uuid.uuid4().hex[:8]]
    done = subprocess.run([str(part) for part in job], capture_output=True, text=True, timeout=600)
    told = [line for line in done.stdout.splitlines() if line.startswith("SECONDS ")]
    if done.returncode or not told:
        raise RuntimeError(f"the Flink job failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return float(told[0].split()[1])


def prepare() -> None:
    """The environment and the connector, once."""
    if not PYTHON.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(HOME / "venv")], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(PYTHON), FLINK], check=True)
    if not _jar().exists():
        command = ["java", f"-Divy.default.ivy.user.dir={HOME}/ivy", "-jar", str(ivy_jar()), "-cache", f"{HOME}/ivy"]
        command += ["-settings", str(SETTINGS), "-dependency", *CONNECTOR]
        command += ["-retrieve", f"{HOME}/[artifact]-[revision].[ext]", "-notransitive"]
        subprocess.run(command, check=True, capture_output=True)


def _jar() -> Path:
    return HOME / f"{CONNECTOR[1]}-{CONNECTOR[2]}.jar"
