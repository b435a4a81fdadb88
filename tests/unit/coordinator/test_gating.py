"""The gate's verdict: one per attempt, and the decision requires it."""

import json
import threading
from dataclasses import replace

import pytest
from codes import raises
from patience import PATIENCE
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import Event, State
from onceonly.checkpoint.offsets import has_data
from onceonly.coordinator import gate as gating
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Busy, Fenced, GateFailed, InvalidPipeline, NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.gate import Fresh, Gate
from onceonly.pipeline.sinks import DeltaSink, FileSink, KafkaSink, StateSink
from onceonly.pipeline.sources import KafkaSource

ASKS = {"lake": 1}


class Gated(World):
    """A pipeline with a gate that finds what it is told to find."""

    def __init__(self, folder, on_fail="abort", keep_failed=False, **changes) -> None:
        gate = Gate(min_rows=ASKS, on_fail=on_fail, keep_failed=keep_failed)
        super().__init__(folder, gate=gate, **changes)
        self.finds = self.parts.inspector(self.pipeline).find

    def gate(self, epoch=1, by="run-1"):
        return self.coordinator.gate("flights", epoch, by)

    def staged_with(self, *found: str | None) -> None:
        self.plan()
        self.stage()
        self.finds(*found)

    def run_judged(self, owner, interval):
        planned = self.plan(owner, interval)
        self.stage(planned.epoch)
        self.gate(planned.epoch)
        return self.commit(planned.epoch)

    def failed(self) -> None:
        self.staged_with("critical")
        self.gate()

    def leftovers(self) -> list[int]:
        prefix = f"{self.state.id}-flights"
        return [txn.attempt for txn in self.lake.leftovers(f"{prefix}-lake")]


@pytest.fixture
def world(tmp_path) -> Gated:
    return Gated(tmp_path)


@pytest.fixture
def holding(tmp_path) -> Gated:
    return Gated(tmp_path, on_fail="hold")


# ---- the decision


def test_nothing_is_decided_without_a_verdict(world):
    world.staged_with()
    with raises(NotCommitted, "verdict-missing"):
        world.commit()
    assert world.now().state is State.STAGED
    assert values(world.lake) == []


@pytest.mark.parametrize(("found", "outcome"), [(None, "passed"), ("info", "passed"), ("warning", "warning")])
def test_what_passes_or_warns_is_published(world, found, outcome):
    world.staged_with(found)
    assert world.gate().verdict["outcome"] == outcome
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_what_failed_is_not_published(world):
    world.failed()
    with raises(GateFailed, "gate-failed"):
        world.commit()
    assert values(world.lake) == []


def test_a_verdict_does_not_outlive_its_attempt(world):
    world.staged_with(None)
    world.gate()
    world.abort()
    world.stage()
    assert world.now().verdict is None
    with raises(NotCommitted, "verdict-missing"):
        world.commit()
    world.finds("critical")
    assert world.gate().verdict["outcome"] == "failed"


def test_a_verdict_does_not_outlive_a_new_plan(world):
    world.failed()
    world.abort()
    world.plan("run-2")
    assert (world.now().verdict, world.now().handles) == (None, {})


def test_a_pipeline_without_a_gate_needs_no_verdict(tmp_path):
    world = World(tmp_path)
    world.plan()
    world.stage()
    assert world.coordinator.gate("flights", 1, "run-1").verdict is None
    assert world.commit().state is State.COMMITTED


# ---- one verdict per attempt


def test_the_first_verdict_wins(world):
    world.staged_with(None, "critical")
    world.gate(by="run-1")
    assert world.gate(by="recovery").verdict["by"] == "run-1"
    assert world.events().count("verdict") == 1


