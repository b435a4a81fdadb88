"""What is explored: a list of situations, each with its own bound."""

from __future__ import annotations

from dataclasses import replace

from explore import actors as a
from explore.lost import LOST
from explore.scenario import SINGLES, SWITCHES, Scenario, pipeline
from explore.scheduler import Act, Cost
from explore.world import minutes
from onceonly.coordinator.reprocess import Reprocess
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink

LAKE, OTHER, FILES = DeltaSink("a", "a"), DeltaSink("b", "b"), FileSink("f", "f")
TOPIC, LATE = KafkaSink(name="k", topic="k"), KafkaSink(name="k", topic="k", mode="late")
ANY_ORDER = KafkaSink(name="k", topic="k", mode="staged", unordered=True)  # else it is late in a pipeline by intervals
POOL = KafkaSink(name="k", topic="k", ids="pool", pool_size=2)
UNORDERED = KafkaSink(name="k", topic="k", mode="staged", unordered=True, ids="pool", pool_size=2)
STATE = StateSink("s", "k INT", ["k"])
ASKED, HELD = Gate(min_rows={"a": 1}), Gate(min_rows={"a": 1}, on_fail="hold")
FIRST, SECOND, THIRD = minutes(0, 10), minutes(10, 20), minutes(20, 30)

ONE, TWO = {"now": pipeline(LAKE)}, {"now": pipeline(LAKE, OTHER)}
THREE = {"now": pipeline(LAKE, FILES, TOPIC)}
ADDED = {"now": pipeline(LAKE, OTHER), "old": pipeline(LAKE)}
GONE = {"now": pipeline(LAKE), "old": pipeline(LAKE, OTHER)}
RENAMED = {"now": pipeline(LAKE), "renamed": replace(pipeline(LAKE), name="q")}
BY_INTERVAL = {"now": pipeline(LAKE, FILES, mode="interval")}


def committed(*owners: str) -> list[Act]:
    """One checkpoint after the other, each of which has a record; then another record."""
    return [act for owner in owners for act in (a.run(owner), a.arrives(0))]


def staged(*intervals) -> list[Act]:
    """Several checkpoints of a pipeline by intervals, each staged and not decided."""
    steps = [(a.plan(f"run{n}", each, alive=a.everybody), a.stage(n)) for n, each in enumerate(intervals, 1)]
    return [act for pair in steps for act in pair]


PLANNED = [a.plan("run1")]
STAGED = [a.plan("run1"), a.stage()]
DECIDED = [*STAGED, a.decides()]
HELD_UP = [*STAGED, a.try_(a.gate())]  # its gate has failed it, and holds it

# epoch 2 was decided first, and its transaction is in doubt
SECOND_IN_DOUBT = [*staged(FIRST, SECOND), a.decides(2), a.times_out("k", 2), a.forgets("k"), a.try_(a.commit(2))]

TASKS = [
    Scenario("run-recover", {"run1": a.run("run1"), "recov": a.recover()}, TWO),
    Scenario("two-runs", {"run1": a.run("run1"), "run2": a.run("run2")}, TWO),
    Scenario("same-run-twice", {"try1": a.run("run1"), "try2": a.run("run1")}, ONE),
    Scenario(
        "stage-twice",
        {"try1": a.stage(owner="run1"), "try2": a.stage(owner="run1"), "recov": a.recover()},
        TWO,
        before=PLANNED,
    ),
    Scenario("three-sinks", {"run1": a.run("run1"), "recov": a.recover()}, THREE),
    Scenario("commit-twice", {"one": a.commit(), "two": a.commit()}, THREE, before=STAGED),
    Scenario("abort-commit", {"commit": a.commit(), "abort": a.abort(), "recov": a.recover()}, TWO, before=STAGED),
    Scenario("abort-stage", {"stage": a.stage(), "abort": a.abort(), "run2": a.run("run2")}, ONE, before=PLANNED),
    Scenario("abort-abort", {"one": a.abort(), "two": a.abort(), "run2": a.run("run2")}, ONE, before=STAGED),
    Scenario("sweep-stage", {"stage": a.stage(), "sweep": a.sweep, "run2": a.run("run2")}, ONE, before=PLANNED),
    Scenario("sweep-aborted", {"sweep": a.sweep, "run2": a.run("run2")}, ONE, before=[*STAGED, a.abort()]),
    Scenario("sweep-commit", {"sweep": a.sweep, "run1": a.run("run1")}, THREE),
    Scenario("sink-added", {"stage": a.stage(), "run1": a.run("run1")}, ADDED, before=[a.plan("run1", now="old")]),
    Scenario("sink-gone", {"stage": a.stage(), "run1": a.run("run1")}, GONE, before=[a.plan("run1", now="old")]),
    Scenario(
        "sink-gone-goes-on",
        {"stage": a.stage(), "run": a.one_after_the_other(a.run("run1"), a.arrives(0), a.run("run2"))},
        GONE,
        SINGLES,
        before=[a.plan("run1", now="old")],
    ),
    Scenario("stage-fails", {"stage": a.tidy_stage()}, TWO, SINGLES, before=PLANNED),
    Scenario(
        "stage-fenced", {"stage": a.tidy_stage(owner="run1"), "run2": a.run("run2")}, TWO, SWITCHES, before=PLANNED
    ),
    Scenario(
        "aborted-again",
        {"one": a.abort(), "two": a.one_after_the_other(a.abort(), a.plan("run2"), a.stage(), a.abort())},
        ONE,
        before=STAGED,
    ),
    Scenario(
        "queued",
        {"queued": a.stage_later(owner="run1"), "run1": a.run("run1")},
        TWO,
        before=PLANNED,
    ),
    Scenario(
        "polite-runs",
        {"run1": a.run("run1", alive=a.everybody, now="old"), "run2": a.run("run2", alive=a.everybody)},
        ADDED,
    ),
    Scenario(
        "records-arrive",
        {"run1": a.run("run1"), "run2": a.run("run2"), "world": a.arrives(5)},
        ONE,
        moving=True,
    ),
]

