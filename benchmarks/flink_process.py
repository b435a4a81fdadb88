"""PyFlink in an environment of its own, fetched on first use: it cannot share one with Airflow."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from benchmarks import peers
from onceonly.spark.jars import SETTINGS, ivy_jar

PROJECT = Path(__file__).parents[1]
HOME = PROJECT / ".bench" / "flink"
PYTHON = HOME / "venv" / "bin" / "python"
FLINK = "apache-flink==2.2.1"
CONNECTOR = ("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2")
NAMED = f"{FLINK.replace('==', ' ')} with {CONNECTOR[1]} {CONNECTOR[2]}"
CHECKPOINTS = {"execution.checkpointing.interval": "5s", "execution.checkpointing.mode": "EXACTLY_ONCE"}
Settings = Mapping[str, Mapping[str, str]]
DEFAULT: Settings = {"flink": CHECKPOINTS, "fetch": {}, "produce": {}}
TUNED: Settings = {
    "flink": CHECKPOINTS | {"pipeline.object-reuse": "true"},
    "fetch": peers.FETCH,
    "produce": peers.PRODUCE,
}


class Flink:
    """One process and its JVM; each job writes the whole source topic into a target."""

    def __init__(self, bootstrap: str, source: str, parallelism: int, settings: Settings) -> None:
        command = [PYTHON, "-P", PROJECT / "benchmarks" / "flink_job.py", bootstrap, source, jar(), parallelism]
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [*map(str, command), json.dumps(settings)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1,
        )  # fmt: skip

    def seconds(self, target: str) -> float:
        """Of one job, without the start of its JVM."""
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # it has ended, and says why
            self._process.stdin.write(f"{target} p{uuid.uuid4().hex[:8]}\n")
        for line in self._process.stdout:
            if line.startswith("SECONDS "):
                return float(line.split()[1])
        self._errors.seek(0)
        raise RuntimeError(f"the Flink job failed:\n{self._errors.read()[-4000:].decode(errors='replace')}")

    def end(self) -> None:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended already, as `seconds` has said
            self._process.stdin.close()
        self._process.wait(60)
        self._errors.close()


@contextmanager
def flink(*arguments: Any) -> Iterator[Flink]:
    process = Flink(*arguments)
    try:
        yield process
    finally:
        process.end()


def prepare() -> None:
    """The environment and the connector, once."""
    if not PYTHON.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(HOME / "venv")], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(PYTHON), FLINK], check=True)
    if not jar().exists():
        command = ["java", f"-Divy.default.ivy.user.dir={HOME}/ivy", "-jar", str(ivy_jar()), "-cache", f"{HOME}/ivy"]
        command += ["-settings", str(SETTINGS), "-dependency", *CONNECTOR]
        command += ["-retrieve", f"{HOME}/[artifact]-[revision].[ext]", "-notransitive"]
        subprocess.run(command, check=True, capture_output=True)


def jar() -> Path:
    return HOME / f"{CONNECTOR[1]}-{CONNECTOR[2]}.jar"
