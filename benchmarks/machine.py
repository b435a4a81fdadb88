"""What a measurement depends on: the machine, its load, and the versions. No host name, no path."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = (
    "onceonly", "deltalake", "pyarrow", "pyspark", "delta-spark", "confluent-kafka", "kafka-python", "apache-airflow"
)  # fmt: skip
PROJECT = Path(__file__).parents[1]
CALM = 1.0  # runnable processes, on average over a minute
MAX_WAIT, PAUSE = 300.0, 10.0  # seconds


def about(folder: Path) -> dict[str, Any]:
    """To be called before the work, since it notes the load."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "machine": {
            "cores": os.cpu_count(),
            "processor": _processor(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "kernel": f"{platform.system()} {platform.release()}",
            "disk": _disk(folder),
            "load": load(),
        },
        "versions": {"python": platform.python_version(), "java": _java()} | {name: version(name) for name in PACKAGES},
    }


def load() -> list[float]:
    """Runnable processes, on average over 1, 5 and 15 minutes."""
    return [round(each, 2) for each in os.getloadavg()]


def await_calm() -> None:
    """Wait until what ran before is over: until at most one process is runnable, but not for ever."""
    deadline = time.monotonic() + MAX_WAIT
    while load()[0] > CALM and time.monotonic() < deadline:
        print(f"waiting until the machine is calm: load {load()[0]}, at most {CALM:g} wanted", file=sys.stderr)
        time.sleep(PAUSE)


def _commit() -> str:
    """Of the code; what a measurement itself writes is no change."""
    git = ("git", "-C", str(PROJECT))
    changed = _output(*git, "status", "--porcelain", "--", "src", "benchmarks/*.py")
    return _output(*git, "rev-parse", "--short", "HEAD") + (" with changes" if changed else "")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _disk(folder: Path) -> str:
    """The file system that holds the folder."""
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    held = [(len(where), f"{kind} on {device}") for device, where, kind in mounts if folder.is_relative_to(where)]
    return max(held)[1]


def _java() -> str:
    words = _output("java", "-version").splitlines()
    return words[0].split('"')[1] if words and '"' in words[0] else "none"


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return (done.stdout or done.stderr).strip()
