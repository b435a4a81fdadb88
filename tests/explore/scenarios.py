"""What is explored: a list of situations, each with its own bound."""

from __future__ import annotations

from explore import actors as a
from explore.scenario import Scenario, pipeline
from explore.scheduler import Cost

from onceonly.pipeline import DeltaSink, FileSink, KafkaSink, StateSink

LAKE, OTHER, FILES = DeltaSink("a", "a"), DeltaSink("b", "b"), FileSink("f", "f")
TOPIC = KafkaSink(name="k", topic="k")
STATE = StateSink("s", "k INT", ["k"])

ONE, TWO = {"now": pipeline(LAKE)}, {"now": pipeline(LAKE, OTHER)}
ADDED = {"now": pipeline(LAKE, OTHER), "old": pipeline(LAKE)}
GONE = {"now": pipeline(LAKE), "old": pipeline(LAKE, OTHER)}

TASKS = [
    Scenario("run-recover", {"run1": a.run("run1"), "recov": a.recover()}, Cost(2, 1, 0), TWO),
    Scenario("two-runs", {"run1": a.run("run1"), "run2": a.run("run2")}, Cost(2, 0, 0), TWO),
    Scenario("sink-added", {"stage": a.stage(), "run1": a.run("run1")}, Cost(2, 0, 0), ADDED, before=[a.plan("run1", now="old")]),
    Scenario("sink-gone", {"stage": a.stage(), "run1": a.run("run1")}, Cost(1, 1, 0), GONE, before=[a.plan("run1", now="old")]),
]

def published(*owners):
    return [act for owner in owners for act in (a.run(owner), a.arrives(0))]

PEOPLE = [
    Scenario(
        "rewind-give-up",
        {"rewind": a.rewind(1), "person": a.give_up("b", 4)},
        Cost(1, 0, 0),
        TWO,
        before=[*published("x", "y", "z"), a.breaks("b", "refuses")],
        mend=a.breaks("b", None),
        may_lose=["b"],
    ),
    Scenario(
        "give-up-in-flight",
        {"commit": a.commit(), "person": a.one_after_the_other(a.breaks("a", "down"), a.give_up("a"), a.breaks("a", None))},
        Cost(2, 0, 0),
        ONE,
        before=[a.plan("run1"), a.stage()],
        may_lose=["a"],
    ),
    Scenario(
        "fenced-by-others",
        {"commit": a.commit(), "world": a.breaks("a", "fenced"), "recov": a.recover()},
        Cost(1, 0, 0),
        TWO,
        before=[a.plan("run1"), a.stage()],
        may_lose=["a"],
    ),
]

SCENARIOS = [*TASKS, *PEOPLE]


def by_name(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)