ORDER = [
    Scenario(
        "two-decisions",
        {"one": a.commit(1), "two": a.commit(2)},
        BY_INTERVAL,
        records=(1, 11),
        before=staged(FIRST, SECOND),
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "two-columns",
        {"one": a.commit(1), "two": a.commit(2)},
        BY_INTERVAL,
        records=(1, 11),
        before=[a.evolves("a"), *staged(FIRST, SECOND)],
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "doubt-holds-up",
        {"commit": a.commit(1), "person": a.resolve_doubt("k", 2)},
        {"now": pipeline(LAKE, ANY_ORDER, mode="interval")},
        records=(1, 11),
        before=SECOND_IN_DOUBT,
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "intervals",
        {"run1": a.run("run1", FIRST), "run2": a.run("run2", SECOND)},
        BY_INTERVAL,
        records=(1, 11, 2, 12),
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "late-records",
        {"run1": a.run("run1", minutes(0, 5)), "run2": a.run("run2", minutes(20, 30))},
        BY_INTERVAL,
        SINGLES,
        records=(1, 2),
        before=[a.run("run0", SECOND), a.arrives(3, 6)],
        intervals=(minutes(0, 5), minutes(5, 10), SECOND, minutes(20, 30)),
    ),
    Scenario(
        "same-interval",
        {"run1": a.run("run1", FIRST), "run2": a.run("run2", FIRST)},
        BY_INTERVAL,
        records=(1, 2),
        intervals=(FIRST,),
    ),
    Scenario(
        "reprocess-twice",
        {"try1": a.run("run2", FIRST, again="r"), "try2": a.run("run2", FIRST, again="r")},
        BY_INTERVAL,
        before=[a.run("run1", FIRST)],
        intervals=(FIRST,),
    ),
    Scenario(
        "reprocess",
        {"run2": a.run("run2", FIRST, again="r"), "recov": a.recover()},
        BY_INTERVAL,
        before=[a.run("run1", FIRST)],
        intervals=(FIRST,),
    ),
    Scenario(
        "state",
        {"run1": a.run("run1"), "run2": a.run("run2")},
        {"now": pipeline(LAKE, STATE)},
        before=committed("run0"),
    ),
    Scenario(
        "state-recover",
        {"run1": a.run("run1"), "recov": a.recover()},
        {"now": pipeline(LAKE, STATE)},
        before=committed("run0"),
    ),
    Scenario("rewind-run", {"rewind": a.rewind(1), "run": a.run("run3")}, TWO, before=committed("x", "y")),
    Scenario(
        "rewind-staged-again",
        {
            "rewind": a.one_after_the_other(a.rewind(1), a.run("run4")),
            "stage": a.one_after_the_other(a.stage(3, "run3"), a.commit(3)),
        },
        TWO,
        SINGLES,
        before=[*committed("x", "y"), a.plan("run3"), a.abort(3)],
    ),
    Scenario(
        "rewind-recover",
        {"rewind": a.rewind(1), "recov": a.recover()},
        {"now": pipeline(LAKE, FILES, STATE)},
        before=committed("x", "y"),
    ),
]

KAFKA = [
    Scenario(
        "time-out",
        {"run1": a.run("run1"), "world": a.times_out("k"), "recov": a.recover()},
        {"now": pipeline(TOPIC)},
    ),
    Scenario(
        "two-write-again",
        {"one": a.commit(), "two": a.commit()},
        {"now": pipeline(TOPIC)},
        before=[*STAGED, a.times_out("k")],
    ),
    Scenario(
        "late", {"one": a.commit(), "two": a.commit(), "recov": a.recover()}, {"now": pipeline(LATE)}, before=STAGED
    ),
    Scenario("late-dies", {"one": a.commit(), "recov": a.recover()}, {"now": pipeline(LATE)}, before=STAGED),
    Scenario(
        "doubt-twice",
        {"one": a.resolve_doubt("k"), "two": a.resolve_doubt("k")},
        {"now": pipeline(TOPIC)},
        before=[*STAGED, a.times_out("k"), a.forgets("k"), a.try_(a.commit())],
    ),
    Scenario(
        "doubt-ends",
        {"commit": a.commit(), "world": a.remembers("k"), "person": a.resolve_doubt("k")},
        {"now": pipeline(TOPIC)},
        before=[*STAGED, a.times_out("k"), a.forgets("k"), a.try_(a.commit())],
    ),
    Scenario(
        "doubt",
        {"commit": a.commit(), "world": a.forgets("k"), "person": a.resolve_doubt("k")},
        {"now": pipeline(TOPIC)},
        before=STAGED,
    ),
    Scenario("pool", {"run1": a.run("run1"), "run2": a.run("run2")}, {"now": pipeline(POOL)}),
    Scenario(
        "pool-sweep",
        {"stage": a.stage(), "sweep": a.sweep, "run2": a.run("run2")},
        {"now": pipeline(POOL)},
        before=PLANNED,
    ),
    Scenario(
        "pool-intervals",
        {"run1": a.run("run1", FIRST, alive=a.everybody), "run2": a.run("run2", SECOND, alive=a.everybody)},
        {"now": pipeline(UNORDERED, mode="interval")},
        records=(1, 11),
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "pool-kept",
        {"commit": a.commit(), "sweep": a.sweep},
        {"now": pipeline(POOL)},
        before=STAGED,
    ),
    Scenario(
        "pool-time-out",
        {"commit": a.commit(), "recov": a.recover(), "world": a.times_out("k")},
        {"now": pipeline(POOL)},
        before=STAGED,
    ),
]

