"""What is explored: a list of situations, each with its own bound."""

from __future__ import annotations

from explore import actors as a
from explore.scenario import Scenario, pipeline
from explore.scheduler import Cost

from onceonly.pipeline import DeltaSink, FileSink, KafkaSink, StateSink

LAKE, OTHER, FILES = DeltaSink("a", "a"), DeltaSink("b", "b"), FileSink("f", "f")
TOPIC = KafkaSink(name="k", topic="k")
STATE = StateSink("s", "k INT", ["k"])

TWO = {"now": pipeline(LAKE, OTHER)}

SCENARIOS = [
    Scenario("one run, and recovery", {"run1": a.run("run1"), "recov": a.recover()}, Cost(2, 1, 0), TWO),
    Scenario("two runs", {"run1": a.run("run1"), "run2": a.run("run2")}, Cost(2, 0, 0), TWO),
]


def by_name(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)
