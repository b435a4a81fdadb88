"""Intervals that no checkpoint covers: found, told by plan, and declared as wanted."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from codes import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import Fenced, InvalidPipeline, SourceLost
from onceonly.pipeline.sinks import DeltaSink, StateSink
from onceonly.statetable.gaps import Coverage, find_coverage
from onceonly.views import descriptions, gap_advice, queries
from onceonly.views.summary import Summary, read_summaries

TEN = minutes(0, 10)
MISSING = minutes(10, 30)
NEXT = minutes(30, 40)
LAKE = [DeltaSink("lake", "lake")]


@pytest.fixture
def world(tmp_path) -> World:
    """By intervals, with a record for each of 40 minutes, and twenty minutes of them not covered."""
    world = World(tmp_path, mode="interval", sinks=LAKE)
    world.put(*range(5, 40))
    world.run("run-1", TEN)
    world.run("run-2", NEXT)
    return world


def missing(world: World, name: str = "flights") -> list[Interval]:
    return world.state.gaps([name])[name]


def skip(world: World, interval: Interval = MISSING, reason: str = "a strike") -> Checkpoint:
    return Person(world.coordinator).skip("flights", interval, "ann", reason)


# ---- found


@settings(deadline=None)
@given(st.sets(st.integers(0, 12)).flatmap(lambda pinned: st.permutations([*pinned, *list(pinned)[:3]])))
def test_gaps_are_what_is_not_pinned_between_the_first_and_the_last(pinned):
    found = find_coverage([minutes(n, n + 1) for n in pinned]).gaps
    inside = range(min(pinned, default=0), max(pinned, default=0))
    assert {
        n for n in inside if any(interval.start <= minutes(n, n + 1).start < interval.end for interval in found)
    } == set(inside) - set(pinned)
    assert all(before.end < after.start for before, after in pairwise(found))


@pytest.mark.slow
def test_of_several_pipelines_each_has_its_own(world, tmp_path):
    other = World(tmp_path, name="other", mode="interval", sinks=LAKE, transform="jobs.flights:other")
    for interval in (minutes(0, 5), minutes(6, 7), minutes(12, 13)):
        other.coordinator.plan(other.pipeline, f"run of {interval}", other.alive, interval)
    found = world.state.gaps(["flights", "other"])
    assert found == {"flights": [MISSING], "other": [minutes(5, 6), minutes(7, 12)]}
    assert world.state.gaps([]) == {}


def test_what_is_on_its_way_is_covered_and_closes_the_gap(world):
    world.plan("run-3", minutes(10, 20))
    assert missing(world) == [minutes(20, 30)]
    world.plan("run-4", minutes(20, 30))
    assert missing(world) == []


def test_a_chained_pipeline_has_none(tmp_path):
    world = World(tmp_path, sinks=LAKE)
    world.run("run-1")
    assert missing(world) == []
    assert queries.list_gaps(world.state, [world.now(1)]) == {}


# ---- aborted


def abort(world: World, interval: Interval) -> Checkpoint:
    """A run that was aborted and no longer exists, as after it was failed and deleted."""
    owner = f"run of {interval}"
    checkpoint = world.plan(owner, interval)
    world.stage(checkpoint.epoch, owner)
    return world.abort(checkpoint.epoch)


FIRST, SECOND, THIRD = minutes(20, 30), minutes(30, 40), minutes(40, 50)


@pytest.fixture
def days(tmp_path) -> World:
    """Three days of ten minutes; the second was aborted after it was staged, and the third committed."""
    days = World(tmp_path, mode="interval", sinks=LAKE)
    days.put(*range(5, 70))
    days.run("run-1", FIRST)
    abort(days, SECOND)
    days.run("run-3", THIRD)
    return days


def summary(world: World) -> Summary:
    return read_summaries(world.state, ["flights"])[0]["flights"]


def test_an_aborted_day_is_missing_until_it_is_run(days):
    assert missing(days) == [SECOND]
    assert summary(days).complete_until == SECOND.start
    days.plan("run of the same day", SECOND)
    assert missing(days) == []
    assert summary(days).complete_until == SECOND.start  # it is on its way
    days.stage(2)
    days.commit(2)
    assert missing(days) == []
    assert summary(days).complete_until == THIRD.end


def test_an_aborted_day_is_missing_until_it_is_skipped(days):
    skip(days, SECOND)
    assert missing(days) == []
    assert summary(days).complete_until == THIRD.end


def test_every_later_plan_names_an_aborted_day(days):
    for interval in (THIRD, minutes(50, 60), minutes(60, 70)):
        planned = days.coordinator.plan(days.pipeline, f"run of {interval}", days.alive, interval)
        assert planned.gaps == (SECOND,)
        assert planned.gap == (SECOND if interval == THIRD else None)
    assert days.coordinator.plan(days.pipeline, "run-1", days.alive, FIRST).gaps == ()


@pytest.mark.parametrize("interval", [minutes(10, 20), minutes(50, 60)])
def test_an_aborted_day_at_either_end_is_missing(days, interval):
    abort(days, interval)
    assert missing(days) == sorted([SECOND, interval], key=lambda gap: gap.start)


@pytest.mark.parametrize("interval", [minutes(0, 5), minutes(55, 58)])
def test_an_accidental_interval_that_was_aborted_bounds_no_gap(days, interval):
    skip(days, SECOND)
    abort(days, interval)
    assert missing(days) == [interval]
    skip(days, interval, "a slip of the keyboard")
    assert missing(days) == []
    assert summary(days).complete_until == THIRD.end
    assert days.coordinator.plan(days.pipeline, "run-4", days.alive, minutes(50, 55)).gaps == ()


def test_an_aborted_interval_within_a_gap_is_a_gap_of_its_own(world):
    abort(world, minutes(15, 20))
    gaps = [minutes(10, 15), minutes(15, 20), minutes(20, 30)]
    assert missing(world) == gaps
    for number, gap in enumerate(gaps, 1):
        skip(world, gap)
        assert missing(world) == gaps[number:]


def test_an_aborted_replacement_leaves_the_day_published(days):
    skip(days, SECOND)
    again = days.coordinator.plan(days.pipeline, "run-4", days.alive, FIRST, Reprocess("run-4, 1")).checkpoint
    assert missing(days) == []
    assert summary(days).complete_until == THIRD.end  # the rows in its place are published
    days.abort(again.epoch)
    assert missing(days) == []
    assert summary(days).complete_until == THIRD.end


def test_a_repair_does_not_stand_for_its_interval(tmp_path):
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 60))
    world.run("run-1", TEN)
    world.run("run-2", minutes(20, 30))
    repair = Reprocess("run-3, 1", keep=("files",), who="ann", reason="wrong rates")
    world.coordinator.plan(world.pipeline, "run-3", world.alive, TEN, repair)
    world.stage(3)
    world.commit(3)
    assert world.now(3).is_repair
    assert missing(world) == [minutes(10, 20)]
    assert summary(world).complete_until == TEN.end


def test_a_replacement_that_is_read_beside_merged_rows_ends_no_interval():
    covered = [minutes(0, 100), minutes(10, 20), minutes(100, 110)]  # the first one stands for many that meet
    assert find_coverage(covered).gaps == ()


def test_a_skipped_interval_ends_what_is_covered_only_where_it_joins_on():
    assert find_coverage([TEN], [minutes(20, 30), minutes(10, 20)]).end == minutes(20, 30).end
    assert find_coverage([TEN], [minutes(20, 30)]).end == TEN.end
    assert find_coverage([], [TEN]) == Coverage()


# ---- told by plan


def test_plan_tells_of_what_is_left_out_just_before(world):
    def gap_before(interval: Interval) -> Interval | None:
        return world.coordinator.plan(world.pipeline, f"run of {interval}", world.alive, interval).gap

    assert gap_before(minutes(40, 50)) is None
    assert gap_before(minutes(25, 30)) == minutes(10, 25)
    assert gap_before(minutes(10, 20)) is None
    assert gap_before(minutes(-20, -10)) is None  # nothing is before the first one
    assert gap_before(TEN) == minutes(-10, 0)  # also where there is nothing else to do


def test_a_gap_of_more_than_a_month_is_told_as_well(world):
    month = timedelta(days=40)
    late = Interval(NEXT.start - month - timedelta(minutes=10), NEXT.start - month)
    world.plan("run-3", late)
    assert world.state.view("flights").gaps_before(TEN) == [Interval(late.end, TEN.start)]


def test_the_words_name_the_gap_and_what_can_be_done():
    day = Interval(datetime(2013, 1, 3, tzinfo=UTC), datetime(2013, 1, 4, tzinfo=UTC))
    what, why, todo = gap_advice.describe_gap("flights", day).split("\n")
    assert what == "flights: no checkpoint covers [2013-01-03T00:00:00Z, 2013-01-04T00:00:00Z)."
    assert "catchup=False" in why
    assert "onceonly skip flights --interval 2013-01-03T00:00:00Z 2013-01-04T00:00:00Z --reason" in todo


def test_reasons_are_given_for_the_first_gap_alone():
    first, second = gap_advice.describe_gaps("flights", [minutes(0, 10), minutes(20, 30)])
    assert gap_advice.GAP_REASONS in first
    assert gap_advice.GAP_REASONS not in second
    assert second.startswith(f"flights: no checkpoint covers {minutes(20, 30)}.\nRun what is missing: ")


def test_of_very_many_gaps_the_newest_are_told_one_by_one():
    told = gap_advice.describe_gaps("flights", [minutes(10 * n, 10 * n + 5) for n in range(20)])
    assert len(told) == 1 + gap_advice.MAX_GAPS_SHOWN
    assert told[0] == "flights: 15 more before these (onceonly status flights --json)"
    assert str(minutes(190, 195)) in told[-1]


# ---- an interval that cannot be staged any more


def test_an_aborted_interval_whose_records_expired_is_skipped(world):
    world.put(*range(40, 60))
    stuck = world.plan("run-3", minutes(40, 50))
    world.source.expire(0, 45)
    with pytest.raises(SourceLost) as lost:
        world.stage(stuck.epoch, "run-3")
    assert "onceonly skip flights --interval" in lost.value.todo
    with raises(InvalidPipeline, "interval-overlaps"):
        skip(world, minutes(40, 50))
    world.abort(stuck.epoch)
    skipped = skip(world, minutes(40, 50), "they are gone")
    assert (skipped.state, skipped.skipped) == (State.COMMITTED, "they are gone")
    assert skipped.ranges == stuck.ranges
    assert skip(world, minutes(40, 50), "they are gone").epoch == skipped.epoch
    assert world.plan("run-3", minutes(40, 50)).epoch == skipped.epoch
    with pytest.raises(Fenced):
        world.stage(stuck.epoch)
    world.run("run-4", minutes(50, 60))
    assert values(world.lake) == [*range(10), *range(30, 40), *range(50, 60)]
    assert missing(world) == [MISSING]


def test_an_interval_whose_plan_finds_no_records_is_skipped_as_a_gap(world):
    world.put(*range(40, 60))
    world.source.expire(0, 42)
    with pytest.raises(SourceLost) as lost:
        world.plan("run-3", minutes(40, 45))
    assert "once a later one has run" in lost.value.todo
    world.run("run-4", minutes(45, 60))
    assert skip(world, minutes(40, 45)).skipped == "a strike"
    assert missing(world) == [MISSING]
    assert values(world.lake) == [*range(10), *range(30, 40), *range(45, 60)]


# ---- declared as wanted


def test_a_gap_that_is_wanted_is_settled_and_told_no_more(world):
    skipped = skip(world)
    assert (skipped.state, skipped.skipped, skipped.owner) == (State.COMMITTED, "a strike", "ann")
    assert skipped.ranges[0].partitions == {0: (10, 30)}
    assert missing(world) == []
    assert world.coordinator.plan(world.pipeline, "again", world.alive, NEXT).gap is None
    assert values(world.lake) == [*range(10), *range(30, 40)]
    assert "skipped by ann: a strike" in descriptions.describe_coverage(skipped)
    assert (queries.total_rows(skipped), queries.to_json(skipped)["skipped"]) == (0, "a strike")


def test_said_twice_it_is_recorded_once(world):
    assert skip(world) == skip(world, reason="again")
    assert world.events().count("empty") == 1


def test_the_pipeline_goes_on_behind_it(world):
    skip(world)
    world.put(45)
    world.run("run-3", minutes(40, 50))
    assert values(world.lake) == [*range(10), *range(30, 40), 45]


def test_a_run_of_what_is_skipped_is_no_work_unless_it_asks_for_it(world):
    skip(world)
    known = world.coordinator.plan(world.pipeline, "run-3", world.alive, MISSING)
    assert (known.checkpoint, known.fresh) == (world.now(3), False)
    wanted = world.coordinator.plan(world.pipeline, "run-3", world.alive, MISSING, Reprocess("run-3, 1")).checkpoint
    assert (wanted.epoch, wanted.replaces, wanted.ranges) == (4, 3, world.now(3).ranges)
    world.stage(4)
    world.commit(4)
    assert sorted(values(world.lake)) == list(range(40))
    with raises(InvalidPipeline, "interval-overlaps", match="Epoch 4 covers"):
        skip(world)


def test_a_part_of_what_is_skipped_is_refused_with_the_whole(world):
    skip(world)
    with raises(InvalidPipeline, "interval-overlaps") as refused:
        world.plan("run-3", minutes(10, 20))
    assert "processed again although it is skipped" in str(refused.value)


@pytest.mark.parametrize(
    ("interval", "code", "why"),
    [
        (minutes(5, 30), "interval-overlaps", r"Epoch 1 covers"),
        (TEN, "interval-overlaps", r"Epoch 1 covers .* is committed"),
        (minutes(10, 20), "not-a-gap", r"The gap it lies in is \[2013-01-01T12:10:00Z, 2013-01-01T12:30:00Z\)"),
        (minutes(12, 30), "not-a-gap", r"The gap it lies in is \[2013-01-01T12:10:00Z, 2013-01-01T12:30:00Z\)"),
        (minutes(40, 50), "not-a-gap", r"does not lie between two intervals"),
        (minutes(-10, 0), "not-a-gap", r"does not lie between two intervals"),
    ],
)
def test_only_a_whole_gap_can_be_skipped(world, interval, code, why):
    before = world.events()
    with raises(InvalidPipeline, code, match=why):
        skip(world, interval)
    assert world.events() == before


def test_a_run_that_comes_first_wins(world, monkeypatch):
    """The run pins its offsets between the look of `skip` and its row."""
    real = type(world.state).append

    def late(state, view, row):
        monkeypatch.setattr(type(world.state), "append", real)
        world.plan("run-3", minutes(10, 20))
        return real(state, view, row)

    monkeypatch.setattr(type(world.state), "append", late)
    with raises(InvalidPipeline, "seen-outdated", match="epoch 3 planned by run-3"):
        skip(world)
    assert missing(world) == [minutes(20, 30)]


def test_chained_pipelines_and_those_with_state_have_nothing_to_skip(tmp_path):
    chained = World(tmp_path / "chained", sinks=LAKE)
    with raises(InvalidPipeline, "mode-mismatch"):
        skip(chained)
    chained.run("run-1")
    with raises(InvalidPipeline, "mode-mismatch"):
        skip(chained)
    total = StateSink("total", schema="n BIGINT", key=["n"])
    keeps = World(tmp_path / "state", mode="interval", sinks=[*LAKE, total])
    keeps.plan("run-1", TEN)
    with raises(InvalidPipeline, "pipeline-keeps-state"):
        skip(keeps)


def test_gap_of_several_intervals_has_a_command_for_each():
    day, start = timedelta(days=1), datetime(2026, 11, 4, tzinfo=UTC)
    gap = Interval(start, start + 4 * day)
    text = gap_advice.describe_gap("flights", gap, "flights.py:flights", width=day)
    commands = [line.strip() for line in text.splitlines() if line.strip().startswith("onceonly run")]
    assert commands == [
        f"onceonly run flights.py:flights --interval 2026-11-0{n}T00:00:00Z 2026-11-0{n + 1}T00:00:00Z"
        for n in range(4, 8)
    ]
    assert "onceonly run" not in gap_advice.describe_gap("flights", gap, dag_id="daily", width=day)
    assert "airflow backfill create --dag-id daily" in gap_advice.describe_gap(
        "flights", gap, dag_id="daily", width=day
    )


def test_command_comes_first_where_no_airflow_is_known():
    for width in (None, timedelta(minutes=10), timedelta(minutes=2)):
        text = gap_advice.describe_gap("flights", MISSING, "flights.py:flights", width=width)
        assert text.index("onceonly run flights.py:flights") < text.index("airflow backfill create")
    text = gap_advice.describe_gap("flights", MISSING, "flights.py:flights", "daily", MISSING.end - MISSING.start)
    assert text.index("onceonly run flights.py:flights") > text.index("airflow backfill create --dag-id daily")


def test_gap_that_no_width_fills_is_told_as_one():
    for width in (None, timedelta(minutes=7), timedelta(hours=1)):
        assert gap_advice.describe_gap("flights", MISSING, width=width).count("onceonly run") == 1
    assert "one checkpoint for all of it" not in gap_advice.describe_gap("flights", TEN, width=timedelta(minutes=10))


@pytest.mark.parametrize(
    ("hours", "usual", "is_unusual"),
    [(96, 24, True), (1, 24, True), (23, 24, False), (25, 24, False), (28 * 24, 31 * 24, False), (24, None, False)],
)
def test_unusual_width_is_told(hours, usual, is_unusual):
    start = datetime(2026, 11, 4, tzinfo=UTC)
    width = timedelta(hours=usual) if usual else None
    text = gap_advice.describe_unusual_width(Interval(start, start + timedelta(hours=hours)), width, "f.py:p")
    assert bool(text) == is_unusual
    assert text.count("onceonly run f.py:p") == (4 if hours == 96 else 0)


def test_usual_width_is_that_of_most_recent_intervals(world):
    assert queries.read_usual_width(world.state, "flights") == timedelta(minutes=10)
    world.run("run-3", minutes(40, 70))
    assert queries.read_usual_width(world.state, "flights") == timedelta(minutes=10)
    world.run("run-4", minutes(70, 100))
    assert queries.read_usual_width(world.state, "flights") is None