GATE = [
    Scenario(
        "gate-passes",
        {"run1": a.run("run1"), "recov": a.recover()},
        {"now": pipeline(LAKE, gate=ASKED)},
    ),
    Scenario(
        "gate-fails",
        {"run1": a.run("run1"), "recov": a.recover(), "run2": a.run("run2")},
        {"now": pipeline(LAKE, gate=ASKED)},
        verdicts=("failed", "passed"),
    ),
    Scenario(
        "commit-ungated",
        {"run1": a.run("run1"), "commit": a.commit()},
        {"now": pipeline(LAKE, gate=ASKED)},
        verdicts=("failed", "passed"),
    ),
    Scenario(
        "two-verdicts",
        {"one": a.settle(), "two": a.settle()},
        {"now": pipeline(LAKE, gate=ASKED)},
        verdicts=("failed", "passed"),
        before=STAGED,
    ),
    Scenario(
        "held",
        {"run1": a.run("run1"), "approve": a.approve(), "abort": a.abort(who="me")},
        {"now": pipeline(LAKE, gate=HELD)},
        verdicts=("failed", "passed"),
    ),
    Scenario(
        "staged-again-behind",
        {"commit": a.commit(2), "other": a.one_after_the_other(a.abort(2), a.stage(2))},
        {"now": pipeline(LAKE, gate=ASKED, mode="interval")},
        records=(1, 11),
        before=[*staged(FIRST, SECOND), a.gate(1), a.gate(2), a.decides(1)],
        intervals=(FIRST, SECOND),
    ),
    Scenario(
        "staged-again",
        {"gate": a.settle(), "abort": a.abort(), "run2": a.run("run2")},
        {"now": pipeline(LAKE, gate=ASKED)},
        verdicts=("passed", "failed", "passed"),
        before=STAGED,
    ),
]