def test_of_two_looks_at_once_the_first_verdict_wins_and_the_other_is_forgotten(world, monkeypatch):
    world.staged_with("critical", None)
    both = threading.Barrier(2)
    inspector = type(world.parts.inspector(world.pipeline))
    examine = inspector.examine

    def together(self, checkpoint):
        found = examine(self, checkpoint)
        both.wait(PATIENCE)
        return found

    monkeypatch.setattr(inspector, "examine", together)
    judged = []
    threads = [threading.Thread(target=lambda by=by: judged.append(world.gate(by=by))) for by in ("run-1", "recovery")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert world.events().count("verdict") == 1
    assert [each.verdict for each in judged] == [world.now().verdict] * 2
    forgotten = json.loads((world.parts.folder / "forgotten.json").read_text())
    assert len(forgotten) == 1
    assert world.now().verdict["docs"] not in forgotten


def test_a_verdict_on_rows_that_were_staged_again_meanwhile_is_not_recorded(world, monkeypatch):
    world.staged_with(None)
    inspector = type(world.parts.inspector(world.pipeline))
    examine = inspector.examine

    def slowly(self, checkpoint):
        found = examine(self, checkpoint)
        world.abort()
        world.stage()
        return found

    monkeypatch.setattr(inspector, "examine", slowly)
    with raises(Fenced, "ownership-lost", match="attempt 2 is current and attempt 1 was examined"):
        world.gate()
    assert world.now().verdict is None


def test_a_look_that_trips_over_an_abort_says_so(world, monkeypatch):
    world.staged_with(None)

    def gone(self, checkpoint):
        world.abort()
        raise FileNotFoundError("the staged file")

    monkeypatch.setattr(type(world.parts.inspector(world.pipeline)), "examine", gone)
    with pytest.raises(Fenced):
        world.gate()


def test_a_look_that_fails_is_no_verdict(world):
    world.staged_with("error", None)
    with raises(NotCommitted, "gate-not-run"):
        world.gate()
    assert world.now().verdict is None
    assert world.gate().verdict["outcome"] == "passed"


def test_there_is_nothing_to_look_at_before_it_is_staged_or_after_an_abort(world):
    world.plan()
    with raises(NotCommitted, "not-staged"):
        world.gate()
    world.stage()
    world.abort()
    with raises(NotCommitted, "not-staged"):
        world.gate()


# ---- recovery


@pytest.mark.parametrize(
    ("found", "state", "published"),
    [(None, State.COMMITTED, 5), ("warning", State.COMMITTED, 5), ("critical", State.ABORTED, 0)],
)
def test_recovery_asks_the_gate_where_its_owner_has_not(world, found, state, published):
    world.staged_with(found)
    world.ended = {"run-1"}
    world.recover()
    assert world.now().verdict["by"] == "recovery"
    assert (world.now().state, len(values(world.lake))) == (state, published)


def test_recovery_goes_by_the_verdict_that_is_there(world):
    world.failed()
    world.ended = {"run-1"}
    world.recover()
    assert (world.now().state, world.now().reason) == (State.ABORTED, "the gate failed it")
    assert world.events().count("verdict") == 1


def test_recovery_leaves_the_gate_to_an_owner_at_work(world):
    world.staged_with(None)
    world.recover()
    assert (world.now().state, world.now().verdict) == (State.STAGED, None)


def test_recovery_tries_again_what_it_could_not_look_at(world):
    world.staged_with("error", None)
    world.ended = {"run-1"}
    with raises(NotCommitted, "gate-not-run"):
        world.recover()
    assert world.now().state is State.STAGED
    world.recover()
    assert world.now().state is State.COMMITTED


def test_a_plan_settles_what_an_ended_run_has_staged_by_its_gate(world):
    world.staged_with("critical")
    world.ended = {"run-1"}
    again = world.plan("run-2")
    assert (again.epoch, again.state) == (1, State.PLANNED)
    assert values(world.lake) == []


# ---- held for a person


def test_what_is_held_waits_for_a_person(holding):
    holding.failed()
    holding.ended = {"run-1"}
    holding.recover()
    with raises(Fenced, "ownership-lost"):
        holding.abort(owner="run-1")
    with raises(GateFailed, "gate-held", match="onceonly approve flights 1 --reason … --seen 4, or: onceonly abort"):
        holding.commit()
    assert holding.now().is_held
    assert holding.now().state is State.STAGED


def test_what_is_approved_is_published(holding):
    holding.failed()
    approved = Person(holding.coordinator).approve("flights", 1, "ann", "a known gap")
    assert approved.approved == {"who": "ann", "reason": "a known gap", "seen": 4}
    assert not approved.is_held
    assert holding.commit().state is State.COMMITTED
    assert values(holding.lake) == [0, 1, 2, 3, 4]


def test_recovery_publishes_what_is_approved(holding):
    holding.failed()
    Person(holding.coordinator).approve("flights", 1, "ann", "a known gap")
    holding.ended = {"run-1"}
    holding.recover()
    assert holding.now().state is State.COMMITTED


def test_a_task_does_not_abort_what_a_person_has_approved(holding):
    holding.failed()
    Person(holding.coordinator).approve("flights", 1, "ann", "a known gap")
    with pytest.raises(Fenced):
        holding.abort(owner="run-1")


def test_a_person_aborts_what_is_held(holding):
    holding.failed()
    aborted = Person(holding.coordinator).abort("flights", 1, "bad rows indeed", who="ann")
    assert (aborted.state, aborted.reason) == (State.ABORTED, "bad rows indeed")
    row = next(row for row in holding.state.history("flights") if row.event is Event.ABORTING)
    assert row.body == {"reason": "bad rows indeed", "who": "ann", "seen": 4}
    holding.stage()
    assert holding.gate().verdict["outcome"] == "passed"


def test_the_first_approval_counts(holding):
    holding.failed()
    Person(holding.coordinator).approve("flights", 1, "ann", "first")
    assert Person(holding.coordinator).approve("flights", 1, "bob", "second").approved["who"] == "ann"


def test_only_what_is_held_can_be_approved(world, holding, tmp_path_factory):
    world.failed()  # the same state table, on_fail='abort'
    with raises(InvalidPipeline, "not-held"):
        Person(world.coordinator).approve("flights", 1, "ann", "please")
    other = Gated(tmp_path_factory.mktemp("other"), on_fail="hold")
    other.staged_with(None)
    with raises(InvalidPipeline, "not-held"):
        Person(other.coordinator).approve("flights", 1, "ann", "please")
    other.gate()
    with raises(InvalidPipeline, "not-held"):
        Person(other.coordinator).approve("flights", 1, "ann", "please")


def test_only_what_is_approved_is_published_for_a_person(holding):
    holding.failed()
    with raises(InvalidPipeline, "not-approved", match="nobody has approved it"):
        holding.coordinator.publish_approved("flights", 1, attempt=1)
    assert holding.now().is_held
    Person(holding.coordinator).approve("flights", 1, "ann", "a known gap")
    assert holding.coordinator.publish_approved("flights", 1, attempt=1).state is State.COMMITTED


def test_nothing_without_a_gate_is_published_for_a_person(tmp_path):
    plain = World(tmp_path)
    plain.plan()
    plain.stage()
    with raises(InvalidPipeline, "not-approved"):
        plain.coordinator.publish_approved("flights", 1, attempt=1)
    assert plain.coordinator.state_table.view("flights").require(1).state is State.STAGED


def test_an_approval_does_not_outlive_its_attempt(holding):
    holding.failed()
    Person(holding.coordinator).approve("flights", 1, "ann", "a known gap")
    Person(holding.coordinator).abort("flights", 1, "on second thoughts", who="ann")
    holding.stage()
    assert holding.now().approved is None
    with raises(NotCommitted, "verdict-missing"):
        holding.commit()


def test_the_next_plan_of_a_chain_says_which_command_to_give(holding):
    holding.failed()
    holding.ended = {"run-1"}
    with raises(Busy, "checkpoint-open", match=r"its gate failed it\.\nDecide: onceonly approve flights 1 --reason …"):
        holding.plan("run-2")


def test_a_held_interval_does_not_keep_the_next_from_being_published(tmp_path):
    world = Gated(tmp_path, on_fail="hold", mode="interval")
    world.put(*range(10, 15))
    world.staged(2)
    world.finds("critical", None)
    world.gate(1)
    world.gate(2, "run-2")
    assert world.commit(2).state is State.COMMITTED
    assert world.now(1).is_held


# ---- the rows of a failed attempt


def test_failed_rows_stay_until_another_attempt_has_ended(world):
    world.failed()
    world.abort()
    assert world.leftovers() == [1]
    world.ended = {"run-1"}
    assert world.coordinator.sweep("flights") == []
    world.recover()
    assert world.leftovers() == [1]
    world.stage()
    world.gate()
    world.commit()
    assert world.leftovers() == []
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_failed_rows_go_with_the_next_sweep_once_another_attempt_is_claimed(world):
    world.failed()
    world.abort()
    world.stage()
    assert world.leftovers() == [1, 2]
    assert [txn.attempt for txn in world.coordinator.sweep("flights")] == [1, 1]
    assert world.leftovers() == [2]


def test_rows_of_another_abort_do_not_stay(world):
    world.staged_with(None)
    world.gate()
    world.abort()
    assert world.leftovers() == []


def test_failed_rows_are_kept_for_ever_where_that_is_asked(tmp_path):
    world = Gated(tmp_path, keep_failed=True)
    world.failed()
    world.abort()
    world.stage()
    world.gate()
    world.commit()
    world.ended = {"run-1"}
    world.recover()
    assert world.coordinator.sweep("flights") == []
    assert world.leftovers() == [1]
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_rows_that_were_approved_are_not_kept_once_they_are_published(tmp_path):
    world = Gated(tmp_path, on_fail="hold", keep_failed=True)
    world.failed()
    Person(world.coordinator).approve("flights", 1, "ann", "a known gap")
    world.commit()
    assert world.leftovers() == []


# ---- the definition


RAW = KafkaSource("flights")
LAKE, FILES = DeltaSink("lake", "lake"), FileSink("files", "files")


def pipeline(gate: Gate, *sinks) -> Pipeline:
    return Pipeline(name="flights", source=RAW, transform="jobs.flights:clean", sinks=sinks or [LAKE, FILES], gate=gate)


@pytest.mark.parametrize(
    "gate",
    [
        Gate(suites={"lake": "schemas/lake.json"}, on_fail="hold", keep_failed=True, in_process_rows=0),
        Gate(min_rows={"lake": 1}, max_rows={"lake": 9, "files": 3}),
        Gate(fresh={"files": Fresh("scheduled", 3600)}),
    ],
)
def test_a_gate_survives_json(gate):
    made = pipeline(gate)
    assert Pipeline.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_one_sink_need_not_be_named():
    gate = Gate(suites="s.json", min_rows=1, fresh=Fresh("at", 60))
    made = pipeline(gate, LAKE, StateSink("seen", "n INT", ["n"])).gate
    assert (made.suites, made.min_rows, made.fresh) == ({"lake": "s.json"}, {"lake": 1}, {"lake": Fresh("at", 60)})


def test_a_definition_without_a_gate_is_as_it_was():
    assert "gate" not in Pipeline(name="flights", source=RAW, transform="a:b", sinks=[LAKE]).to_json()


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda: Gate(), "option-missing", "no checks are configured"),
        (lambda: Gate(suites={}), "option-missing", "no checks are configured"),
        (lambda: Gate(suites="suite.yml"), "option-invalid", "'suite.yml' is not a .json file"),
        (lambda: Gate(min_rows=1, on_fail="ignore"), "option-invalid", "on_fail 'ignore' is not known"),
        (lambda: Gate(min_rows=-1), "option-invalid", "min_rows is -1"),
        (lambda: Gate(min_rows=True), "option-invalid", "min_rows is True"),
        (lambda: Gate(max_rows={"lake": "9"}), "option-invalid", "max_rows is '9'"),
        (lambda: Gate(min_rows=1, in_process_rows=-1), "option-invalid", "in_process_rows is -1"),
        (lambda: Gate(fresh="at"), "option-invalid", "fresh is 'at'"),
        (lambda: Fresh("at", 0), "option-invalid", "needs a column and seconds above 0"),
        (
            lambda: pipeline(Gate(min_rows=1)),
            "option-invalid",
            r"min_rows=1 names no sink: give a dict by sink name, of \['files', 'lake'\]",
        ),
        (lambda: pipeline(Gate(min_rows={"other": 1})), "option-invalid", r"min_rows of \['other'\] names a sink"),
        (
            lambda: pipeline(Gate(min_rows={"lake": 5}, max_rows={"lake": 4})),
            "options-conflict",
            "min_rows 5 above max_rows 4",
        ),
        (
            lambda: pipeline(Gate(min_rows={"seen": 1}), LAKE, StateSink("seen", "n INT", ["n"])),
            "option-invalid",
            r"min_rows of \['seen'\] names a sink that a gate cannot check",
        ),
        (
            lambda: pipeline(Gate(fresh=Fresh("at", 60)), FileSink("files", "files", format="avro")),
            "options-conflict",
            "sink 'files' writes Avro files",
        ),
        (
            lambda: pipeline(Gate(min_rows=1), KafkaSink(name="late", topic="late", guarantee="none")),
            "options-conflict",
            "sink 'late' has guarantee='none'",
        ),
    ],
)
def test_a_gate_that_cannot_work_is_refused(make, code, message):
    with raises(InvalidPipeline, code, match=message):
        make()


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [([], "passed"), (["info"], "passed"), (["info", "warning"], "warning"), (["critical"], "failed")],
)
def test_the_worst_check_decides(bad, outcome):
    checks = [{"ok": True, "severity": "critical"}, *({"ok": False, "severity": severity} for severity in bad)]
    assert gating.classify_checks(checks) == outcome


