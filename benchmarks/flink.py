"""Kafka to Kafka exactly once, against Flink: both cold, both warm, and as a user would start them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from statistics import median

from benchmarks import flink_process, steady
from benchmarks.kafka_sink import ours
from benchmarks.peers import OURS
from benchmarks.ratio import seconds
from benchmarks.results import RATIO, Result, Row
from benchmarks.world import PARTITIONS, TOPIC, create, world
from onceonly.runtime.live_services import LiveServices

ROWS = 3_000_000
PARALLELISM = 2  # of what the goal is about: as many as cores
OTHERS = (1, 4)  # tuned, a round each
LARGE = 10_000_000  # rows
WARM_ROUNDS = 2
WARM, STEADY = "Onceonly, warm", "Flink, steady"
FLINK_WARM = "Flink, tuned, warm"
SIDES = {"Flink, default settings, warm": flink_process.DEFAULT, FLINK_WARM: flink_process.TUNED}
Found = dict[str, list[float]]


def flink_large(folder: Path, rows: int = LARGE, rounds: int = 3) -> Result:
    """The two sides of the goal alone, with more rows."""
    flink_process.prepare()
    times, rates = Found(), Found()
    with world(folder, rows, ("ours",)) as parts:
        _warm(parts, rounds, PARALLELISM, {FLINK_WARM: flink_process.TUNED}, count(1), times, rates)
    return Result(
        "Kafka to Kafka, against Flink: more records",
        f"As above, with {rows:,} records.",
        _rows(rows, times, rates),
        settings={"Onceonly": OURS, FLINK_WARM: _settings(flink_process.TUNED)},
        notes=[f"Flink is {flink_process.NAMED}."],
    )


def flink(folder: Path, rows: int = ROWS, rounds: int = 5) -> Result:
    """In turns on one broker; every run of Flink writes into a topic of its own."""
    flink_process.prepare()
    times, rates = Found(), Found()
    with world(folder, rows, ("ours",)) as parts:
        numbers = count(1)
        _warm(parts, rounds, PARALLELISM, SIDES, numbers, times, rates)
        for parallelism in OTHERS:
            named = {f"{FLINK_WARM}, parallelism {parallelism}": flink_process.TUNED}
            _warm(parts, 1, parallelism, named, numbers, times, rates)
        _cold(parts, 1, PARALLELISM, times)
    return Result(
        "Kafka to Kafka, against Flink",
        f"A whole checkpoint of {rows:,} small records (plan, stage, commit, its spool on disk) beside Flink's job "
        f"over the same topic, parallelism {PARALLELISM} unless another is named, a checkpoint every 5 s; ours has as "
        "many tasks at once as there are cores. Warm: a session, a JVM that ran the job before. Cold: new ones, "
        "without their start. Process: from its start to its end. Steady: the rows at Flink's speed after its first "
        "checkpoint, as the broker saw it; no start, no last checkpoint.",
        _rows(rows, times, rates),
        settings={"Onceonly": OURS} | {name: _settings(SIDES[name]) for name in SIDES},
        notes=[f"Flink is {flink_process.NAMED}."],
    )


def _rows(rows: int, times: Found, rates: Found) -> list[Row]:
    measured = {name: Row(name, "s", runs) for name, runs in times.items()}
    pairs = [(name, WARM) for name in measured if name.startswith("Flink") and "warm" in name]
    pairs += [("Flink, tuned, cold", "Onceonly, cold"), ("Flink, tuned, process", "Onceonly, process")]
    pairs += [(WARM, name) for name in SIDES]
    ratios = [_by_medians(measured[one], measured[other]) for one, other in pairs if {one, other} <= measured.keys()]
    if steady_rates := rates.get(FLINK_WARM):
        measured[STEADY] = Row(STEADY, "s", [rows / rate for rate in steady_rates])
        ratios.insert(0, _by_medians(measured[STEADY], measured[WARM]))
    speeds = [
        Row(f"{name}: rows per second after its first checkpoint", "rows/s", runs) for name, runs in rates.items()
    ]
    return [*measured.values(), *ratios, *speeds]


def _by_medians(one: Row, other: Row) -> Row:
    """Not round by round: a round that ended before a second checkpoint shows no steady state."""
    found = median(one.runs) / median(other.runs)
    return Row(f"{one.measure} ÷ {other.measure}", RATIO, [found], of=(one.measure, other.measure))


def _warm(
    parts: LiveServices,
    rounds: int,
    parallelism: int,
    sides: Mapping[str, flink_process.Settings],
    numbers: Iterator[int],
    times: Found,
    rates: Found,
) -> None:
    """The first rounds warm up."""
    bootstrap = parts.settings.brokers(None)
    started = {name: flink_process.Flink(bootstrap, TOPIC, parallelism, chosen) for name, chosen in sides.items()}
    try:
        for number in range(WARM_ROUNDS + rounds):
            found = {WARM: seconds(lambda: ours(parts, next(numbers)))}
            for side, process in started.items():
                target = f"to-{next(numbers)}"
                create(bootstrap, target)
                with steady.watched(bootstrap, target, PARTITIONS) as growth:
                    found[side] = process.seconds(target)
                if number >= WARM_ROUNDS and (rate := growth.rate()):
                    rates.setdefault(side, []).append(rate)
            if number >= WARM_ROUNDS:
                _add(times, found)
    finally:
        for process in started.values():
            process.end()


def _cold(parts: LiveServices, rounds: int, parallelism: int, times: Found) -> None:
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


def _new_process(parts: LiveServices, number: int) -> float:
    """Seconds of a checkpoint in a process and a session of its own, without their start."""
    home, bootstrap = str(parts.settings.home), parts.settings.brokers(None)
    command = [sys.executable, "-m", "benchmarks.once", home, parts.settings.state, parts.settings.spool, bootstrap]
    done = subprocess.run([*command, str(number)], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"the checkpoint failed:\n{done.stderr[-4000:]}")
    return float(done.stdout.split()[-1])


def _add(times: Found, found: dict[str, float]) -> None:
    for name, took in found.items():
        times.setdefault(name, []).append(took)


def _settings(settings: flink_process.Settings) -> dict[str, str]:
    return {key: value for chosen in settings.values() for key, value in chosen.items()}