PEOPLE = [
    Scenario(
        "rewind-give-up",
        {"recov": a.recover(), "person": a.give_up("b", 4)},
        TWO,
        before=[
            *committed("x", "y", "z"),
            a.dies_after(a.rewind(1), "records 'rewound'"),
            a.breaks("b", "refuses"),
        ],
        mend=a.breaks("b", None),
        may_lose=[("b", 4)],
    ),
    Scenario(
        "give-up-in-flight",
        {
            "commit": a.commit(),
            "person": a.one_after_the_other(a.breaks("a", "down"), a.give_up("a"), a.breaks("a", None), a.give_up("a")),
        },
        TWO,
        before=STAGED,
        mend=a.breaks("a", None),
        may_lose=[("a", 1)],
    ),
    Scenario(
        "give-up-both",
        {"one": a.give_up("a"), "two": a.give_up("b")},
        TWO,
        before=[*DECIDED, a.breaks("a", "refuses"), a.breaks("b", "refuses")],
        mend=a.one_after_the_other(a.breaks("a", None), a.breaks("b", None)),
        may_lose=[("a", 1), ("b", 1)],
    ),
    Scenario(
        "give-up-fails",
        {"person": a.give_up("a"), "recov": a.recover()},
        TWO,
        before=DECIDED,
        may_lose=[("a", 1)],
    ),
    Scenario(
        "give-up-fails-late",
        {"commit": a.commit(), "person": a.give_up("k")},
        {"now": pipeline(LATE)},
        Cost(2, 0, 1, any=3),
        before=DECIDED,
        may_lose=[("k", 1)],
    ),
    Scenario(
        "give-up-files",
        {
            "commit": a.commit(),
            "person": a.one_after_the_other(a.breaks("f", "down"), a.give_up("f"), a.breaks("f", None), a.give_up("f")),
        },
        {"now": pipeline(FILES)},
        before=STAGED,
        mend=a.breaks("f", None),
        may_lose=[("f", 1)],
    ),
    Scenario(
        "give-up-late",
        {
            "commit": a.commit(),
            "person": a.one_after_the_other(a.breaks("k", "refuses"), a.give_up("k"), a.breaks("k", None)),
        },
        {"now": pipeline(LATE)},
        before=STAGED,
        mend=a.breaks_unless_decided("k", None),
        may_lose=[("k", 1)],
    ),
    Scenario(
        "give-up-topic",
        {
            "commit": a.commit(),
            "person": a.one_after_the_other(a.breaks("k", "refuses"), a.give_up("k"), a.breaks("k", None)),
        },
        {"now": pipeline(TOPIC)},
        before=STAGED,
        mend=a.breaks_unless_decided("k", None),
        may_lose=[("k", 1)],
    ),
    Scenario(
        "give-up-second",
        {"commit": a.commit(1), "person": a.give_up("k", 1)},
        {"now": pipeline(LAKE, ANY_ORDER, mode="interval")},
        records=(1, 11),
        before=[*SECOND_IN_DOUBT, a.decides(1)],
        intervals=(FIRST, SECOND),
        may_lose=[("k", 1)],
    ),
    Scenario(
        "give-up-available",
        {"person": a.give_up("k", 1)},
        {"now": pipeline(LAKE, ANY_ORDER, mode="interval")},
        SINGLES,
        records=(1, 11),
        before=[*SECOND_IN_DOUBT, a.decides(1), a.remembers("k")],
        intervals=(FIRST, SECOND),
        may_lose=[("k", 1)],
        calm=True,
    ),
    Scenario(
        "give-up-gone",
        {"commit": a.commit(), "person": a.one_after_the_other(a.breaks("a", "down"), a.give_up("a", gone=True))},
        TWO,
        before=DECIDED,
        mend=a.breaks("a", None),
        may_lose=[("a", 1)],
    ),
    Scenario(
        "give-up-reprocessed",
        {"recov": a.recover(), "person": a.give_up("a", 2), "run3": a.run("run3", FIRST, again="s")},
        BY_INTERVAL,
        before=[
            a.run("run1", FIRST),
            a.plan("run2", FIRST, again="r"),
            a.stage(2),
            a.decides(2),
            a.breaks("a", "refuses"),
        ],
        intervals=(FIRST,),
        mend=a.breaks("a", None),
        may_lose=[("a", 2)],
    ),
    Scenario("skip-staged", {"skip": a.skip(1), "run1": a.run("run1"), "recov": a.recover()}, ONE, before=STAGED),
    Scenario(
        "skip-aborted",
        {"skip": a.skip(3), "stage": a.stage(owner="run1"), "run2": a.run("run2")},
        ONE,
        before=[*STAGED, a.abort(), a.arrives(0, 0)],
    ),
    Scenario(
        "skip-twice",
        {"one": a.skip(1), "two": a.skip(2), "run1": a.run("run1")},
        ONE,
        before=[a.run("run0"), a.arrives(0, 0, 0)],
    ),
    Scenario("skip-both", {"one": a.skip(3), "two": a.skip(4)}, ONE, before=[a.run("run0"), a.arrives(0, 0, 0)]),
    Scenario(
        "fenced-by-others",
        {"commit": a.commit(), "world": a.breaks("a", "fenced"), "recov": a.recover()},
        TWO,
        before=STAGED,
        mend=a.breaks_unless_decided("a", None),
        may_lose=[("a", 1)],
    ),
    Scenario(
        "approval-ends",
        {"commit": a.commit(), "recov": a.recover()},
        {"now": pipeline(LAKE, gate=HELD)},
        verdicts=("failed", "failed", "passed"),
        before=[
            *HELD_UP,
            a.approve(commits=False),
            a.abort(who="me"),
            a.plan("run2"),
            a.stage(),
            a.try_(a.gate()),
        ],
    ),
    Scenario(
        "approves-another",
        {"approve": a.approve(), "gate": a.settle()},
        {"now": pipeline(LAKE, gate=HELD)},
        verdicts=("failed", "passed"),
        before=[*HELD_UP, a.abort(who="me"), a.plan("run1"), a.stage()],
    ),
    Scenario(
        "approves-too-late",
        {"person": a.approve(), "other": a.one_after_the_other(a.abort(who="you"), a.run("run2"))},
        {"now": pipeline(LAKE, gate=HELD)},
        verdicts=("failed", "failed", "passed"),
        before=HELD_UP,
    ),
]

RECOVERY = [
    Scenario("commit-alone", {"commit": a.commit()}, THREE, before=STAGED, calm=True),
    Scenario("recover-alive", {"run1": a.run("run1"), "recov": a.recover(a.everybody)}, TWO),
    Scenario(
        "recover-taken-over",
        {
            "recov": a.recover(a.all_but("run1")),
            "other": a.one_after_the_other(a.abort(who="me"), a.run("run2", alive=a.all_but("run1"))),
        },
        {"now": pipeline(LAKE, gate=ASKED)},
        before=STAGED,
    ),
    Scenario(
        "recover-approved",
        {"person": a.approve(commits=False), "recov": a.recover(a.everybody)},
        {"now": pipeline(LAKE, gate=HELD)},
        verdicts=("failed", "passed"),
        before=HELD_UP,
    ),
    Scenario("renamed", {"run1": a.run("run1"), "other": a.run("run2", now="renamed")}, RENAMED, before=committed("x")),
]

HAS_COPY = [a.run("x"), a.copied("a"), a.arrives(0), a.run("y"), a.arrives(0)]
HAS_NOTHING = [a.run("x"), a.arrives(0), a.has_another("a")]
HAS_OTHER = [a.run("x"), a.arrives(0), a.has_another("a", "other")]
THERE_AND_BACK = a.one_after_the_other(a.swaps("a"), a.swaps("a"))


