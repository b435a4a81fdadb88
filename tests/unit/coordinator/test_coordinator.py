"""How checkpoints are decided: the invariants of the design, on a real state table with fake sources and sinks."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from codes import raises
from person import Person
from unit import tables
from unit.world import NOON, SINKS, World, minutes, values

from onceonly.checkpoint.model import Checkpoint, Event, Row, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import (
    Busy,
    CannotPublish,
    Fenced,
    InDoubt,
    InvalidPipeline,
    NotCommitted,
    OnceonlyError,
    OutcomeUnknown,
    SourceLost,
)
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.statetable.table import Conflict
from onceonly.statetable.view import View
from onceonly.testing.fakes import FakeSink, FakeSource


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


@pytest.fixture
def hourly(tmp_path) -> World:
    """In interval mode, with a record per minute of half an hour."""
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 40))
    return world


def leftovers(world: World) -> list[str]:
    prefix = f"{world.state.id}-flights"
    return [txn.name for sink in (world.lake, world.files) for txn in sink.leftovers(f"{prefix}-{sink.name}")]


def meanwhile(monkeypatch, event: Event, act: Callable[[], object], after: bool = False) -> None:
    """Let another process act just before (or after) the row of that event is written, once."""
    table: Any = tables.KIND
    real = table.append

    def append(self: Any, view: View, row: Row) -> View:
        if row.event is not event:
            return real(self, view, row)
        monkeypatch.setattr(table, "append", real)
        if after:
            result = real(self, view, row)
            act()
            return result
        act()
        return real(self, view, row)

    monkeypatch.setattr(table, "append", append)


# ---- plan


def test_rows_reach_every_sink_once(world):
    assert world.run("run-1").state is State.COMMITTED
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]
    assert world.events() == ["planned", "claimed", "staged", "committing", "published", "published", "committed"]
    assert leftovers(world) == []


def test_the_next_checkpoint_starts_where_the_last_one_ended(world):
    world.run("run-1")
    world.put(5, 6)
    assert world.run("run-2").ranges[0].partitions == {0: (5, 7)}
    assert values(world.lake) == [0, 1, 2, 3, 4, 5, 6]


def test_no_new_data_is_no_checkpoint(world):
    world.run("run-1")
    assert world.plan("run-2") is None
    assert world.now(2) is None


def test_a_retried_plan_gets_the_checkpoint_that_it_planned_before(world):
    first = world.coordinator.plan(world.pipeline, "run-1", world.alive)
    world.put(5)
    again = world.coordinator.plan(world.pipeline, "run-1", world.alive)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.checkpoint == first.checkpoint
    assert world.events() == ["planned"]


@pytest.mark.parametrize("finished", ["stage", "commit"])
def test_a_plan_that_is_retried_late_finds_its_checkpoint_where_it_is(world, finished):
    world.plan()
    world.stage()
    expected = world.commit() if finished == "commit" else world.now()
    assert world.plan() == expected


def test_of_two_plans_at_once_one_is_busy(world, monkeypatch):
    meanwhile(monkeypatch, Event.PLANNED, lambda: world.plan("run-2"))
    with raises(Busy, "checkpoint-open", match="belongs to 'run-2'"):
        world.plan("run-1")
    assert world.events() == ["planned"]


@pytest.mark.parametrize("staged", [False, True])
def test_another_run_is_told_to_wait_while_the_owner_lives(world, staged):
    world.plan("run-1")
    if staged:
        world.stage()
    with raises(Busy, "checkpoint-open", match="blocked by unsettled epoch 1") as busy:
        world.plan("run-2")
    assert "onceonly recover flights" in busy.value.todo
    assert world.now().owner == "run-1"


def test_what_an_ended_owner_planned_is_planned_again_with_the_same_offsets(world):
    before = world.plan("run-1")
    world.stage(owner="run-1")
    world.abort()
    world.put(5, 6)
    after = world.plan("run-2")
    assert (after.epoch, after.ranges, after.owner) == (before.epoch, before.ranges, "run-2")
    world.stage(owner="run-2")
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]
    assert world.run("run-3").ranges[0].partitions == {0: (5, 7)}


def test_an_owner_that_died_before_staging_is_aborted_and_its_offsets_go_first(world):
    world.plan("run-1")
    world.ended.add("run-1")
    world.put(5)
    taken = world.plan("run-2")
    assert (taken.epoch, taken.owner, taken.ranges[0].partitions) == (1, "run-2", {0: (0, 5)})


def test_an_owner_that_died_after_staging_is_published_first(world):
    world.plan("run-1")
    world.stage()
    world.ended.add("run-1")
    world.put(5)
    assert world.plan("run-2").ranges[0].partitions == {0: (5, 6)}
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_a_run_that_aborted_gets_its_own_checkpoint_back(world):
    world.plan("run-1")
    world.abort()
    again = world.plan("run-1")
    assert (again.epoch, again.state) == (1, State.PLANNED)


def test_a_changed_definition_counts_from_the_next_plan_on(world):
    world.plan()
    world.pipeline = Pipeline.from_json({**world.pipeline.to_json(), "transform": "jobs.flights:better"})
    assert world.plan().definition.json["transform"] == "jobs.flights:better"
    assert world.now().ranges[0].partitions == {0: (0, 5)}


def test_a_checkpoint_is_capped(tmp_path):
    world = World(tmp_path, source=KafkaSource("flights", max_records=3))
    assert [world.run(f"run-{n}").ranges[0].partitions for n in (1, 2)] == [{0: (0, 3)}, {0: (3, 5)}]
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_only_what_is_committed_at_the_source_is_planned(world):
    world.source.hold(0, stable=3)
    assert world.plan().ranges[0].partitions == {0: (0, 3)}


def test_a_partition_added_later_is_read_from_its_first_record(world):
    world.run("run-1")
    world.put(7, 8, partition=1)
    assert world.run("run-2").ranges[0].partitions == {0: (5, 5), 1: (0, 2)}
    assert values(world.lake) == [0, 1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize(
    ("lose", "code", "message"),
    [
        (
            lambda source: source.recreate(),
            "source-recreated",
            "is not the one for which the last checkpoint was pinned",
        ),
        (lambda source: source.expire(0, 7), "records-expired", "offsets 5 to 6 no longer exist"),
        (lambda source: source.drop(0), "partition-missing", "no longer has partition 0"),
        (lambda source: source.hold(0, stable=2), "source-shrank", "ends before what was already read"),
    ],
)
def test_a_source_that_lost_what_comes_next_is_said_so_and_nothing_is_written(world, lose, code, message):
    world.run("run-1")
    world.put(5, 6, 7)
    lose(world.source)
    with raises(SourceLost, code, match=message):
        world.plan("run-2")
    assert world.now(2) is None


def test_a_pipeline_cannot_be_pointed_to_another_topic(world):
    world.run("run-1")
    world.pipeline = Pipeline.from_json({**world.pipeline.to_json(), "source": {"kind": "kafka", "topic": "trains"}})
    with raises(InvalidPipeline, "pipeline-changed"):
        world.plan("run-2")


def test_a_pipeline_cannot_change_its_mode(world):
    world.run("run-1")
    world.pipeline = Pipeline.from_json({**world.pipeline.to_json(), "mode": "interval"})
    with raises(InvalidPipeline, "pipeline-changed"):
        world.plan("run-2", minutes(0, 10))


# ---- intervals


def test_intervals_share_a_boundary_and_no_record(hourly):
    hourly.run("b", minutes(10, 20))
    hourly.run("a", minutes(0, 10))
    assert sorted(values(hourly.lake)) == list(range(20))
    assert [entry["decision"] for entry in hourly.lake.entries()] == [1, 2]


def test_a_committed_interval_run_again_is_no_work(hourly):
    done = hourly.run("run-1", minutes(0, 10))
    again = hourly.coordinator.plan(hourly.pipeline, "run-2", hourly.alive, minutes(0, 10))
    assert (again.checkpoint, again.fresh) == (done, False)
    assert hourly.stage() == done
    assert hourly.commit() == done
    assert values(hourly.lake) == list(range(10))


@pytest.mark.parametrize("overlapping", [minutes(5, 15), minutes(2, 3), minutes(0, 20)])
def test_an_interval_that_overlaps_a_pinned_one_is_refused(hourly, overlapping):
    hourly.run("run-1", minutes(0, 10))
    with raises(InvalidPipeline, "interval-overlaps") as refused:
        hourly.plan("run-2", overlapping)
    assert "Epoch 1 covers [2013-01-01T12:00:00Z, 2013-01-01T12:10:00Z) and is committed" in str(refused.value)
    assert hourly.now(2) is None


def test_an_interval_without_records_pins_its_boundaries_and_is_settled(hourly):
    hourly.put(70)
    empty = hourly.plan("run-1", minutes(50, 60))
    assert (empty.state, empty.ranges[0].partitions) == (State.COMMITTED, {0: (40, 40)})
    hourly.put(55)  # comes late: behind what is pinned, so it counts to the next interval
    assert hourly.run("run-2", minutes(60, 80)).ranges[0].partitions == {0: (40, 42)}
    assert values(hourly.lake) == [70, 55]


def test_an_aborted_interval_is_run_again_with_the_offsets_that_were_pinned(hourly):
    pinned = hourly.plan("run-1", minutes(0, 100)).ranges
    hourly.abort()
    hourly.put(50)
    assert hourly.run("run-2", minutes(0, 100)).ranges == pinned
    assert values(hourly.lake) == list(range(40))


def test_a_partition_added_between_two_intervals_belongs_to_the_later_one(hourly):
    hourly.run("run-1", minutes(0, 10))
    hourly.put(3, 12, 25, partition=1)
    assert hourly.run("run-2", minutes(10, 20)).ranges[0].partitions == {0: (10, 20), 1: (0, 2)}


def test_a_partition_that_vanished_between_two_intervals_is_said_so(hourly):
    hourly.put(3, 12, partition=1)
    hourly.run("run-1", minutes(0, 10))
    hourly.source.drop(1)
    with raises(SourceLost, "partition-missing", match="no longer has partition 1"):
        hourly.plan("run-2", minutes(10, 20))
    assert hourly.now(2) is None


def test_a_log_that_ends_before_a_pinned_boundary_is_not_taken_for_an_empty_interval(hourly):
    hourly.run("run-1", minutes(0, 10))
    hourly.source.hold(0, 5)  # as after an unclean leader election
    with raises(SourceLost, "source-shrank"):
        hourly.plan("run-2", minutes(10, 20))
    assert hourly.now(2) is None


def test_a_look_up_that_grew_old_while_a_neighbour_was_planned_does_not_cross_it(tmp_path, monkeypatch):
    hourly = World(tmp_path / "hourly", mode="interval")

    def neighbour() -> None:
        hourly.put(5, 6, 3)
        hourly.plan("run-1", minutes(0, 10))

    meanwhile(monkeypatch, Event.EMPTY, neighbour)
    assert hourly.plan("run-2", minutes(10, 20)).ranges[0].partitions == {0: (8, 8)}
    assert hourly.now(1).ranges[0].partitions == {0: (0, 8)}


def test_intervals_run_side_by_side(hourly):
    hourly.staged(3)
    assert [hourly.commit(epoch).decision for epoch in (3, 1, 2)] == [1, 2, 3]
    assert sorted(values(hourly.lake)) == list(range(30))


@pytest.mark.parametrize(
    ("interval", "code", "message"),
    [
        (None, "mode-mismatch", "a pipeline in interval mode needs an interval"),
        (minutes(10, 10), "interval-empty", "is empty or backwards"),
        (minutes(10, 0), "interval-empty", "is empty or backwards"),
        (Interval(NOON, datetime.now(UTC) + timedelta(days=1)), "interval-in-future", "ends in the future"),
    ],
)
def test_an_interval_that_cannot_be_is_refused(hourly, interval, code, message):
    with raises(InvalidPipeline, code, match=message):
        hourly.plan("run-1", interval)


def test_an_interval_for_a_chained_pipeline_is_refused(world):
    with raises(InvalidPipeline, "mode-mismatch"):
        world.plan("run-1", minutes(0, 10))


def test_an_interval_whose_records_retention_has_taken_is_not_green_and_empty(hourly):
    hourly.source.expire(0, 15)
    with raises(SourceLost, "records-expired", match="starts at offset 15: retention has removed"):
        hourly.plan("run-1", minutes(0, 10))
    assert hourly.now(1) is None


def test_a_pinned_interval_of_which_retention_took_a_part_is_said_so(hourly):
    hourly.plan("run-1", minutes(0, 10))
    hourly.source.expire(0, 5)
    with raises(SourceLost, "records-expired", match="offsets 0 to 4 no longer exist"):
        hourly.stage()
    assert leftovers(hourly) == []


# ---- stage


def test_each_attempt_writes_under_a_name_of_its_own(world):
    world.plan()
    first = world.stage().transaction("lake")
    world.abort()
    second = world.stage().transaction("lake")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.nonce != second.nonce


def test_two_stage_processes_at_once_never_share_an_attempt(world, monkeypatch):
    world.plan()
    meanwhile(monkeypatch, Event.CLAIMED, world.stage)
    staged = world.stage()  # found staged by the other on its second look
    assert staged.attempt == 1
    assert world.events() == ["planned", "claimed", "staged"]


def test_a_process_that_was_overtaken_while_it_wrote_removes_its_own_output_only(world, monkeypatch):
    world.plan()
    meanwhile(monkeypatch, Event.STAGED, world.stage)  # a second try, by Airflow or YARN
    with raises(Fenced, "ownership-lost", match="attempt 2 is current and this was attempt 1"):
        world.stage()
    current = world.now()
    assert (current.state, current.attempt) == (State.STAGED, 2)
    assert leftovers(world) == [current.transaction("lake").name, current.transaction("files").name]
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_a_zombie_that_finishes_while_the_next_attempt_is_at_work_is_fenced(world):
    world.plan()

    def killed(checkpoint: Checkpoint) -> dict:
        raise KeyboardInterrupt

    def slow(checkpoint: Checkpoint) -> dict:
        if checkpoint.attempt == 1:
            with pytest.raises(KeyboardInterrupt):
                world.coordinator.stage("flights", 1, killed)
        return world.parts.produce(checkpoint)

    with raises(Fenced, "ownership-lost", match="attempt 2 is current and this was attempt 1"):
        world.coordinator.stage("flights", 1, slow)
    assert (world.now().state, world.now().attempt, leftovers(world)) == (State.PLANNED, 2, [])


def test_a_zombie_that_finishes_writing_after_the_commit_changes_nothing(world):
    world.plan()

    def slow(checkpoint: Checkpoint) -> dict:
        if checkpoint.attempt == 1:
            world.stage()
            world.commit()
        return world.parts.produce(checkpoint)

    with pytest.raises(Fenced):
        world.coordinator.stage("flights", 1, slow)
    assert values(world.lake) == [0, 1, 2, 3, 4]
    assert leftovers(world) == []


def test_a_checkpoint_aborted_while_it_was_staged_is_not_staged(world, monkeypatch):
    world.plan()
    meanwhile(monkeypatch, Event.STAGED, world.abort)
    with raises(Fenced, "ownership-lost"):
        world.stage()
    assert (world.now().state, leftovers(world)) == (State.ABORTED, [])


def test_an_owner_that_was_taken_over_may_not_stage_or_abort(world):
    world.plan("run-1")
    world.ended.add("run-1")
    world.plan("run-2")
    with raises(Fenced, "ownership-lost", match="'run-2' has taken it over"):
        world.stage(owner="run-1")
    with raises(Fenced, "ownership-lost", match="'run-2' has taken it over"):
        world.abort(owner="run-1")
    assert (world.now().state, world.now().attempt) == (State.PLANNED, 0)


def failing(world):
    with pytest.raises(ZeroDivisionError):
        world.coordinator.stage("flights", 1, lambda checkpoint: 1 / 0)


@pytest.mark.parametrize("first", [failing, World.abort])
def test_a_process_that_begins_late_takes_nothing_over(world, first):
    since = world.plan().last_seq
    first(world)
    before = world.now()
    with raises(Fenced, "ownership-lost"):
        world.coordinator.stage("flights", 1, world.parts.produce, since=since)
    assert (world.now(), leftovers(world)) == (before, [])
    assert world.coordinator.stage("flights", 1, world.parts.produce, since=before.last_seq).state is State.STAGED


def test_a_failing_transform_leaves_nothing_and_is_tried_again(world):
    world.plan()
    failing(world)
    assert (world.now().state, leftovers(world)) == (State.PLANNED, [])
    world.stage()
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_a_sink_that_fails_to_stage_leaves_nothing_of_the_others(world):
    world.plan()
    world.files.fail("stage", "after")
    with pytest.raises(ConnectionError):
        world.stage()
    assert (world.now().state, leftovers(world)) == (State.PLANNED, [])


def test_outputs_that_are_not_the_sinks_are_refused(world):
    world.plan()
    with raises(InvalidPipeline, "transform-result-invalid"):
        world.coordinator.stage("flights", 1, lambda checkpoint: {"lake": [], "late": []})


def test_records_that_vanish_while_they_are_read_are_noticed(world):
    world.plan()

    def slow(checkpoint: Checkpoint) -> dict:
        rows = world.parts.produce(checkpoint)
        world.source.expire(0, 2)
        return rows

    with raises(SourceLost, "records-expired", match="offsets 0 to 1 no longer exist"):
        world.coordinator.stage("flights", 1, slow)
    assert leftovers(world) == []


def test_what_is_staged_is_kept_when_recording_it_has_an_unknown_outcome(world, monkeypatch):
    world.plan()
    meanwhile(
        monkeypatch,
        Event.STAGED,
        lambda: (_ for _ in ()).throw(OutcomeUnknown("storage", code="test-unknown")),
        after=True,
    )
    with raises(OutcomeUnknown, "test-unknown"):
        world.stage()
    assert len(leftovers(world)) == 2
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_an_epoch_that_was_never_planned_is_refused(world):
    for act in (world.stage, world.commit, world.abort):
        with raises(InvalidPipeline, "no-such-epoch", match="flights has no epoch 9"):
            act(9)


# ---- commit: the decision


def test_the_decision_is_on_record_before_anything_is_published(world, monkeypatch):
    seen = []
    real = FakeSink.commit

    def looking(self, handle, decision, receipts, last):
        on_record = world.now()
        seen.append((on_record.state, on_record.decision, on_record.handles[self.name] == handle))
        return real(self, handle, decision, receipts, last)

    monkeypatch.setattr(FakeSink, "commit", looking)
    world.run("run-1")
    assert seen == [(State.COMMITTING, 1, True)] * 2


def test_nothing_is_published_when_the_decision_could_not_be_recorded(world, monkeypatch):
    world.plan()
    world.stage()
    meanwhile(monkeypatch, Event.COMMITTING, lambda: (_ for _ in ()).throw(OutcomeUnknown("storage")))
    with pytest.raises(OutcomeUnknown):
        world.commit()
    assert (world.now().state, values(world.lake)) == (State.STAGED, [])


def test_committing_one_checkpoint_does_not_decide_another(hourly):
    hourly.staged(2)
    hourly.commit(2)
    assert hourly.now(1).state is State.STAGED
    assert values(hourly.lake) == list(range(10, 20))


def test_what_is_not_staged_is_not_committed(world):
    world.plan()
    with raises(NotCommitted, "not-staged"):
        world.commit()
    world.abort()
    with raises(NotCommitted, "not-staged"):
        world.commit()
    assert values(world.lake) == []


def test_a_commit_that_an_abort_came_before_publishes_nothing(world, monkeypatch):
    world.plan()
    world.stage()
    meanwhile(monkeypatch, Event.COMMITTING, world.abort)
    with raises(NotCommitted, "not-staged"):
        world.commit()
    assert (world.now().state, values(world.lake), leftovers(world)) == (State.ABORTED, [], [])


def test_an_abort_that_a_commit_came_before_touches_nothing(world, monkeypatch):
    world.plan()
    world.stage()
    meanwhile(monkeypatch, Event.ABORTING, world.commit)
    with raises(Fenced, "ownership-lost"):
        world.abort()
    assert (world.now().state, values(world.lake)) == (State.COMMITTED, [0, 1, 2, 3, 4])


def test_an_abort_after_the_decision_is_refused_also_while_a_sink_is_down(world):
    world.plan()
    world.stage()
    world.lake.fail("commit", "before")
    with pytest.raises(OutcomeUnknown):
        world.commit()
    with raises(Fenced, "ownership-lost"):
        world.abort()
    world.commit()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]


def test_two_commits_at_once_publish_once(world, monkeypatch):
    world.plan()
    world.stage()
    meanwhile(monkeypatch, Event.PUBLISHED, world.commit)
    world.commit()
    assert world.events().count("published") == 2
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("event", [Event.PUBLISHED, Event.COMMITTED])
def test_a_commit_that_died_before_it_recorded_what_it_did_is_repeated_without_effect(world, monkeypatch, event):
    world.plan()
    world.stage()
    meanwhile(monkeypatch, event, lambda: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        world.commit()
    assert world.commit().state is State.COMMITTED
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]


# ---- commit: order per sink


def test_later_decision_waits_for_sinks_earlier_one(hourly):
    """What the earlier publication meets, the later one would meet after its decision."""
    hourly.staged(2)
    hourly.lake.fail("commit", "before", "before")
    with raises(OutcomeUnknown, "outcome-unknown", match="epoch 1: whether sink 'lake' was published is not known"):
        hourly.commit(1)
    with pytest.raises(NotCommitted) as waits:
        hourly.commit(2)
    assert waits.value.code == "earlier-decision-open"
    assert (values(hourly.lake), values(hourly.files)) == ([], list(range(10)))
    assert (hourly.now(1).waiting, hourly.now(2).state) == (("lake",), State.STAGED)

    hourly.commit(2)
    assert [(entry["decision"], len(entry["rows"])) for entry in hourly.lake.entries()] == [(1, 10), (2, 10)]
    assert values(hourly.lake) == values(hourly.files) == list(range(20))
    assert {hourly.now(1).state, hourly.now(2).state} == {State.COMMITTED}


def test_doubt_holds_up_its_own_sink_alone(hourly):
    hourly.staged(2)
    hourly.lake.fail("commit", "doubt", "doubt", "doubt")
    for epoch in (1, 2):
        with pytest.raises(InDoubt):
            hourly.commit(epoch)
    assert (values(hourly.lake), values(hourly.files)) == ([], list(range(20)))
    assert (hourly.now(1).waiting, hourly.now(2).waiting) == (("lake",), ("lake",))


def test_decisions_are_published_in_the_order_in_which_they_were_taken(hourly):
    hourly.staged(2)
    for sink in (hourly.lake, hourly.files):
        sink.fail("commit", "before")
    with pytest.raises(OutcomeUnknown):
        hourly.commit(2)  # the later interval is decided first
    hourly.commit(1)
    for sink in (hourly.lake, hourly.files):
        assert [entry["decision"] for entry in sink.entries()] == [1, 2]
        assert values(sink) == [*range(10, 20), *range(10)]


def test_an_answer_that_was_lost_is_not_published_twice(world):
    world.plan()
    world.stage()
    world.lake.fail("commit", "after")
    with raises(OutcomeUnknown, "outcome-unknown"):
        world.commit()
    done = world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]
    assert [done.published[sink]["already"] for sink in ("lake", "files")] == [True, False]


def test_the_first_error_is_raised_after_the_other_sinks_were_published(world):
    world.plan()
    world.stage()
    world.lake.fail("commit", "refused")
    with raises(CannotPublish, "test-refused"):
        world.commit()
    assert (values(world.lake), values(world.files)) == ([], [0, 1, 2, 3, 4])


# ---- a person's word


def test_giving_up_a_sink_settles_the_checkpoint_and_lets_the_next_decision_through(hourly):
    hourly.staged(2)
    hourly.lake.fail("commit", "refused", "refused")
    with pytest.raises(CannotPublish):
        hourly.commit(1)
    given_up = Person(hourly.coordinator).give_up("flights", 1, "lake", "ann", "the table was dropped")
    assert given_up.state is State.COMMITTED
    assert given_up.given_up["lake"].items() >= {"who": "ann", "reason": "the table was dropped"}.items()
    hourly.commit(2)
    assert values(hourly.lake) == list(range(10, 20))
    assert values(hourly.files) == list(range(20))


# ---- handles that are replaced, and doubt


def staged_and_decided(world: World, *failures: str) -> None:
    world.plan()
    world.stage()
    world.lake.fail("commit", *failures)


def test_a_replaced_handle_is_recorded_before_it_is_published(world):
    staged_and_decided(world, "lost")
    assert world.commit().state is State.COMMITTED
    assert world.events()[-5:] == ["committing", "published", "replaced", "published", "committed"]
    assert "made" in world.now().handles["lake"]
    assert values(world.lake) == values(world.files) == list(range(5))


def test_of_two_processes_that_replace_a_handle_one_is_recorded_and_both_go_on_with_it(world, monkeypatch):
    staged_and_decided(world, "lost", "lost")
    meanwhile(monkeypatch, Event.REPLACED, world.commit)
    assert world.commit().state is State.COMMITTED
    assert world.events().count("replaced") == world.events().count("committed") == 1
    assert values(world.lake) == list(range(5))


def test_a_handle_cannot_be_replaced_once_its_sink_is_given_up(world, monkeypatch):
    staged_and_decided(world, "lost", "refused")
    meanwhile(
        monkeypatch, Event.REPLACED, lambda: Person(world.coordinator).give_up("flights", 1, "lake", "ann", "enough")
    )
    with pytest.raises(Fenced):
        world.commit()
    assert world.now().given_up.keys() == {"lake"}
    assert values(world.lake) == []


def test_a_handle_that_is_recorded_while_its_sink_is_given_up_is_fenced_too(world, monkeypatch):
    staged_and_decided(world, "refused", "refused", "lost")
    with pytest.raises(CannotPublish):
        world.commit()
    fenced = []

    def fence(self, handle, decision):
        fenced.append(handle.get("made"))
        if len(fenced) == 1:  # another process writes again what was lost, and dies before it is published
            monkeypatch.setattr(FakeSink, "_publish", lambda *_: (_ for _ in ()).throw(OSError("broken off")))
            with pytest.raises(OutcomeUnknown):
                world.commit()

    monkeypatch.setattr(FakeSink, "fence", fence)
    done = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "the topic was dropped")
    assert list(done.given_up) == ["lake"]
    assert fenced == [None, done.handles["lake"]["made"]]


def test_doubt_is_recorded_once_and_holds_up_its_own_sink_only(world):
    staged_and_decided(world, "doubt", "doubt")
    for _ in range(2):
        with pytest.raises(InDoubt):
            world.commit()
    assert world.events()[-3:] == ["committing", "published", "in_doubt"]
    now = world.now()
    assert (now.state, now.waiting, list(now.in_doubt)) == (State.COMMITTING, ("lake",), ["lake"])
    assert now.in_doubt["lake"]["why"] == "The evidence no longer exists."


@pytest.mark.parametrize(("committed", "rows"), [(True, []), (False, list(range(5)))])
def test_a_persons_word_ends_the_doubt(world, committed, rows):
    staged_and_decided(world, "doubt", "doubt")
    with pytest.raises(InDoubt):
        world.commit()
    done = Person(world.coordinator).resolve_doubt("flights", 1, "lake", committed, "ann", "I have looked")
    assert (done.state, dict(done.in_doubt)) == (State.COMMITTED, {})
    assert values(world.lake) == rows
    said = next(row.body for row in world.state.history("flights") if row.event is Event.REPLACED)
    assert (said["who"], said["reason"]) == ("ann", "I have looked")
    assert said["verdict"] == ("committed" if committed else "aborted")


def test_what_was_judged_is_recorded_only_while_it_is_in_doubt(world, monkeypatch):
    """Judging may end transactions, so it is asked before the row is written, and another may be first meanwhile."""
    staged_and_decided(world, *["doubt"] * 3)
    with pytest.raises(InDoubt):
        world.commit()
    judged, asked = FakeSink.resolve_handle, []

    def after_another(self, handle, committed):
        asked.append(committed)
        if len(asked) == 1:
            Person(Coordinator(world.state, world.parts)).resolve_doubt(
                "flights", 1, "lake", True, "bob", "I was first"
            )
        return judged(self, handle, committed)

    monkeypatch.setattr(FakeSink, "resolve_handle", after_another)
    with raises(InvalidPipeline, "seen-outdated") as refused:
        Person(world.coordinator).resolve_doubt("flights", 1, "lake", False, "ann", "I was slow")
    assert (refused.value.code, asked) == ("seen-outdated", [False, True])
    assert world.now().state is State.COMMITTED
    assert [row.body["who"] for row in world.state.history("flights") if row.event is Event.REPLACED] == ["bob"]


def test_a_lost_write_judges_nothing_again(world, monkeypatch):
    staged_and_decided(world, "doubt", "doubt")
    with pytest.raises(InDoubt):
        world.commit()
    kind = type(world.state)
    append, judged, lost, asked = kind.append, FakeSink.resolve_handle, [], []

    def losing(self, view, row):
        if row.event is Event.REPLACED and not lost:
            lost.append(row)
            raise Conflict
        return append(self, view, row)

    monkeypatch.setattr(kind, "append", losing)
    monkeypatch.setattr(FakeSink, "resolve_handle", lambda *given: asked.append(given) or judged(*given))
    assert (
        Person(world.coordinator).resolve_doubt("flights", 1, "lake", True, "ann", "I have looked").state
        is State.COMMITTED
    )
    assert (len(lost), len(asked)) == (1, 1)


def test_nobody_can_judge_what_is_not_in_doubt(world):
    staged_and_decided(world, "refused")
    with pytest.raises(CannotPublish):
        world.commit()
    before = world.events()
    with raises(InvalidPipeline, "sink-not-in-doubt"):
        Person(world.coordinator).resolve_doubt("flights", 1, "lake", True, "ann", "I feel so")
    assert world.events() == before


def test_a_sink_that_has_the_rows_after_all_is_not_given_up(world):
    world.plan()
    world.stage()
    world.lake.fail("commit", "after")
    with pytest.raises(OutcomeUnknown):
        world.commit()
    settled = Person(world.coordinator).give_up("flights", 1, "lake", "ann", "it does not answer")
    assert settled.state is State.COMMITTED
    assert (settled.given_up, settled.published["lake"]["already"]) == ({}, True)
    assert values(world.lake) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("sink", ["lake", "unheard_of"])
def test_only_what_waits_for_a_sink_can_be_given_up(world, sink):
    world.plan()
    world.stage()
    with raises(InvalidPipeline, "sink-not-waiting"):
        Person(world.coordinator).give_up("flights", 1, sink, "ann", "no reason")
    assert world.now().state is State.STAGED


# ---- recover


def unfinished(world: World, state: State, monkeypatch) -> None:
    """Leave a checkpoint in `state`, its owner dead."""
    world.plan("run-1")
    if state in (State.STAGED, State.COMMITTING):
        world.stage()
    if state is State.COMMITTING:
        world.lake.fail("commit", "before")
        with pytest.raises(OutcomeUnknown):
            world.commit()
    if state is State.ABORTING:
        world.stage()
        world.lake.fail("discard", "before")
        with pytest.raises(OutcomeUnknown):
            world.abort()
    world.ended.add("run-1")


@pytest.mark.parametrize(
    ("left", "settled"),
    [
        (State.PLANNED, State.ABORTED),
        (State.STAGED, State.COMMITTED),
        (State.COMMITTING, State.COMMITTED),
        (State.ABORTING, State.ABORTED),
    ],
)
def test_recovery_settles_whatever_a_dead_owner_left(world, monkeypatch, left, settled):
    unfinished(world, left, monkeypatch)
    assert world.now().state is left
    assert [checkpoint.state for checkpoint in world.recover()] == [settled]
    assert values(world.lake) == values(world.files) == ([0, 1, 2, 3, 4] if settled is State.COMMITTED else [])
    assert leftovers(world) == []
    assert world.recover() == []


@pytest.mark.parametrize("left", [State.PLANNED, State.STAGED])
def test_recovery_leaves_alone_what_a_live_owner_works_on(world, monkeypatch, left):
    unfinished(world, left, monkeypatch)
    world.ended.clear()
    assert [checkpoint.state for checkpoint in world.recover()] == [left]


def test_recovery_tries_everything_and_then_raises_the_first_error(hourly):
    hourly.staged(3)
    hourly.ended.update({"run-1", "run-2", "run-3"})
    hourly.lake.fail("commit", *["refused"] * 9)
    with raises(CannotPublish, "test-refused", match="--give-up lake"):
        hourly.recover()
    assert values(hourly.files) == list(range(10))
    assert [hourly.now(epoch).state for epoch in (1, 2, 3)] == [State.COMMITTING, State.STAGED, State.STAGED]


def test_recovery_removes_what_a_zombie_wrote_after_its_abort(world):
    world.plan()
    zombie = world.stage()
    world.abort()
    world.lake.stage(zombie.transaction("lake"), ["written late"])
    assert len(leftovers(world)) == 1
    world.recover()
    assert leftovers(world) == []


def test_recovery_removes_leftovers_of_lost_attempts_and_keeps_the_current_one(world):
    world.plan()
    zombie = world.stage()
    world.abort()
    current = world.stage()
    world.lake.stage(zombie.transaction("lake"), ["written late"])
    world.recover()
    assert leftovers(world) == [current.transaction("lake").name, current.transaction("files").name]
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_recovery_does_not_touch_an_attempt_that_is_being_staged(world):
    world.plan()

    def slow(checkpoint: Checkpoint) -> dict:
        world.lake.stage(checkpoint.transaction("lake"), ["half"])
        world.recover()
        assert len(leftovers(world)) == 1
        return world.parts.produce(checkpoint)

    world.coordinator.stage("flights", 1, slow)
    world.commit()
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_a_sweep_does_not_touch_an_attempt_that_begins_while_it_looks(world, monkeypatch):
    world.plan()
    world.stage()
    world.abort()
    real = FakeSink.leftovers

    def late(self, prefix):
        if world.now().state is State.ABORTED:
            world.stage()
        return real(self, prefix)

    monkeypatch.setattr(FakeSink, "leftovers", late)
    assert world.coordinator.sweep("flights") == []
    monkeypatch.undo()
    world.commit()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]


def test_a_sweep_finds_what_a_sink_left_that_the_pipeline_has_no_more(world):
    world.plan()
    zombie = world.stage()
    world.abort()
    world.pipeline = replace(world.pipeline, sinks=[DeltaSink("lake", "lake"), DeltaSink("renamed", "files")])
    world.plan("run-2")
    world.stage(owner="run-2")
    world.parts.sink(replace(world.pipeline, sinks=SINKS), "files").stage(zombie.transaction("files"), ["written late"])
    assert [txn.name for txn in world.coordinator.sweep("flights")] == [zombie.transaction("files").name]


def test_what_is_committed_is_reported_to_the_source(world):
    world.run("run-1")
    world.put(5, 6)
    world.run("run-2")
    reported = json.loads((world.parts.folder / "flights.topic.json").read_text())["reported"]
    assert reported == {"flights": {"0": 7}}


def test_a_report_that_fails_is_told_and_stops_nobody(world, monkeypatch):
    def refuse(self, pipeline, ranges):
        raise OutcomeUnknown("the group is in use")

    monkeypatch.setattr(FakeSource, "report", refuse)
    with pytest.warns(RuntimeWarning, match="the group is in use"):
        assert world.run("run-1").state is State.COMMITTED


def test_two_recoveries_at_once_publish_once(world, monkeypatch):
    unfinished(world, State.STAGED, monkeypatch)
    meanwhile(monkeypatch, Event.COMMITTING, world.recover)
    world.recover()
    assert values(world.lake) == values(world.files) == [0, 1, 2, 3, 4]
    assert world.events().count("committing") == 1


def test_every_error_that_stops_a_checkpoint_names_a_command(hourly):
    hourly.staged(2)
    hourly.lake.fail("commit", "refused", "before")
    for epoch in (1, 2):
        with pytest.raises(OnceonlyError) as stopped:
            hourly.commit(epoch)
        assert "onceonly " in stopped.value.todo


# ---- what others see


def test_each_transition_is_told_once(world):
    told = []
    watched = Coordinator(world.state, world.parts, lambda checkpoint, row: told.append(row.event.value))
    watched.plan(world.pipeline, "run-1", world.alive)
    watched.stage("flights", 1, world.parts.produce)
    watched.commit("flights", 1)
    watched.commit("flights", 1)
    assert told == world.events()


def test_pinned_offsets_and_settled_intervals_outlive_tidying(hourly, monkeypatch):
    monkeypatch.setattr("onceonly.statetable.table.MAX_UNMERGED_ROWS", 1)
    hourly.run("run-1", minutes(0, 10))
    hourly.run("run-2", minutes(10, 20))
    hourly.put(4)
    hourly.run("run-3", minutes(20, 30))
    assert hourly.plan("run-4", minutes(0, 10)).epoch == 1
    assert values(hourly.lake) == list(range(30))