def test_intervals_of_a_gate_are_judged_one_by_one(tmp_path):
    world = Gated(tmp_path, mode="interval")
    world.plan("run-1", minutes(0, 2))
    world.stage(1)
    world.finds("critical")
    world.gate(1)
    world.abort(1)
    world.plan("run-2", minutes(2, 4))
    world.stage(2)
    world.gate(2)
    assert world.commit(2).state is State.COMMITTED
    assert values(world.lake) == [2, 3]


# ---- an interval without records


def judged_hourly(folder, sinks=None, **asked) -> Gated:
    made = Gated(folder, mode="interval", **({"sinks": sinks} if sinks else {}))
    made.pipeline = replace(made.pipeline, gate=Gate(**asked))
    made.put(59)
    return made


NOTHING = minutes(10, 20)


@pytest.mark.parametrize("asked", [{"min_rows": ASKS}, {"suites": {"lake": "s.json"}}])
def test_an_interval_without_records_goes_through_a_gate_that_may_fail_it(tmp_path, asked):
    world = judged_hourly(tmp_path, **asked)
    planned = world.plan("run-1", NOTHING)
    assert (planned.state, has_data(planned.ranges)) == (State.PLANNED, False)
    world.stage(1)
    world.finds("critical")
    assert world.gate().verdict["outcome"] == "failed"
    with pytest.raises(GateFailed):
        world.commit()
    world.abort()
    again = world.plan("run-1", NOTHING)
    assert (again.epoch, again.ranges, again.state) == (1, planned.ranges, State.PLANNED)
    world.stage(1)
    world.finds(None)
    assert world.gate().verdict["outcome"] == "passed"
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == []
    assert world.run_judged("run-2", minutes(0, 10)).state is State.COMMITTED
    assert values(world.lake) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("asked", [{"min_rows": {"lake": 0}}, {"max_rows": ASKS}, {"fresh": {"lake": Fresh("at", 60)}}])
