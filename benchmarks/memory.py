"""The memory of a checkpoint, Kafka → Kafka: of the driver, of an executor, and of the process that stages it.

A cluster of one executor on this machine, so that each is a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from benchmarks.results import RATIO, Result, Row
from benchmarks.world import PARTITIONS, TOPIC, create, fill, world
from onceonly.runtime.live_services import LiveServices

SIZES = (3_000_000, 30_000_000)  # rows
HEAP = 512  # MiB, of the driver and of the executor; Spark asks for 450. A larger one is filled before it is collected
CORES = 2
JVMS = {  # by what their process is: the class that it runs
    "driver": "org.apache.spark.deploy.SparkSubmit",
    "executor": "org.apache.spark.executor.CoarseGrainedExecutorBackend",
}
DEFAULTS = f"""\
spark.master local-cluster[1,{CORES},{HEAP}]
spark.driver.memory {HEAP}m
spark.executor.memory {HEAP}m
"""
EVERY = 0.5  # seconds


def memory(folder: Path) -> Result:
    """MiB at the peak (VmHWM) of each process."""
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    found: dict[str, Row] = {}
    with world(folder, 1, ("ours",)) as parts:
        for number, rows in enumerate(SIZES):
            topic = f"{TOPIC}-{rows}"
            create(parts.settings.brokers(None), topic)
            fill(parts.settings.brokers(None), topic, rows)
            peaks = _peaks(parts, folder / "conf", topic, number)
            found |= {f"{who}, {rows:,}": Row(f"{who}, {rows:,}", "MiB", [peak]) for who, peak in peaks.items()}
    few, many = (f"{rows:,}" for rows in SIZES)
    ratios = [
        Row(f"{who}, {many} ÷ {who}, {few}", RATIO, [found[f"{who}, {many}"].runs[0] / found[f"{who}, {few}"].runs[0]])
        for who in ("driver", "executor", "Python")
    ]
    return Result(
        "Memory",
        f"The peak of a checkpoint's processes, Kafka → Kafka, of {PARTITIONS} partitions on one executor with {CORES} "
        f"cores: each JVM may have a heap of {HEAP} MiB. Python is the process of the stage, which starts the driver.",
        [*found.values(), *ratios],
    )


def _peaks(parts: LiveServices, conf: Path, topic: str, number: int) -> dict[str, float]:
    settings = parts.settings
    program = [sys.executable, "-m", "benchmarks.once", str(settings.home), settings.state, settings.spool]
    with subprocess.Popen(
        [*program, settings.brokers(None), str(number), topic],
        env=_environment(conf),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        peaks: dict[str, float] = {}
        while process.poll() is None:
            for who, peak in _look(process.pid):
                peaks[who] = max(peak, peaks.get(who, 0.0))
            try:
                process.wait(EVERY)
            except subprocess.TimeoutExpired:
                continue
        said = process.stderr.read() if process.stderr else ""
    if process.returncode:
        raise RuntimeError(f"the checkpoint failed:\n{said[said.rfind('Traceback') :][:4000]}")  # then Spark shuts down
    return peaks


def _environment(conf: Path) -> Mapping[str, str]:
    return {**os.environ, "SPARK_CONF_DIR": str(conf)}


def _look(pid: int) -> Iterator[tuple[str, float]]:
    """Each process that counts, with the MiB of its peak until now."""
    for process in _list_processes(pid):
        try:
            who = _name(process, pid)
            if who:
                yield who, _peak(process.pid)
        except (psutil.Error, OSError):
            continue  # it has just ended


def _list_processes(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


def _name(process: psutil.Process, pid: int) -> str | None:
    if process.pid == pid:
        return "Python"
    words = process.cmdline() if process.name() == "java" else []
    return next((who for who, class_name in JVMS.items() if class_name in words), None)


def _peak(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.split("VmHWM:")[1].split()[0]) / 1024
