"""Kafka to Kafka exactly once, against Flink: both cold, both warm, and as a user would start them."""

from __future__ import annotations

import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks import flink_process, steady
from benchmarks.kafka_sink import ours
from benchmarks.peers import OURS
from benchmarks.ratio import seconds
from benchmarks.results import RATIO, Result, Row, ratio
from benchmarks.world import PARTITIONS, TOPIC, create, world
from onceonly.runtime.factory import LiveParts

ROWS = 6_000_000  # enough for a steady state after the first checkpoint, 5 s after the start
WARM, STEADY = "Onceonly, warm", "Flink, steady"
SIDES = {"Flink, default settings, warm": flink_process.DEFAULT, "Flink, tuned, warm": flink_process.TUNED}


def flink(folder: Path, rows: int = ROWS, rounds: int = 3, parallelism: int = 2) -> Result:
    """In turns on one broker; every run of Flink writes into a topic of its own."""
    flink_process.prepare()
    times: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with world(folder, rows, ("ours",)) as parts:
        _warm(parts, rounds, parallelism, times, rates)
        _cold(parts, rounds, parallelism, times)
    measured = {name: Row(name, "s", runs) for name, runs in times.items()}
    pairs = [(name, WARM) for name in SIDES] + [
        ("Flink, tuned, cold", "Onceonly, cold"),
        ("Flink, tuned, process", "Onceonly, process"),
    ]
    ratios = [ratio(measured[one], measured[other]) for one, other in pairs]
    ratios += [ratio(measured[WARM], measured[name]) for name in SIDES]
    if steady_rates := rates.get("Flink, tuned, warm"):
        measured[STEADY] = Row(STEADY, "s", [rows / rate for rate in steady_rates])
        ratios.insert(0, _by_medians(measured[STEADY], measured[WARM]))
    speeds = [
        Row(f"{name}: rows per second after its first checkpoint", "rows/s", runs) for name, runs in rates.items()
    ]
    return Result(
        "Kafka to Kafka, against Flink",
        f"A whole checkpoint of {rows:,} small records (plan, stage, commit, its spool on disk) beside Flink's job "
        f"over the same topic, parallelism {parallelism}, a checkpoint every 5 s. Warm: a session, a JVM that ran the "
        "job before. Cold: new ones, without their start. Process: from its start to its end. Steady: the rows at "
        "Flink's speed after its first checkpoint, as the broker saw it; no start, no last checkpoint.",
        [*measured.values(), *ratios, *speeds],
        settings={"Onceonly": OURS} | {name: _settings(SIDES[name]) for name in SIDES},
        notes=[f"Flink is {flink_process.NAMED}."],
    )


def _by_medians(one: Row, other: Row) -> Row:
    """Not round by round: a round that ended before a second checkpoint shows no steady state."""
    found = median(one.runs) / median(other.runs)
    return Row(f"{one.measure} ÷ {other.measure}", RATIO, [found], of=(one.measure, other.measure))


def _warm(
    parts: LiveParts, rounds: int, parallelism: int, times: dict[str, list[float]], rates: dict[str, list[float]]
) -> None:
    """The first round warms up."""
    bootstrap, numbers = parts.settings.brokers(None), count(1)
    started = {name: flink_process.Flink(bootstrap, TOPIC, parallelism, settings) for name, settings in SIDES.items()}
    try:
        for number in range(rounds + 1):
            found = {WARM: seconds(lambda: ours(parts, next(numbers)))}
            for side, process in started.items():
                target = f"{side.split(',')[1].strip().split()[0]}-{number}"
                create(bootstrap, target)
                with steady.watched(bootstrap, target, PARTITIONS) as growth:
                    found[side] = process.seconds(target)
                if number and (rate := growth.rate()):
                    rates.setdefault(side, []).append(rate)
            if number:
                _add(times, found)
    finally:
        for process in started.values():
            process.end()


def _cold(parts: LiveParts, rounds: int, parallelism: int, times: dict[str, list[float]]) -> None:
    bootstrap = parts.settings.brokers(None)
    for number in range(rounds):
        target, started = f"cold-{number}", time.perf_counter()
        create(bootstrap, target)
        with flink_process.flink(bootstrap, TOPIC, parallelism, flink_process.TUNED) as process:
            flinks = process.seconds(target)
        found = {"Flink, tuned, cold": flinks, "Flink, tuned, process": time.perf_counter() - started}
        started = time.perf_counter()
        found["Onceonly, cold"] = _new_process(parts, 1000 + number)
        _add(times, found | {"Onceonly, process": time.perf_counter() - started})


def _new_process(parts: LiveParts, number: int) -> float:
    """Seconds of a checkpoint in a process and a session of its own, without their start."""
    home, bootstrap = str(parts.settings.home), parts.settings.brokers(None)
    command = [sys.executable, "-m", "benchmarks.once", home, parts.settings.state, parts.settings.spool, bootstrap]
    done = subprocess.run([*command, str(number)], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"the checkpoint failed:\n{done.stderr[-4000:]}")
    return float(done.stdout.split()[-1])


def _add(times: dict[str, list[float]], found: dict[str, float]) -> None:
    for name, took in found.items():
        times.setdefault(name, []).append(took)


def _settings(settings: flink_process.Settings) -> dict[str, str]:
    return {key: value for chosen in settings.values() for key, value in chosen.items()}