def unsteady(name: str, actors: dict[str, Act], before: list[Act], **options) -> Scenario:
    """Something happens to the target of sink 'a'; in the end the newest one is there."""
    given = {"pipelines": ONE, "mend": a.brings_back("a"), "steady": False, **options}
    return Scenario(name, actors, before=before, **given)


TARGETS = [
    unsteady("goes-back", {"run1": a.run("run1"), "world": THERE_AND_BACK}, HAS_COPY),
    unsteady("is-not-there", {"run1": a.run("run1"), "world": THERE_AND_BACK}, HAS_NOTHING),
    unsteady("is-another", {"run1": a.run("run1"), "world": THERE_AND_BACK}, HAS_OTHER),
    unsteady("went-back", {"run1": a.run("run1"), "recov": a.recover()}, [*HAS_COPY, a.swaps("a")]),
    unsteady(
        "went-back-planned",
        {"stage": a.stage(3, "run1"), "recov": a.recover(a.everybody)},
        [*HAS_COPY, a.plan("run1"), a.swaps("a")],
    ),
    unsteady(
        "went-back-staged",
        {"commit": a.commit(3), "recov": a.recover()},
        [*HAS_COPY, a.plan("run1"), a.stage(3), a.swaps("a")],
    ),
    unsteady(
        "goes-back-decided",
        {"recov": a.recover(), "world": THERE_AND_BACK},
        [*HAS_COPY, a.plan("run1"), a.stage(3), a.decides(3)],
    ),
    unsteady(
        "went-back-decided",
        {"one": a.recover(), "two": a.commit(2), "world": a.swaps("a")},
        [
            a.run("run1", FIRST),
            a.plan("run2", SECOND, alive=a.everybody),
            a.stage(2),
            a.copied("a"),
            a.run("run3", THIRD, alive=a.everybody),
            a.decides(2),
            a.swaps("a"),
        ],
        pipelines={"now": pipeline(LAKE, mode="interval")},
        bound=SWITCHES,
        records=(1, 11, 21),
        intervals=(FIRST, SECOND, THIRD),
    ),
    unsteady(
        "goes-back-one-of-two",
        {"run1": a.run("run1"), "world": a.swaps("a")},
        HAS_COPY,
        pipelines=TWO,
    ),
    unsteady(
        "folder-goes-back",
        {"run1": a.run("run1"), "world": a.one_after_the_other(a.swaps("f"), a.swaps("f"))},
        [a.run("x"), a.copied("f"), a.arrives(0), a.run("y"), a.arrives(0)],
        pipelines={"now": pipeline(FILES)},
        mend=a.brings_back("f"),
    ),
    unsteady(
        "loss-accepted",
        {"person": a.accept_loss("a"), "run1": a.run("run1")},
        [*HAS_COPY, a.swaps("a")],
        mend=lambda world: None,
        may_go_back=["a"],
    ),
    unsteady(
        "loss-accepted-twice",
        {"one": a.accept_loss("a"), "two": a.accept_loss("a")},
        [*HAS_COPY, a.swaps("a")],
        mend=lambda world: None,
        may_go_back=["a"],
    ),
    unsteady(
        "loss-returns",
        {"run1": a.run("run1"), "world": a.swaps("a")},
        [*HAS_COPY, a.swaps("a"), a.accept_loss("a")],
        mend=lambda world: None,
        may_go_back=["a"],
        may_lose=[("a", 3)],
    ),
    unsteady(
        "loss-returns-staged",
        {"commit": a.commit(3), "recov": a.recover(), "world": a.swaps("a")},
        [*HAS_COPY, a.swaps("a"), a.accept_loss("a"), a.plan("run1"), a.stage(3)],
        mend=lambda world: None,
        may_go_back=["a"],
        may_lose=[("a", 3)],
    ),
    unsteady(
        "loss-found",
        {"person": a.accept_loss("a"), "world": a.swaps("a")},
        [*HAS_COPY, a.swaps("a")],
        mend=lambda world: None,
        may_go_back=["a"],
    ),
]

HAS_LOST_DECIDED = [*HAS_COPY, a.plan("run1"), a.stage(3), a.decides(3), a.swaps("a")]
HAS_LOST = {"mend": lambda world: None, "may_go_back": ["a"]}  # for good

