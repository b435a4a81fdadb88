"""A pipeline after another one: how far it reads the table between them, and what it records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from hypothesis import given
from person import Person
from unit.backfills import RUNS, check_backfill, few
from unit.chain import MORE, NEXT, TEN, Chain, Parts, minutes
from unit.lightdelta import LightDelta

from onceonly.checkpoint.model import State
from onceonly.coordinator import upstream
from onceonly.coordinator.boundaries import TopicPlanner
from onceonly.errors import Busy, InvalidPipeline, OnceonlyError, OutcomeUnknown, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import DeltaSource, KafkaSource
from onceonly.views import provenance as lineage

pytestmark = pytest.mark.slow

READ = "after 'first': table 'lake', which its sink 'lake' writes, is read"


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    made = Chain(tmp_path)
    made.put(*range(5))
    return made


@pytest.fixture
def days(tmp_path: Path) -> Chain:
    """By intervals: the first pipeline has published two."""
    made = Chain(tmp_path, "interval")
    made.put(*range(25))
    made.run(made.first, TEN)
    made.run(made.first, NEXT)
    return made


def more(numbers: Any) -> list[int]:
    return [number + MORE for number in numbers]


# ---- in chained mode


def test_it_reads_up_to_the_newest_committed_checkpoint(chain: Chain) -> None:
    chain.run(chain.first)
    chain.put(5, 6)
    chain.stage(chain.plan(chain.first, owner="later"))
    done = chain.run(chain.second)
    assert done.after == {"first": (1,)}
    assert chain.rows("out") == more(range(5))
    chain.through.commit("first", 2)
    assert chain.run(chain.second).after == {"first": (2,)}
    assert chain.rows("out") == more(range(7))


def test_what_others_wrote_is_read_if_it_is_below(chain: Chain) -> None:
    chain.run(chain.first)
    chain.write(77)
    chain.run(chain.second)
    assert chain.rows("out") == more(range(5))
    chain.put(5)
    chain.run(chain.first)
    chain.run(chain.second)
    assert chain.rows("out") == more([*range(6), 77])


def test_there_is_nothing_to_do_until_more_is_published(chain: Chain) -> None:
    chain.run(chain.first)
    chain.run(chain.second)
    chain.write(77)
    assert chain.run(chain.second) is None


def test_nothing_is_published_yet(chain: Chain) -> None:
    chain.stage(chain.plan(chain.first))
    assert chain.run(chain.second) is None


class Silent(LightDelta):
    """Its store gives no answer to a commit."""

    def commit(self, *_: Any) -> Any:
        raise OutcomeUnknown("what", "why", "todo")


def test_a_decision_that_another_sink_has_not_carried_out_is_no_end(tmp_path: Path) -> None:
    """The checkpoint is not committed, although this table shows it."""
    chain = Chain(tmp_path)
    other = chain.parts.folder / "other"
    chain.put(1)
    sinks = [DeltaSink("lake", "lake"), DeltaSink("other", "other")]
    first = Pipeline(name="first", source=KafkaSource("flights"), transform="jobs:first", sinks=sinks)
    chain.stage(chain.plan(first))
    with pytest.MonkeyPatch.context() as patch:
        sink = Parts.sink
        patch.setattr(
            Parts, "sink", lambda parts, of, name: Silent(other, name) if name == "other" else sink(parts, of, name)
        )
        with pytest.raises(OutcomeUnknown):
            chain.through.commit("first", 1)
    assert (chain.rows("lake"), chain.run(chain.second)) == ([1], None)
    chain.through.commit("first", 1)
    chain.run(chain.second)
    assert chain.rows("out") == more([1])


def test_it_is_recorded_and_found_from_both_sides(chain: Chain) -> None:
    for number in (5, 6, 7):
        chain.run(chain.first)
        chain.put(number)
    chain.run(chain.second)
    chain.run(chain.first)
    chain.run(chain.second)
    found = lineage.trace_checkpoint(chain.state, chain.now("second", 1))
    (read,) = found["reads"]
    assert (read["published_by"], read["sink"]) == ("first", "lake")
    assert [checkpoint["epoch"] for checkpoint in read["checkpoints"]] == [1, 2, 3]
    assert [checkpoint["reads"][0]["partitions"]["0"] for checkpoint in read["checkpoints"]] == [[0, 5], [5, 6], [6, 7]]
    assert found["read_by"] == []
    by_second = [lineage.trace_checkpoint(chain.state, chain.now("first", epoch))["read_by"] for epoch in (1, 2, 3, 4)]
    assert by_second == [[{"pipeline": "second", "epoch": epoch}] for epoch in (1, 1, 1, 2)]


def test_a_rewind_and_what_follows_is_told_apart(chain: Chain) -> None:
    for number in (5, 6):
        chain.run(chain.first)
        chain.run(chain.second)
        chain.put(number)
    Person(chain.through).rewind("second", 1, "ann", "wrong")
    done = chain.run(chain.second)
    assert (done.epoch, done.after) == (4, {"first": (2,)})
    (read,) = lineage.trace_checkpoint(chain.state, done)["reads"]
    assert [checkpoint["epoch"] for checkpoint in read["checkpoints"]] == [2]
    assert chain.rows("out") == more(range(6))


def test_the_entry_that_published_it_has_expired(chain: Chain) -> None:
    chain.run(chain.first)
    chain.write(77)
    DeltaTable(chain.parts.folder / "lake").create_checkpoint()
    chain.entry(1).unlink()
    with raises(InvalidPipeline, "upstream-entries-expired"):
        chain.run(chain.second)


@pytest.mark.parametrize(
    ("change", "code", "why"),
    [({"version": 2}, "source-shrank", "ends before"), ({"table_id": "x"}, "source-recreated", "is not the one")],
)
def test_a_table_that_was_restored_or_made_again_meanwhile(
    chain: Chain, change: dict[str, Any], code: str, why: str
) -> None:
    done = chain.run(chain.first)
    found = chain.parts.sink(chain.first, "lake").locate_rows(done.handles["lake"], 1)
    assert found.version == 1
    planner = TopicPlanner(chain.second, chain.parts.sources(chain.second)["lake"], chain.second.sources[0])
    with raises(SourceLost, code, match=why):
        planner.range(chain.state.view("second"), (replace(found, **change),))


# ---- by intervals


def test_an_interval_has_exactly_the_rows_of_that_interval(days: Chain) -> None:
    done = days.run(days.second, NEXT)
    assert (done.after, days.rows("out")) == ({"first": (2,)}, more(range(10, 20)))
    days.run(days.second, TEN)
    assert days.rows("out") == more(range(20))


def test_an_interval_of_several(days: Chain) -> None:
    days.write(77)
    done = days.run(days.second, minutes(0, 20))
    assert (done.after, days.rows("out")) == ({"first": (1, 2)}, more(range(20)))


def test_it_waits_until_all_of_it_is_committed(days: Chain) -> None:
    with raises(Busy, "upstream-not-complete"):
        days.run(days.second, minutes(10, 30))
    planned = days.plan(days.first, minutes(20, 25))
    with raises(Busy, "upstream-not-complete", match="epoch 3 is planned"):
        days.run(days.second, minutes(20, 25))
    days.stage(planned)
    days.through.commit("first", 3)
    days.run(days.second, minutes(20, 25))
    assert days.rows("out") == more(range(20, 25))


def test_it_waits_while_the_interval_is_being_replaced(days: Chain) -> None:
    days.plan(days.first, TEN, "again", "again, 1")
    with raises(Busy, "upstream-not-complete", match="epoch 3 is planned"):
        days.run(days.second, TEN)
    days.through.abort("first", 3, "told to")
    assert days.run(days.second, TEN).after == {"first": (1,)}


def test_an_interval_without_records(days: Chain) -> None:
    assert days.run(days.first, minutes(30, 40)).state is State.COMMITTED
    done = days.run(days.second, minutes(30, 40))
    assert (done.state, done.after, done.handles) == (State.COMMITTED, {"first": (3,)}, {})


def test_processing_both_again_is_as_if_they_had_run_once(days: Chain) -> None:
    days.run(days.second, TEN)
    days.run(days.second, NEXT)
    days.added = 100
    days.run(days.first, TEN, "again, 1")
    assert days.rows("out") == more(range(20))
    done = days.run(days.second, TEN, "again, 1")
    assert (done.after, done.replaces) == ({"first": (3,)}, 1)
    assert days.rows("out") == more([*range(10, 20), *range(100, 110)])
    (read,) = lineage.trace_checkpoint(days.state, days.now("second", 1))["reads"]
    assert [(checkpoint["epoch"], checkpoint["replaced_by"]) for checkpoint in read["checkpoints"]] == [(1, 3)]


def test_a_request_is_met_again_if_what_it_read_was_replaced_since(days: Chain) -> None:
    days.run(days.second, TEN)
    for request in ("again, 1", "again, 2"):
        days.added += 100
        days.run(days.first, TEN, request)
        days.run(days.second, TEN, "again, 1")
        assert days.rows("out") == more(range(days.added, days.added + 10))
    assert days.run(days.second, TEN, "again, 1").epoch == 3


def test_what_was_planned_before_reads_what_is_published_now(days: Chain) -> None:
    planned = days.plan(days.second, TEN, "mine")
    days.added = 100
    days.run(days.first, TEN, "again, 1")
    days.ended = {"mine"}
    done = days.run(days.second, TEN, "again, 1")
    assert (planned.epoch, planned.after) == (1, {"first": (1,)})
    assert (done.epoch, done.after, done.replaces) == (1, {"first": (3,)}, None)
    assert days.rows("out") == more(range(100, 110))


def test_a_stage_of_what_was_pinned_before_records_nothing(days: Chain) -> None:
    planned = days.plan(days.second, TEN, "mine")

    def produce(claimed: Any) -> Any:
        days.run(days.first, TEN, "again, 1")
        days.plan(days.second, TEN, "mine")
        return {"out": days.parts.numbers(claimed)}

    with raises(OnceonlyError, "ownership-lost"):
        days.through.stage("second", planned.epoch, produce)
    assert days.now("second", 1).after == {"first": (3,)}


def test_what_is_staged_is_published_and_then_replaced(days: Chain) -> None:
    days.stage(days.plan(days.second, TEN, "mine"))
    days.added = 100
    days.run(days.first, TEN, "again, 1")
    with raises(Busy, "checkpoint-open"):
        days.plan(days.second, TEN, "mine", "again, 1")
    days.ended = {"mine"}
    done = days.run(days.second, TEN, "again, 1")
    assert (done.epoch, done.replaces) == (2, 1)
    assert days.rows("out") == more(range(100, 110))


def test_an_interval_that_was_skipped_and_run_later(days: Chain) -> None:
    days.run(days.first, minutes(22, 25))
    Person(days.through).skip("first", minutes(20, 22), "ann", "a strike")
    done = days.run(days.second, minutes(20, 22))
    assert (done.state, done.handles) == (State.COMMITTED, {})
    days.run(days.first, minutes(20, 22), "again, 1")
    days.run(days.second, minutes(20, 22), "again, 1")
    assert days.rows("out") == more([20, 21])


def test_rows_are_told_by_their_folder_where_the_entry_has_expired(days: Chain) -> None:
    days.write(77)
    DeltaTable(days.parts.folder / "lake").create_checkpoint()
    for version in (0, 1, 2):
        days.entry(version).unlink()
    days.run(days.second, TEN)
    assert days.rows("out") == more(range(10))


def test_rows_that_were_moved_are_not_guessed(days: Chain) -> None:
    DeltaTable(days.parts.folder / "lake").optimize.compact()
    days.run(days.second, TEN)
    assert days.rows("out") == more(range(10))
    DeltaTable(days.parts.folder / "lake").create_checkpoint()
    for version in (0, 1, 2):
        days.entry(version).unlink()
    with raises(SourceLost, "published-rows-rewritten"):
        days.run(days.second, NEXT)


def test_rows_that_a_vacuum_has_taken(days: Chain) -> None:
    planned = days.plan(days.second, TEN)
    days.run(days.first, TEN, "again, 1")
    lake = DeltaTable(days.parts.folder / "lake")
    lake.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    with raises(SourceLost, "source-files-missing"):
        days.stage(planned)


@few
@given(RUNS)
def test_a_backfill_of_both_equals_the_truth_wherever_runs_have_ended(tmp_path_factory: Any, runs: list[Any]) -> None:
    check_backfill(Chain(tmp_path_factory.mktemp("chain"), "interval"), runs)


# ---- refused


def require_refusal(chain: Chain, second: Pipeline, code: str, match: str, interval: Any = None) -> None:
    with raises(InvalidPipeline, code, match=match):
        chain.plan(second, interval)
    assert chain.state.view(second.name).latest is None


def require_refusals(chain: Chain, second: Pipeline, code: str, match: str, interval: Any = None) -> None:
    """Refused by `onceonly check`, as by a plan."""
    require_refusal(chain, second, code, match, interval)
    with raises(InvalidPipeline, code, match=match):
        checked(chain, second)


def checked(chain: Chain, second: Pipeline) -> list[str]:
    parts: Any = chain.parts
    return upstream.check_upstreams(chain.state, parts, second)


def test_a_pipeline_that_is_not_known(chain: Chain) -> None:
    second = chain.pipeline("second", DeltaSource("lake"), "out", after=["frist"])
    require_refusals(chain, second, "upstream-missing", "'frist', which is not known")


def test_a_pipeline_that_writes_another_table(chain: Chain) -> None:
    chain.run(chain.first)
    second = chain.pipeline("second", DeltaSource("elsewhere"), "out", after=["first"])
    require_refusals(chain, second, "upstream-unrelated", "none of its tables")


def test_a_pipeline_that_comes_after_itself(chain: Chain) -> None:
    chain.write(1, path="out")
    both = [KafkaSource("flights"), DeltaSource("out")]
    chain.run(chain.pipeline("first", both, "lake"))
    chain.run(chain.second)
    circle = chain.pipeline("first", both, "lake", after=["second"])
    for ask in (lambda: chain.plan(circle, owner="other"), lambda: checked(chain, circle)):
        with raises(InvalidPipeline, "upstream-circle"):
            ask()


def test_two_writers_of_one_table(chain: Chain) -> None:
    other = chain.pipeline("other", KafkaSource("flights"), "lake", transform="jobs:other")
    chain.run(chain.first)
    chain.run(other)
    second = chain.pipeline("second", DeltaSource("lake"), "out", after=["first", "other"])
    require_refusals(chain, second, "upstreams-share-table", "at once")


def test_intervals_after_a_chain(chain: Chain) -> None:
    chain.run(chain.first)
    chain.mode = "interval"
    second = chain.pipeline("second", DeltaSource("lake"), "out", after=["first"])
    require_refusals(chain, second, "upstream-without-intervals", "cannot follow", TEN)


def test_an_interval_that_cuts_another_in_two(days: Chain) -> None:
    require_refusal(days, days.second, "interval-split", "splits one of", minutes(5, 10))


def test_an_interval_of_changes(days: Chain) -> None:
    sink = days.parts.sink(days.first, "lake")
    handle = {**days.now("first", 1).handles["lake"], "merge": {"keys": ["n"], "order_by": ["n"]}}
    assert not sink.locate_rows(handle, 1).is_whole_version


def test_a_check_tells_how_far_a_table_may_be_read(chain: Chain) -> None:
    chain.plan(chain.first)
    assert checked(chain, chain.second) == [f"{READ} when its first checkpoint is committed"]
    chain.stage(chain.now("first", 1))
    chain.through.commit("first", 1)
    assert checked(chain, chain.second) == [f"{READ} up to epoch 1, the last one committed"]
    assert chain.state.pipelines() == ["first"], "a check writes nothing"


def test_a_check_finds_changes_before_an_interval_of_them_is_planned(days: Chain) -> None:
    assert checked(days, days.second) == [f"{READ} interval by interval"]
    merging = DeltaSink("lake", "lake", merge=Merge(keys=["n"], order_by=["at"]))
    days.plan(replace(days.first, sinks=[merging]), minutes(20, 30), "later")
    with raises(InvalidPipeline, "upstream-merges"):
        checked(days, days.second)


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        ({"after": "first"}, "option-invalid", "is a text"),
        ({"after": ["second"]}, "names-not-distinct", "names a pipeline twice, or this one"),
        ({"after": ["first", "first"]}, "names-not-distinct", "names a pipeline twice, or this one"),
        ({"source": KafkaSource("flights")}, "options-conflict", "none of the sources is one"),
        ({"source": DeltaSource("lake", max_versions=1)}, "options-conflict", "max_versions"),
        ({"source": DeltaSource("lake", changes=True), "mode": "interval"}, "options-conflict", "changes of 'lake'"),
    ],
)
def test_a_definition(changes: dict[str, Any], code: str, why: str) -> None:
    given_ = {"name": "second", "source": DeltaSource("lake"), "transform": "a:b", "after": ["first"], **changes}
    with raises(InvalidPipeline, code, match=why):
        Pipeline(sinks=[DeltaSink("out", "out")], **given_)


def test_a_definition_without_it_is_stored_as_before() -> None:
    plain = Pipeline(name="p", source=KafkaSource("t"), transform="a:b", sinks=[DeltaSink("out", "out")])
    assert "after" not in plain.to_json()
    chained = Pipeline(**{**vars(plain), "source": DeltaSource("lake"), "after": ["first"]})
    assert Pipeline.from_json(chained.to_json()) == chained
