"""The faults of a chaos run, drawn from a seed: the same seed and length, the same faults at the same times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

FIRST_AT_SECONDS = 5.0  # the first run should have begun
MIN_GAP_SECONDS, MAX_GAP_SECONDS = 2.0, 8.0  # between two faults


class FaultKind(StrEnum):
    """What is done to the processes, the broker, the disk, the clock and the targets."""

    KILL = "kill"  # SIGKILL of a run, with all its processes
    PAUSE = "pause"  # SIGSTOP of a run; others take its work over, and then it goes on
    RIVALS = "two schedulers"  # a second one starts runs and recoveries of its own beside the first
    BROKER_KILL = "broker kill"  # SIGKILL of the broker, and a restart
    BROKER_PAUSE = "broker pause"  # SIGSTOP of the broker
    LOST_ANSWERS = "lost answers"  # the broker carries requests out, and nobody hears of it
    FULL_DISK = "full disk"
    CLOCK = "clock"  # that of a run is wrong by up to a day
    TARGET_BACK = "target back"  # an older copy of the table lies in its place
    SPARK_KILL = "Spark kill"  # SIGKILL of the Spark server, and a restart
    AIRFLOW_KILL = "Airflow kill"  # SIGKILL of all that Airflow has started, and a restart


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        at: seconds after the beginning.
        seconds: how long it lasts.
        number: whatever else it depends on, between 0 and 1.
    """

    at: float
    kind: FaultKind
    seconds: float
    number: float

    def __str__(self) -> str:
        return f"{self.at:7.1f} s  {self.kind} for {self.seconds:.1f} s"


def make_schedule(seed: int, seconds: float) -> list[Fault]:
    """Draw the faults of a run: every kind once, in random order, then every kind again, until the time is over."""
    chance = Random(f"onceonly chaos {seed}")
    faults, kinds, at = list[Fault](), list[FaultKind](), FIRST_AT_SECONDS
    while at < seconds:
        kinds = kinds or chance.sample(list(FaultKind), len(FaultKind))
        duration = round(chance.uniform(0.5, 6.0), 1)
        faults.append(Fault(round(at, 1), kinds.pop(), duration, round(chance.random(), 3)))
        at += duration + chance.uniform(MIN_GAP_SECONDS, MAX_GAP_SECONDS)
    return faults