TARGETS += [
    unsteady(
        "state-goes-back",
        {"run1": a.run("run1"), "world": a.one_after_the_other(a.swaps("s"), a.swaps("s"))},
        [a.run("x"), a.copied("s"), a.arrives(0), a.run("y"), a.arrives(0)],
        pipelines={"now": pipeline(STATE)},
        mend=a.brings_back("s"),
    ),
    unsteady("rewind-goes-back", {"rewind": a.rewind(1), "world": THERE_AND_BACK}, HAS_COPY),
    unsteady(
        "reprocess-goes-back",
        {"run3": a.run("run3", FIRST, again="r"), "world": THERE_AND_BACK},
        [a.run("run1", FIRST), a.copied("a"), a.run("run2", SECOND)],
        pipelines={"now": pipeline(LAKE, mode="interval")},
        records=(1, 11),
        intervals=(FIRST, SECOND),
    ),
    unsteady(
        "loss-accepted-rehearsed",
        {"commit": a.commit(3), "person": a.one_after_the_other(a.swaps("a"), a.accept_loss("a"))},
        [*HAS_COPY, a.plan("run1"), a.stage(3)],
        may_lose=[("a", 3)],
        **HAS_LOST,
    ),
    unsteady(
        "loss-accepted-decided",
        {
            "person": a.one_after_the_other(a.accept_loss("a"), a.give_up("a", 3), a.accept_loss("a")),
            "recov": a.recover(),
        },
        HAS_LOST_DECIDED,
        may_lose=[("a", 3)],
        **HAS_LOST,
    ),
    unsteady(
        "loss-half-accepted",
        {"world": a.swaps("a"), "recov": a.recover()},
        [*HAS_LOST_DECIDED, a.try_(a.accept_loss("a"))],  # which waits for the decision
        may_lose=[("a", 3)],
        **HAS_LOST,
    ),
    unsteady(
        "absence-accepted",
        {"person": a.accept_loss("a"), "run1": a.run("run1"), "world": a.swaps("a")},
        [*HAS_NOTHING, a.swaps("a")],
        bound=SWITCHES,
        may_lose=[("a", 2)],
        **HAS_LOST,
    ),
    unsteady(
        "give-up-went-back", {"person": a.give_up("a", 3), "recov": a.recover()}, HAS_LOST_DECIDED, may_lose=[("a", 3)]
    ),
]

STAGED_AGAIN = [
    Scenario(
        "damaged-each-time",
        {"run1": a.run("run1"), "recov": a.recover()},
        ONE,
        SINGLES,
        before=[a.breaks("a", "damages")],
        mend=a.breaks("a", None),
    ),
    Scenario("staged-lost", {"run1": a.run("run1"), "world": a.loses_staged("a"), "recov": a.recover()}, ONE),
]

KEEPING = Reprocess("ann: rates", keep=("k",), who="ann", reason="rates")
ONCE_MORE = Reprocess("ann: rates", again=("k",), who="ann", reason="rates")
COMPLETING = Reprocess("ann: past", only=("f",), who="ann", reason="past")
LAKE_AND_TOPIC = {"now": pipeline(LAKE, LATE, mode="interval")}
WITH_FILES = {"now": pipeline(LAKE, FILES, mode="interval"), "old": pipeline(LAKE, mode="interval")}
CHAIN_WITH_FILES = {"now": pipeline(LAKE, FILES), "old": pipeline(LAKE)}


DAYS = DeltaSink("d", "days", partition_by=["day"], replace="partitions")
WITH_DAYS = {"now": pipeline(LAKE, DAYS, mode="interval"), "old": pipeline(LAKE, mode="interval")}
PAST_OF_DAYS = Reprocess("ann: past", only=("d",), who="ann", reason="past")

PAST_OF_FILES = Reprocess("ann", only=("f",), who="ann", reason="past")
PAST_OF_TOPIC = Reprocess("ann: past", only=("k",), again=("k",), who="ann", reason="past")
PAST_OF_TWO = Reprocess("bob", only=("f", "b"), who="bob", reason="past")
PAST_OF_BOTH = Reprocess("bob", 1, only=("f", "b"), who="bob", reason="past")


def past_of(epoch: int) -> Reprocess:
    return Reprocess(f"ann: {epoch}", epoch, only=("f",), who="ann", reason="past")


def repairing(name: str, actors: dict[str, Act], **options) -> Scenario:
    """The first interval, or the first two checkpoints, are published; then some sinks get records once more."""
    given = {
        "pipelines": LAKE_AND_TOPIC,
        "before": [a.run("run1", FIRST)],
        "bound": SINGLES,
        "records": (0, 1, 11),
        "intervals": (FIRST, SECOND),
        **options,
    }
    return Scenario(name, actors, **given)


