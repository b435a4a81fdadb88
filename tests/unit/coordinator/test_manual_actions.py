"""Every manual action names what the person has seen, and is refused once that has changed."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from person import Person
from unit.coordinator.test_gating import Gated
from unit.world import NOON, World, minutes

from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.coordinator.accept_loss import Acceptance
from onceonly.coordinator.coordinator import Coordinator
from onceonly.coordinator.forward import Forward
from onceonly.coordinator.manual import Seen
from onceonly.coordinator.messages import event_in_words
from onceonly.coordinator.skip import Skip
from onceonly.errors import InDoubt, InvalidPipeline, OnceonlyError
from onceonly.pipeline.sinks import DeltaSink
from onceonly.testing.fakes import FakeSink

LAKE = [DeltaSink("lake", "lake")]
BEGINNINGS = {"adopt"}  # refused once anything is recorded, so that nothing that was seen can be outdated
Act = Callable[[Coordinator, Seen | None, str], Checkpoint]


@dataclass(frozen=True)
class Case:
    """A manual action.

    Args:
        make: a world in which it is possible.
        act: the action, by the person with that name.
        change: what others do meanwhile, so that the number is outdated.
        epoch: of the checkpoint that the person looks at; None: the pipeline.
        event: of the row that records it.
    """

    make: Callable[[Path], World]
    act: Act
    change: Callable[[World], object]
    epoch: int | None
    event: Event

    def looks(self, world: World) -> Seen:
        return Person(world.coordinator).looks_at("flights", self.epoch)


def planned(folder: Path) -> World:
    world = World(folder, sinks=LAKE)
    world.plan()
    world.coordinator._stager.claim("flights", 1, "run-1")
    return world


def held(folder: Path) -> World:
    world = Gated(folder, on_fail="hold", sinks=LAKE)
    world.failed()
    return world


def waiting(*failures: Any) -> Callable[[Path], World]:
    def make(folder: Path) -> World:
        world = World(folder, sinks=LAKE)
        world.plan()
        world.stage()
        world.lake.fail("commit", *failures)
        with pytest.raises(OnceonlyError):
            world.commit()
        return world

    return make


def chained(folder: Path) -> World:
    world = World(folder, sinks=LAKE)
    for number in (1, 2):
        world.put(10 * number)
        world.run(f"run-{number}")
    world.put(50)
    return world


def with_a_gap(folder: Path) -> World:
    world = World(folder, mode="interval", sinks=LAKE)
    world.put(*range(5, 60))
    for start in (0, 20):
        world.run(f"run-{start}", minutes(start, start + 10))
    return world


def with_a_lost_target(folder: Path) -> World:
    world = chained(folder)
    world.plan("run-3")
    shutil.rmtree(world.lake.folder)
    return world


def stage_again(world: World) -> None:
    Person(world.coordinator).abort("flights", 1, "wrong transform", who="bob")
    world.plan("run-2")
    world.stage()


def others_resolve(world: World) -> None:
    Person(world.coordinator).resolve_doubt("flights", 1, "lake", True, "bob", "I was first")


def ends(value: int) -> dict[str, dict[int, int]]:
    return {"flights": {0: value}}


CASES = {
    "approve": Case(
        held,
        lambda through, seen, who: through.approve("flights", 1, who, "a known gap", seen),
        stage_again,
        1,
        Event.APPROVED,
    ),
    "abort": Case(
        held,
        lambda through, seen, who: through.abort("flights", 1, "bad rows", who=who, seen=seen),
        lambda world: Person(world.coordinator).approve("flights", 1, "bob", "fine"),
        1,
        Event.ABORTING,
    ),
    "give_up": Case(
        waiting("refused", "refused"),
        lambda through, seen, who: through.give_up("flights", 1, "lake", who, "dropped", seen=seen),
        lambda world: Person(world.coordinator).give_up("flights", 1, "lake", "bob", "I was first"),
        1,
        Event.GIVEN_UP,
    ),
    "resolve_doubt": Case(
        waiting(*["doubt"] * 4),
        lambda through, seen, who: through.resolve_doubt("flights", 1, "lake", False, who, "it is empty", seen),
        others_resolve,
        1,
        Event.REPLACED,
    ),
    "skip": Case(
        with_a_gap,
        lambda through, seen, who: through.skip("flights", minutes(10, 20), who, "a strike", seen),
        lambda world: world.plan("run-30", minutes(30, 40)),
        None,
        Event.EMPTY,
    ),
    "skip_offsets": Case(
        chained,
        lambda through, seen, who: through.skip_offsets("flights", Skip("flights", 0, 8, who, "damaged", seen)),
        lambda world: world.run("run-3"),
        None,
        Event.EMPTY,
    ),
    "rewind": Case(
        chained,
        lambda through, seen, who: through.rewind("flights", 1, who, "wrong prices", seen),
        lambda world: world.run("run-3"),
        None,
        Event.REWOUND,
    ),
    "forward": Case(
        chained,
        lambda through, seen, who: through.forward(
            World(through.parts.folder, sinks=LAKE).pipeline,  # type: ignore[attr-defined]
            Forward(9, who, "restored", ends(8), seen=seen),
        ),
        lambda world: world.run("run-3"),
        None,
        Event.EMPTY,
    ),
    "accept_loss": Case(
        with_a_lost_target,
        lambda through, seen, who: through.accept_loss("flights", "lake", Acceptance(who, "the disk", seen=seen))[-1],
        lambda world: Person(world.coordinator).abort("flights", 3, "not now", who="bob"),
        None,
        Event.MISSING,  # the first row of it
    ),
}
every_action = pytest.mark.parametrize("name", CASES)


def shown_by(world: World) -> tuple[object, ...]:
    """All that an action could change: the rows of the state table, and what the target holds."""
    return world.events(), world.lake.rows(), list(world.lake.leftovers(f"{world.state.id}-flights-lake"))


def test_every_event_has_words() -> None:
    """They are told to who acts on what has changed since."""
    body = {"to": 1, "outcome": "failed", "why": "its volume is not mounted"}
    for event in Event:
        row = Row("flights", 7, 3, event, 1, at=NOON, sink="lake", body=body)
        assert event_in_words(row).startswith("12:00:00 UTC epoch 3 ")


def test_every_method_for_people_is_in_the_table() -> None:
    methods = inspect.getmembers(Coordinator, inspect.isfunction)
    asks_who = {name for name, method in methods if "who" in inspect.signature(method).parameters}
    asks_who |= {name for name, method in methods if {"said"} & set(inspect.signature(method).parameters)}
    assert asks_who - BEGINNINGS == set(CASES)


@every_action
def test_an_action_that_has_seen_nothing_is_refused(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    before = shown_by(world)
    with pytest.raises(InvalidPipeline) as refused:
        case.act(world.coordinator, None, "ann")
    assert refused.value.code == "seen-missing"
    assert shown_by(world) == before


@every_action
def test_an_outdated_action_is_refused_and_changes_nothing(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    seen = case.looks(world)
    case.change(world)
    before = shown_by(world)
    with pytest.raises(InvalidPipeline) as refused:
        case.act(world.coordinator, seen, "ann")
    assert refused.value.code == "seen-outdated"
    assert f"You have seen row {seen.seq}." in refused.value.why
    assert "UTC epoch" in refused.value.why and ("by bob" in refused.value.why or "by run-" in refused.value.why)
    assert shown_by(world) == before


@every_action
def test_an_action_that_is_overtaken_at_the_last_moment_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others act after the number was compared, and before the row is written."""
    case, world = CASES[name], CASES[name].make(tmp_path)
    kind, seen = type(world.state), case.looks(world)
    append = kind.append

    def overtaken(state: Any, view: Any, row: Any) -> Any:
        if row.event is case.event:
            monkeypatch.setattr(kind, "append", append)
            case.change(world)
        return append(state, view, row)

    monkeypatch.setattr(kind, "append", overtaken)
    with pytest.raises(InvalidPipeline) as refused:
        case.act(world.coordinator, seen, "ann")
    assert refused.value.code == "seen-outdated"
    said = [row.body.get("who") or row.owner for row in world.state.history("flights")]
    assert "ann" not in said


