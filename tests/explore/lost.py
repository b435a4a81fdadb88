"""Targets that went back, and people who have them repaired: in the end every record is in the repaired sink, once."""

from __future__ import annotations

from explore import actors as a
from explore.scenario import SINGLES, Scenario, pipeline
from explore.scheduler import Act, Cost
from explore.world import minutes
from onceonly.coordinator.reprocess import Reprocess
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink

LAKE, FILES, LATE = DeltaSink("a", "a"), FileSink("f", "f"), KafkaSink(name="k", topic="k", mode="late")
LEDGER = DeltaSink("l", "ledger")  # proves its history as a table, and takes nothing back
FIRST, SECOND = minutes(0, 10), minutes(10, 20)
BY_INTERVAL = {"mode": "interval"}


def lost(name: str, actors: dict[str, Act], before: list[Act], sink: str = "a", **options) -> Scenario:
    """What the sink has lost is repaired, now or in the end."""
    sinks = options.pop("sinks", [LEDGER] if sink == "l" else [LAKE, FILES])
    given = {
        "pipelines": {"now": pipeline(*sinks, **options.pop("changes", {}))},
        "bound": SINGLES,
        "steady": False,
        "mend": a.repairs_in_the_end(sink, again=sink in ("l", "k")),
        "may_lose": [(sink, epoch) for epoch in range(1, 8)],
        "may_go_back": [sink],
        "whole": [sink],
        **options,
    }
    return Scenario(name, actors, before=before, **given)


def has_lost(sink: str = "a") -> list[Act]:
    """The last of two checkpoints is lost, and another record has come."""
    return [a.run("x"), a.copied(sink), a.arrives(0), a.run("y"), a.arrives(0), a.swaps(sink)]


HAS_LOST_DECIDED = [*has_lost()[:-1], a.plan("run1"), a.stage(3), a.decides(3), a.swaps("a")]
ANN, BOB = a.repair("a", "ann"), a.repair("a", "bob")
IN_DOUBT = [a.run("x"), a.arrives(0), a.plan("run1"), a.stage(2), a.publishes_and_dies(2, "k"), a.forgets("k")]
WORD = {"sinks": [KafkaSink(name="k", topic="k")], "steady": True, "mend": a.remembers("k"), "whole": []}
BACK_AND_SAID = a.one_after_the_other(a.swaps("l"), a.accept_loss("l"))

LOST = [
    lost("lost-repaired", {"ann": ANN, "world": a.swaps("a")}, has_lost()),
    lost("lost-repaired-twice", {"try1": ANN, "try2": ANN}, has_lost()),
    lost("lost-two-people", {"ann": ANN, "bob": BOB}, has_lost()),
    lost("lost-repaired-live", {"ann": ANN, "run1": a.run("run1"), "recov": a.recover()}, has_lost()),
    lost("lost-accepted-both", {"ann": ANN, "bob": a.accept_loss("a")}, has_lost()),
    lost("lost-decided", {"ann": ANN, "recov": a.recover()}, HAS_LOST_DECIDED),
    lost("lost-decided-returns", {"ann": ANN, "world": a.swaps("a")}, HAS_LOST_DECIDED),
    lost(
        "lost-absent",
        {"ann": ANN, "world": a.swaps("a")},
        [a.run("x"), a.arrives(0), a.has_another("a"), a.swaps("a")],
    ),
    lost(
        "lost-staged-file",
        {"ann": ANN, "recov": a.recover()},
        [a.run("x"), a.arrives(0), a.plan("run1"), a.stage(2), a.decides(2), a.loses_staged_for_good("a")],
    ),
    lost(
        "lost-interval",
        {"ann": ANN, "run3": a.run("run3", SECOND), "world": a.swaps("a")},
        [a.copied("a"), a.run("run1", FIRST), a.swaps("a")],
        sinks=[LAKE, LATE],
        changes=BY_INTERVAL,
        records=(1, 11),
        intervals=(FIRST, SECOND),
    ),
    lost(
        "lost-correction",
        {"ann": ANN, "bob": BOB},
        [a.run("run1", FIRST), a.copied("a"), a.run("run2", FIRST, again="r"), a.swaps("a")],
        changes=BY_INTERVAL,
        records=(1, 2),
        intervals=(FIRST,),
    ),
    lost(
        "lost-ledger",
        {"ann": a.repair("l", "ann", again=True), "bob": a.repair("l", "bob", again=True)},
        has_lost("l"),
        "l",
    ),
    lost(
        "lost-ledger-unnamed",
        {"ann": a.run("ann", again=Reprocess("ann", 2, only=("l",), who="ann", reason="lost")), "world": BACK_AND_SAID},
        [*has_lost("l"), a.accept_loss("l")],
        "l",
    ),
    lost(
        "lost-ledger-returns",
        {"ann": a.repair("l", "ann", again=True), "world": BACK_AND_SAID},
        has_lost("l"),
        "l",
    ),
    lost(
        "lost-ledger-staged",
        {"ann": a.commit(3), "recov": a.recover(), "world": BACK_AND_SAID},
        [*has_lost("l"), a.dies_after(a.repair("l", "ann", again=True), "records 'staged'")],
        "l",
    ),
    lost(
        "lost-half-found",
        {"run1": a.run("run1"), "world": a.one_after_the_other(a.swaps("a"), a.swaps("a"))},
        [*has_lost(), a.accept_loss("a"), a.swaps("a"), a.dies_after(a.accept_loss("a"), "records 'found'")],
    ),
    lost(
        "lost-half-found-staged",
        {"commit": a.commit(3), "world": a.one_after_the_other(a.swaps("a"), a.swaps("a"))},
        [
            *has_lost(),
            a.accept_loss("a"),
            a.plan("run1"),
            a.stage(3),
            a.swaps("a"),
            a.dies_after(a.accept_loss("a"), "records 'found'"),
        ],
    ),
    lost(
        "lost-in-doubt",
        {"ann": a.repair("k", "ann", again=True), "recov": a.recover()},
        IN_DOUBT,
        "k",
        bound=Cost(1, 1, 2, any=2),
        may_lose=[],
        **WORD,
    ),
]