REPAIRS = [
    repairing(
        "repair-twice", {"try1": a.run("run2", FIRST, again=KEEPING), "try2": a.run("run2", FIRST, again=KEEPING)}
    ),
    repairing(
        "repair-once-more",
        {"try1": a.run("run2", FIRST, again=ONCE_MORE), "try2": a.run("run2", FIRST, again=ONCE_MORE)},
    ),
    repairing(
        "repair-two-people", {"ann": a.run("ann", FIRST, again=KEEPING), "bob": a.run("bob", FIRST, again=ONCE_MORE)}
    ),
    repairing(
        "repair-unclear",
        {"ann": a.run("ann", FIRST, again=KEEPING), "bob": a.run("bob", FIRST, again=replace(COMPLETING, only=("a",)))},
        before=[
            a.plan("run1", FIRST),
            a.stage(1),
            a.dies_after(a.commit(1), "a: publishes decision 1"),
            a.breaks("a", "down"),
            a.give_up("a", 1, gone=True),
            a.breaks("a", None),
        ],
        may_lose=[("a", 1)],
    ),
    repairing("repair-recover", {"run2": a.run("run2", FIRST, again=KEEPING), "recov": a.recover()}),
    repairing("repair-live", {"ann": a.run("ann", FIRST, again=KEEPING), "run2": a.run("run2", SECOND)}),
    repairing(
        "repair-again-live",
        {"ann": a.run("ann", FIRST, again=ONCE_MORE), "run2": a.run("run2", SECOND), "recov": a.recover()},
    ),
    repairing(
        "reprocess-after-repair",
        {"ann": a.run("ann", FIRST, again=replace(KEEPING, keep=("f",))), "bob": a.run("bob", FIRST, again="all")},
        pipelines={"now": pipeline(LAKE, FILES, mode="interval")},
    ),
    repairing(
        "new-sink-past",
        {"ann": a.run("ann", FIRST, again=COMPLETING), "bob": a.run("bob", SECOND, again=COMPLETING)},
        pipelines=WITH_FILES,
        before=[a.run("run1", FIRST, now="old"), a.run("run2", SECOND, now="old")],
    ),
    repairing(
        "new-sink-past-twice",
        {
            "ann": a.run("ann", FIRST, again=COMPLETING),
            "bob": a.run("bob", FIRST, again=COMPLETING),
            "recov": a.recover(),
        },
        pipelines=WITH_FILES,
        before=[a.run("run1", FIRST, now="old")],
    ),
    repairing(
        "chain-past-live",
        {"ann": a.run("ann", again=past_of(1)), "run3": a.run("run3")},
        pipelines=CHAIN_WITH_FILES,
        before=[a.run("x", now="old"), a.arrives(0)],
        intervals=(),
    ),
    repairing(
        "chain-past-aborted",
        {"stage": a.stage(2), "ann": a.run("ann", again=past_of(1))},
        pipelines={"now": pipeline(LAKE, FILES, OTHER), "old": pipeline(LAKE)},
        before=[a.run("x", now="old"), a.plan("bob", again=PAST_OF_BOTH), a.abort(2)],
        intervals=(),
    ),
    repairing(
        "chain-past-rewind",
        {"ann": a.run("ann", again=past_of(2)), "rewind": a.rewind(1)},
        pipelines=CHAIN_WITH_FILES,
        before=[a.run("x", now="old"), a.arrives(0), a.run("y", now="old"), a.run("ann0", again=past_of(1))],
        intervals=(),
    ),
    repairing(
        "repairs-aborted",
        {
            "ann": a.run("ann", FIRST, again=PAST_OF_FILES),
            "bob": a.one_after_the_other(a.stage(3, "bob"), a.commit(3), a.run("bob", FIRST, again=PAST_OF_TWO)),
        },
        pipelines={"now": pipeline(LAKE, FILES, OTHER, mode="interval"), "old": pipeline(LAKE, mode="interval")},
        before=[
            a.run("run1", FIRST, now="old"),
            a.plan("ann", FIRST, again=PAST_OF_FILES),
            a.abort(2),
            a.plan("bob", FIRST, again=PAST_OF_TWO),
            a.abort(3),
        ],
    ),
    repairing(
        "chain-past-rewound",
        {"ann": a.one_after_the_other(a.stage(3, "ann"), a.commit(3)), "rewind": a.rewind(1)},
        pipelines=CHAIN_WITH_FILES,
        before=[
            a.run("x", now="old"),
            a.arrives(0),
            a.run("y", now="old"),
            a.plan("ann", again=past_of(2)),
            a.abort(3),
        ],
        intervals=(),
    ),
    repairing(
        "chain-again-live",
        {"ann": a.run("ann", again=replace(ONCE_MORE, epoch=1)), "run3": a.run("run3")},
        pipelines={"now": pipeline(LATE)},
        before=[a.run("x"), a.arrives(0), a.run("y"), a.arrives(0)],
        intervals=(),
    ),
    repairing(
        "chain-past-state",
        {"ann": a.run("ann", again=past_of(1)), "run3": a.run("run3"), "recov": a.recover()},
        pipelines={"now": pipeline(LAKE, FILES, STATE), "old": pipeline(LAKE, STATE)},
        before=[a.run("x", now="old"), a.arrives(0), a.run("y", now="old"), a.arrives(0)],
        intervals=(),
    ),
    repairing(
        "chain-lost",
        {"ann": a.run("ann", again=replace(past_of(2), only=("a",))), "run3": a.run("run3"), "recov": a.recover()},
        pipelines=ONE,
        before=[*HAS_COPY, a.swaps("a"), a.accept_loss("a")],
        intervals=(),
        steady=False,
        may_lose=[("a", 3), ("a", 4)],
        **HAS_LOST,
    ),
    repairing(
        "repair-held",
        {"ann": a.run("ann", FIRST, again=KEEPING), "approve": a.approve(2), "abort": a.abort(2, who="me")},
        pipelines={"now": pipeline(LAKE, LATE, mode="interval", gate=HELD)},
        verdicts=("passed", "failed", "passed"),
    ),
    repairing(
        "repair-given-up",
        {"commit": a.commit(2), "person": a.give_up("a", 2), "bob": a.run("bob", FIRST, again="all")},
        pipelines={"now": pipeline(LAKE, FILES, mode="interval")},
        before=[
            a.run("run1", FIRST),
            a.plan("ann", FIRST, again=replace(KEEPING, keep=("f",))),
            a.stage(2),
            a.decides(2),
            a.breaks("a", "refuses"),
        ],
        mend=a.breaks("a", None),
        may_lose=[("a", 2)],
    ),
    repairing(
        "given-up-completed",
        {
            "ann": a.run("ann", FIRST, again=replace(COMPLETING, only=("a", "f"))),
            "bob": a.run("bob", FIRST, again=replace(COMPLETING, request="bob", only=("a",))),
        },
        pipelines={"now": pipeline(LAKE, FILES, mode="interval")},
        before=[
            a.plan("run1", FIRST),
            a.stage(),
            a.decides(),
            a.breaks("a", "refuses"),
            a.give_up("a"),
            a.breaks("a", None),
        ],
        may_lose=[("a", 1)],
    ),
    repairing(
        "repair-pool",
        {"ann": a.run("ann", FIRST, again=ONCE_MORE), "run2": a.run("run2", SECOND, alive=a.everybody)},
        pipelines={"now": pipeline(LAKE, UNORDERED, mode="interval")},
    ),
    repairing(
        "repair-three-sinks",
        {
            "ann": a.run("ann", FIRST, again=replace(ONCE_MORE, keep=("f",))),
            "bob": a.run("bob", FIRST, again=replace(KEEPING, request="bob")),
            "recov": a.recover(),
        },
        pipelines={"now": pipeline(LAKE, FILES, LATE, mode="interval")},
    ),
    repairing(
        "rewind-unclear",
        {"person": a.rewind(1), "recov": a.recover()},
        pipelines=ONE,
        before=[
            a.run("x"),
            a.arrives(0),
            a.plan("y"),
            a.stage(2),
            a.dies_after(a.commit(2), "a: publishes decision 2"),
            a.breaks("a", "down"),
            a.give_up("a", 2, gone=True),
            a.breaks("a", None),
        ],
        intervals=(),
        may_lose=[("a", 2)],
    ),
    repairing(
        "repair-other-wish",
        {
            "one": a.run("run2", FIRST, again=replace(KEEPING, keep=("f", "k"))),
            "two": a.run("run3", FIRST, again=KEEPING),
        },
        pipelines={"now": pipeline(LAKE, FILES, LATE, mode="interval")},
    ),
    repairing(
        "repair-unnamed",
        {"ann": a.run("ann", FIRST, again="all"), "run2": a.run("run2", SECOND)},
    ),
    repairing(
        "new-topic-past-twice",
        {"try1": a.run("ann", FIRST, again=PAST_OF_TOPIC), "try2": a.run("bob", FIRST, again=PAST_OF_TOPIC)},
        pipelines={"now": pipeline(LAKE, LATE, mode="interval"), "old": pipeline(LAKE, mode="interval")},
        before=[a.run("run1", FIRST, now="old")],
    ),
    repairing(
        "past-of-nothing",
        {"ann": a.run("ann", FIRST, again=PAST_OF_FILES), "run1": a.run("run1", FIRST)},
        pipelines={"now": pipeline(LAKE, FILES, mode="interval")},
        before=[],
    ),
    repairing(
        "past-of-aborted",
        {"ann": a.run("ann", FIRST, again=PAST_OF_FILES), "run1": a.run("run1", FIRST)},
        pipelines={"now": pipeline(LAKE, FILES, mode="interval")},
        before=[a.plan("run1", FIRST), a.abort()],
    ),
    repairing(
        "older-day",
        {"ann": a.run("ann", FIRST, again=PAST_OF_DAYS), "run2": a.run("run2", SECOND)},
        pipelines=WITH_DAYS,
        before=[a.run("run1", FIRST, now="old")],
        may_abort=(2, 3),
    ),
    repairing(
        "older-day-run-later",
        {"ann": a.run("ann", FIRST, again=PAST_OF_DAYS), "recov": a.recover()},
        pipelines=WITH_DAYS,
        before=[a.run("run2", SECOND), a.run("run1", FIRST, now="old")],
        may_abort=(3,),
    ),
    repairing(
        "older-epoch",
        {"ann": a.run("ann", again=replace(PAST_OF_DAYS, epoch=1)), "run3": a.run("run3")},
        pipelines={"now": pipeline(LAKE, DAYS), "old": pipeline(LAKE)},
        before=[a.run("x", now="old"), a.arrives(0)],
        intervals=(),
        may_abort=(2, 3),
    ),
    unsteady(
        "repair-goes-back",
        {"run3": a.run("run3", FIRST, again=KEEPING), "world": THERE_AND_BACK},
        [a.run("run1", FIRST), a.copied("a"), a.run("run2", SECOND)],
        pipelines=LAKE_AND_TOPIC,
        bound=SINGLES,
        records=(1, 11),
        intervals=(FIRST, SECOND),
    ),
    unsteady(
        "repair-lost",
        {"ann": a.run("ann", again=replace(past_of(2), only=("a",))), "world": a.swaps("a")},
        [*HAS_COPY, a.swaps("a"), a.accept_loss("a")],
        pipelines={"now": pipeline(LAKE, FILES)},
        may_lose=[("a", 3)],
        **HAS_LOST,
    ),
]

SCENARIOS = [*STAGED_AGAIN, *TASKS, *ORDER, *KAFKA, *GATE, *PEOPLE, *RECOVERY, *TARGETS, *REPAIRS, *LOST]


def by_name(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)