@every_action
def test_a_number_that_was_never_shown_is_refused(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    before = shown_by(world)
    with pytest.raises(InvalidPipeline) as refused:
        case.act(world.coordinator, Seen(999), "ann")
    assert refused.value.code == "seen-unknown"
    assert shown_by(world) == before


@every_action
def test_a_repeated_action_gets_the_same_answer(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    seen = case.looks(world)
    first = case.act(world.coordinator, seen, "ann")
    before = shown_by(world)
    again = case.act(world.coordinator, seen, "ann")
    assert (again.epoch, again.state) == (first.epoch, first.state)
    assert shown_by(world) == before


@every_action
def test_the_same_action_of_another_person_is_outdated(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    seen = case.looks(world)
    case.act(world.coordinator, seen, "ann")
    with raises(InvalidPipeline, "seen-outdated") as refused:
        case.act(world.coordinator, seen, "bob")
    assert refused.value.code == "seen-outdated"


@every_action
def test_what_was_seen_is_recorded(name: str, tmp_path: Path) -> None:
    case, world = CASES[name], CASES[name].make(tmp_path)
    seen = case.looks(world)
    case.act(world.coordinator, seen, "ann")
    recorded = [row for row in world.state.history("flights") if row.event is case.event and "seen" in row.body]
    assert recorded[-1].body["seen"] == seen.seq


@pytest.mark.parametrize("event", Event)
def test_every_event_can_be_named(event: Event) -> None:
    body = {"to": 1, "outcome": "passed", "why": "the table was altered"}
    assert event_in_words(Row("flights", 1, 1, event, 1, sink="lake", body=body))


def test_a_heartbeat_changes_nothing(tmp_path: Path) -> None:
    world = planned(tmp_path)
    seen = Person(world.coordinator).looks_at("flights", 1)
    whole = Person(world.coordinator).looks_at("flights")
    assert world.coordinator._stager.renew(world.now())
    assert world.now().last_seq == seen.seq + 1
    assert Person(world.coordinator).looks_at("flights") == whole
    assert world.coordinator.abort("flights", 1, "enough", who="ann", seen=seen).state is State.ABORTED


def test_an_abort_by_the_system_names_nothing(tmp_path: Path) -> None:
    assert planned(tmp_path).abort(owner="run-1").state is State.ABORTED


def test_an_approval_belongs_to_the_attempt_that_was_seen(tmp_path: Path) -> None:
    world = Gated(tmp_path, on_fail="hold")
    world.failed()
    seen = Person(world.coordinator).looks_at("flights", 1)
    Person(world.coordinator).abort("flights", 1, "wrong transform", who="bob")
    world.plan("run-2")
    world.coordinator.stage("flights", 1, lambda cp: {sink.name: [{"value": 666}] for sink in world.pipeline.sinks})
    world.finds("critical")
    world.gate(by="run-2")
    with raises(InvalidPipeline, "seen-outdated") as refused:
        world.coordinator.approve("flights", 1, "alice", "one bad row is fine", seen)
    assert "attempt 2 was staged" in refused.value.why
    assert world.now().is_held
    world.ended |= {"run-1", "run-2"}
    world.recover()
    assert world.lake.rows() == []


def test_a_repeated_abort_does_not_touch_the_next_attempt(tmp_path: Path) -> None:
    world = held(tmp_path)
    seen = Person(world.coordinator).looks_at("flights", 1)
    world.coordinator.abort("flights", 1, "bad rows", who="ann", seen=seen)
    world.plan("run-2")
    world.stage()
    assert world.coordinator.abort("flights", 1, "bad rows", who="ann", seen=seen).state is State.STAGED


def test_an_interrupted_give_up_is_completed_by_repeating_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = waiting("refused", "refused")(tmp_path)
    seen = Person(world.coordinator).looks_at("flights", 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(world.state), "append", dies_before(Event.COMMITTED, type(world.state).append))
        with pytest.raises(KeyboardInterrupt):
            world.coordinator.give_up("flights", 1, "lake", "ann", "dropped", seen=seen)
    assert world.now().state is State.COMMITTING
    assert world.coordinator.give_up("flights", 1, "lake", "ann", "dropped", seen=seen).state is State.COMMITTED


def test_a_running_interval_does_not_hold_up_a_skip(tmp_path: Path) -> None:
    world = with_a_gap(tmp_path)
    world.plan("run-30", minutes(30, 40))
    seen = Person(world.coordinator).looks_at("flights")
    world.stage(3)
    world.commit(3)
    assert world.coordinator.skip("flights", minutes(10, 20), "ann", "a strike", seen).skipped == "a strike"


def test_other_offsets_are_another_action(tmp_path: Path) -> None:
    world = chained(tmp_path)
    seen = Person(world.coordinator).looks_at("flights")
    through = world.coordinator
    through.skip_offsets("flights", Skip("flights", 0, 8, "ann", "damaged", Seen(seen.seq)))
    world.put(60, 61)
    with pytest.raises(InvalidPipeline) as refused:
        through.skip_offsets("flights", Skip("flights", 0, 9, "ann", "damaged", Seen(seen.seq)))
    assert refused.value.code == "seen-outdated"


def test_an_interrupted_forward_of_intervals_is_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, mode="interval", sinks=LAKE)
    world.put(*range(5, 60))
    said = Forward(7, "ann", "lost", intervals=[minutes(0, 10), minutes(10, 20)], seen=Seen(0))
    with monkeypatch.context() as patch:
        patch.setattr(type(world.state), "append", dies_before(Event.EMPTY, type(world.state).append, after=1))
        with pytest.raises(KeyboardInterrupt):
            world.coordinator.forward(world.pipeline, said)
    assert world.events() == ["empty"]
    assert world.coordinator.forward(world.pipeline, said).decision == 7
    assert world.events() == ["empty", "empty"]


def dies_before(event: Event, append: Any, after: int = 0) -> Any:
    """The process dies before it writes such a row, after so many of them."""
    written: list[Any] = []

    def dying(state: Any, view: Any, row: Any) -> Any:
        if row.event is event:
            if len(written) == after:
                raise KeyboardInterrupt
            written.append(row)
        return append(state, view, row)

    return dying


def test_doubt_is_recorded_of_the_handle_it_was_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has replaced the handle after the sink had looked for the outcome of the old one."""
    world = World(tmp_path, sinks=LAKE)
    world.plan()
    world.stage()
    world.lake.fail("commit", "refused")
    with pytest.raises(OnceonlyError):
        world.commit()

    def looked_too_early(sink: FakeSink, *_: Any) -> Any:
        view = world.state.view("flights")
        new = {**view.require(1).handles["lake"], "opened_again": True}
        columns = {"sink": "lake", "decision": 1, "body": {"handle": new}}
        world.state.append(view, view.row(1, Event.REPLACED, 1, **columns))
        raise InDoubt("in doubt.", "No marker is left.", "onceonly resolve …")

    monkeypatch.setattr(FakeSink, "commit", looked_too_early)
    with pytest.raises(InDoubt):
        world.commit()
    assert world.now().in_doubt == {}


def test_what_the_last_try_records_does_not_outdate_giving_up(tmp_path: Path) -> None:
    world = waiting("refused", "doubt")(tmp_path)
    seen = Person(world.coordinator).looks_at("flights", 1)
    done = world.coordinator.give_up("flights", 1, "lake", "ann", "dropped", seen=seen)
    assert (done.state, "lake" in done.given_up) == (State.COMMITTED, True)
    assert "in_doubt" in world.events()