def test_a_gate_that_nothing_cannot_fail_is_not_asked_of_it(tmp_path, asked):
    assert judged_hourly(tmp_path, **asked).plan("run-1", NOTHING).state is State.COMMITTED


def test_no_records_take_out_nothing_that_a_condition_names(tmp_path):
    by_day = DeltaSink("lake", "lake", partition_by=["day"], replace=[("day", "=", "2013-01-01")])
    assert judged_hourly(tmp_path, [by_day], min_rows=ASKS).plan("run-1", NOTHING).state is State.COMMITTED
    other = tmp_path / "partitions"
    other.mkdir()
    whole = replace(by_day, replace="partitions")
    assert judged_hourly(other, [whole], min_rows=ASKS).plan("run-1", NOTHING).state is State.PLANNED


def test_an_interval_without_records_is_not_processed_again(tmp_path):
    world = judged_hourly(tmp_path, min_rows=ASKS)
    world.run_judged("run-1", NOTHING)
    asked = world.coordinator.plan(world.pipeline, "run-2", world.alive, NOTHING, Reprocess("run-2, 1"))
    assert (asked.checkpoint.epoch, asked.checkpoint.state) == (1, State.COMMITTED)


def test_what_was_held_before_is_settled_by_recovery(tmp_path):
    """A person has aborted it, and the run that planned it again died before it claimed an attempt."""
    world = World(tmp_path, gate=Gate(min_rows={"lake": 1}, on_fail="hold"))
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 1, "run-1")
    Person(world.coordinator).abort("flights", 1, "bad rows", who="ann")
    world.plan("run-2")
    world.coordinator.recover("flights", lambda checkpoint: False)
    assert world.now().state is State.ABORTED
    world.plan("run-3")
    assert world.stage().attempt == 2
