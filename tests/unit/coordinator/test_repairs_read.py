"""What a repair brings to a pipeline that reads the sink: what was missing there, and nothing that it has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from person import Person
from unit.backfills import few
from unit.chain import MORE, NEXT, TEN, Chain, minutes
from unit.coordinator.test_capabilities import Bare
from unit.filechain import FileChain

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.views import provenance

pytestmark = pytest.mark.slow

Make = Callable[..., Chain]
THIRD = minutes(20, 30)


class Repaired:
    """The pipeline `first` writes 'lake', which `second` reads, and 'other', which it does not."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.write("lake", "other")
        self.requests = 0

    def write(self, *sinks: str) -> None:
        """`first` writes these from now on."""
        kind = FileSink if isinstance(self.chain, FileChain) else DeltaSink
        options = {"format": "json"} if kind is FileSink else {}
        self.chain.first = replace(self.chain.first, sinks=[kind(name, name, **options) for name in sinks])

    def stage(self, planned: Checkpoint, added: int = 0) -> Checkpoint:
        chain = self.chain

        def produce(claimed: Checkpoint) -> Any:
            adds = added if planned.pipeline == "first" else MORE
            rows = [number + adds for number in chain.parts.numbers(claimed)]
            return {sink.name: rows for sink in claimed.definition.pipeline.sinks}

        return chain.through.stage(planned.pipeline, planned.epoch, produce)

    def run(self, interval: Interval | None = None, added: int = 0) -> Checkpoint:
        done = self._run(self.chain.first, interval, None, added)
        assert done is not None
        return done

    def repair(self, interval: Interval | None = None, added: int = 0, **wish: Any) -> Checkpoint:
        self.requests += 1
        done = self._run(self.chain.first, interval, Reprocess(f"request {self.requests}", **wish), added)
        assert done is not None
        return done

    def read(self, interval: Interval | None = None, again: bool = False) -> Checkpoint | None:
        """One checkpoint of the second pipeline; None: there is nothing new."""
        self.requests += 1
        request = Reprocess(f"request {self.requests}") if again else None
        return self._run(self.chain.second, interval, request, 0)

    def _run(
        self, pipeline: Pipeline, interval: Interval | None, asked: Reprocess | None, added: int
    ) -> Checkpoint | None:
        chain = self.chain
        owner = f"run-{pipeline.name}-{chain.state.view(pipeline.name).head.seq}"
        planned = chain.through.plan(pipeline, owner, chain.alive, interval, asked, instance=owner).checkpoint
        if planned is None or planned.state.is_settled:
            return planned
        self.stage(planned, added)
        return chain.through.commit(planned.pipeline, planned.epoch)

    def pin(self) -> Checkpoint | None:
        """The second pipeline plans, and its run ends there."""
        self.requests += 1
        owner = f"pinned-{self.requests}"
        planned = self.chain.through.plan(self.chain.second, owner, self.chain.alive, instance=owner).checkpoint
        self.chain.ended.add(owner)
        return planned

    @property
    def out(self) -> list[int]:
        """What the second pipeline has published, without what it adds."""
        return [number - MORE for number in self.chain.rows("out")]


@pytest.fixture(params=[Chain, FileChain])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def make(mode: str, reader: str = "chained") -> Repaired:
        chain: Chain = request.param(tmp_path, mode)
        chain.second = replace(chain.second, mode=reader)
        chain.put(*range(25))
        return Repaired(chain)

    return make  # type: ignore[return-value]


@pytest.fixture
def days(make: Any) -> Repaired:
    """`first` has published two intervals, and `second` goes by versions, and has read them."""
    days: Repaired = make("interval")
    days.run(TEN)
    days.run(NEXT)
    days.read()
    assert days.out == [*range(20)]
    return days


# ---- what was missing comes


def test_the_past_of_a_new_sink_comes_once_in_the_order_of_the_decisions(make: Any) -> None:
    made: Repaired = make("chained")
    made.write("other")
    made.run()
    made.write("lake", "other")
    made.chain.put(25, 26)
    made.run()
    made.read()
    assert made.out == [25, 26]
    made.repair(epoch=1, only=("lake",))
    done = made.read()
    assert done is not None
    assert done.after == {"first": (3,)}
    assert made.out == [*range(27)]
    assert made.read() is None
    made.chain.put(27)
    made.run()
    made.read()
    assert made.out == [*range(28)]


def test_what_was_given_up_comes_when_it_is_repaired(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: Repaired = make("chained")
    made.run()
    made.read()
    made.chain.put(25, 26)
    planned = made.chain.plan(made.chain.first, owner="second")
    assert planned is not None
    made.stage(planned)
    with monkeypatch.context() as patched:
        refuse_lake(patched, made)
        with pytest.raises(CannotPublish):
            made.chain.through.commit("first", 2)
        Person(made.chain.through).give_up("first", 2, "lake", "ann", "it refuses")
    assert made.read() is None
    made.repair(epoch=2, only=("lake",))
    made.read()
    assert made.out == [*range(27)]


def refuse_lake(patched: pytest.MonkeyPatch, made: Repaired) -> None:
    sink = type(made.chain.parts.sink(made.chain.first, "lake"))
    inner = sink.commit

    def commit(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.name == "lake":
            raise CannotPublish("lake", "It refuses.", "", "published-rows-fixed")
        return inner(self, *arguments, **options)

    patched.setattr(sink, "commit", commit)


def test_an_interval_that_was_missing_is_read_on_request(make: Any) -> None:
    made: Repaired = make("interval", "interval")
    made.write("other")
    made.run(TEN)
    made.write("lake", "other")
    made.run(NEXT)
    with raises(InvalidPipeline, "interval-not-in-table"):
        made.read(TEN)
    made.repair(TEN, only=("lake",))
    done = made.read(TEN)
    assert done is not None
    assert (done.after, made.out) == ({"first": (3,)}, [*range(10)])


# ---- what was kept is no news


def test_a_sink_that_was_kept_is_no_news(days: Repaired) -> None:
    days.repair(TEN, 100, keep=("lake",))
    assert days.read() is None
    days.run(THIRD)
    done = days.read()
    assert done is not None
    assert (done.after, days.out) == ({"first": (4,)}, [*range(25)])


def test_an_interval_whose_table_was_kept_has_not_changed(make: Any) -> None:
    made: Repaired = make("interval", "interval")
    made.run(TEN)
    read = made.read(TEN)
    made.repair(TEN, 100, keep=("lake",))
    assert made.read(TEN, again=False) == read
    again = made.read(TEN, again=True)
    assert again is not None
    assert (again.after, made.out) == ({"first": (1,)}, [*range(10)])


def test_an_interval_that_was_corrected_is_read_again_on_request(make: Any) -> None:
    made: Repaired = make("interval", "interval")
    made.run(TEN)
    made.read(TEN)
    made.repair(TEN, 100, keep=("other",))
    assert made.out == [*range(10)]
    again = made.read(TEN, again=True)
    assert again is not None
    assert (again.after, made.out) == ({"first": (2,)}, [*range(100, 110)])


# ---- what is only rewritten is no news to a reader that goes by versions


def test_rows_that_are_only_rewritten_are_no_news(days: Repaired) -> None:
    days.repair(TEN, 100, keep=("other",))
    assert days.chain.rows("lake") == [*range(10, 20), *range(100, 110)]
    assert days.read() is None
    days.run(THIRD)
    days.read()
    assert days.out == [*range(25)]
    assert days.read() is None


def test_rows_that_are_rewritten_before_they_are_read_come_once_and_corrected(days: Repaired) -> None:
    days.run(THIRD)
    days.repair(THIRD, 100, keep=("other",))
    days.read()
    assert days.out == [*range(20), *range(120, 125)]
    assert days.read() is None


@pytest.mark.parametrize("read_between", [False, True])
def test_a_repair_of_a_repair_is_news_only_where_the_first_rows_were(days: Repaired, read_between: bool) -> None:
    days.run(THIRD)
    if read_between:
        days.read()
    days.repair(THIRD, 100, keep=("other",))
    days.repair(THIRD, 200, keep=("other",))
    days.repair(TEN, 300, keep=("other",))
    days.run(minutes(30, 40))
    days.read()
    assert days.out == [*range(20), *(range(20, 25) if read_between else range(220, 225))]


def test_the_first_checkpoint_reads_what_is_there(make: Any) -> None:
    made: Repaired = make("interval")
    made.run(TEN)
    made.repair(TEN, 100, keep=("other",))
    made.read()
    assert made.out == [*range(100, 110)]
    assert made.read() is None


def test_rows_that_are_rewritten_beside_rows_that_come_again_are_no_news(
    days: Repaired, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: Any = days.chain.parts
    inner = parts.sink
    monkeypatch.setattr(
        parts, "sink", lambda made, name: Bare(inner(made, name)) if name == "other" else inner(made, name)
    )
    done = days.repair(TEN, 100, again=("other",))
    assert set(done.handles) == {"lake", "other"}
    assert days.chain.rows("lake") == [*range(10, 20), *range(100, 110)]
    assert days.read() is None
    days.run(THIRD)
    days.read()
    assert days.out == [*range(25)]


def test_to_a_reader_of_changes_rewritten_rows_are_news(tmp_path: Path) -> None:
    days = Repaired(Chain(tmp_path, "interval"))
    days.chain.second = replace(days.chain.second, mode="chained", source=DeltaSource("lake", changes=True))
    days.chain.put(*range(20))
    days.run(TEN)
    DeltaTable(tmp_path / "lake").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    days.run(NEXT)
    days.read()
    days.repair(TEN, 100, keep=("lake",))
    assert days.pin() is None
    repair = days.repair(TEN, 200, keep=("other",))
    pinned = days.pin()
    assert pinned is not None
    assert (pinned.after, pinned.ranges[0].offset_count) == ({"first": (repair.epoch,)}, 1)


def test_an_interval_that_is_processed_again_in_all_sinks_is_refused_as_before(days: Repaired) -> None:
    days._run(days.chain.first, TEN, Reprocess("all"), 100)
    with raises(InvalidPipeline, "not-append-only"):
        days.read()


def test_a_repair_that_was_aborted_is_nothing(days: Repaired) -> None:
    planned = days.chain.through.plan(
        days.chain.first, "ann", days.chain.alive, TEN, Reprocess("ann", keep=("other",)), instance="ann"
    ).checkpoint
    assert planned is not None
    days.stage(planned, 100)
    days.chain.through.abort("first", planned.epoch, "no")
    assert days.read() is None
    days.run(THIRD)
    days.read()
    assert days.out == [*range(25)]


def test_what_was_pinned_and_is_corrected_before_it_is_read_comes_once(days: Repaired) -> None:
    days.run(THIRD)
    pinned = days.pin()
    assert pinned is not None
    days.repair(THIRD, 100, keep=("other",))
    done = days.read()
    assert done is not None
    assert done.epoch == pinned.epoch
    days.run(minutes(30, 40))
    days.read()
    assert Counter(number % 100 for number in days.out) == Counter(range(25))


# ---- a repair may be committed while an earlier decision is not carried out


def test_a_decision_that_is_not_carried_out_is_not_passed_by(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later repair of another sink is committed first, and the rows that come after it are read all the same."""
    made: Repaired = make("chained")
    made.write("lake")
    made.run()
    made.read()
    made.chain.put(25, 26)
    planned = made.chain.plan(made.chain.first, owner="second")
    assert planned is not None
    made.stage(planned)
    made.write("lake", "other")
    asked = Reprocess("ann", epoch=1, only=("other",))
    repair = made.chain.through.plan(made.chain.first, "ann", made.chain.alive, None, asked, "ann").checkpoint
    assert repair is not None
    made.stage(repair)
    with monkeypatch.context() as patched:
        answer_nothing(patched, made)
        for epoch in (2, 3):
            with pytest.raises(OutcomeUnknown):
                made.chain.through.commit("first", epoch)
    assert made.chain.now("first", 2).state is State.COMMITTING
    assert made.chain.now("first", 3).state is State.COMMITTED
    assert made.read() is None
    made.chain.through.commit("first", 2)
    made.read()
    assert made.out == [*range(27)]


def answer_nothing(patched: pytest.MonkeyPatch, made: Repaired) -> None:
    sink = type(made.chain.parts.sink(made.chain.first, "lake"))
    inner = sink.commit

    def commit(self: Any, *arguments: Any, **options: Any) -> Any:
        if self.name == "lake":
            raise OutcomeUnknown("lake", "It does not answer.", "", "no-answer")
        return inner(self, *arguments, **options)

    patched.setattr(sink, "commit", commit)


# ---- where rows come from


def reads(made: Repaired, done: Checkpoint | None) -> list[tuple[int, int | None]]:
    """The checkpoints that it has read: the epoch, and which one that repairs."""
    assert done is not None
    (read,) = provenance.trace_checkpoint(made.chain.state, done)["reads"]
    return [(checkpoint["epoch"], checkpoint.get("repairs")) for checkpoint in read["checkpoints"]]


def readers(made: Repaired, epoch: int) -> list[int]:
    found = provenance.trace_checkpoint(made.chain.state, made.chain.now("first", epoch))["read_by"]
    return [reader["epoch"] for reader in found]


def test_what_a_repair_brings_is_named_by_the_checkpoint_that_it_repairs(make: Any) -> None:
    made: Repaired = make("chained")
    made.write("other")
    made.run()
    made.write("lake", "other")
    made.chain.put(25)
    made.run()
    made.read()
    made.repair(epoch=1, only=("lake",))
    assert reads(made, made.read()) == [(3, 1)]
    assert (readers(made, 1), readers(made, 2), readers(made, 3)) == ([2], [1], [2])


def test_what_is_only_rewritten_was_read_by_nobody(days: Repaired) -> None:
    days.repair(TEN, 100, keep=("other",))
    days.repair(TEN, 200, keep=("lake",))
    days.run(THIRD)
    days.repair(THIRD, 300, keep=("other",))
    assert reads(days, days.read()) == [(6, 5)]
    assert [readers(days, epoch) for epoch in (1, 3, 4, 5, 6)] == [[1], [], [], [2], [2]]


# ---- in any order

DAYS = [TEN, NEXT, THIRD]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["run", "correct", "keep"]), st.integers(0, 2)),
    st.tuples(st.sampled_from(["read", "pin"]), st.just(0)),
)


@pytest.mark.parametrize("kind", [Chain, FileChain])
@few
@given(st.lists(STEPS, min_size=3, max_size=9))
def test_every_record_comes_once_whenever_it_is_corrected(tmp_path_factory: Any, kind: Any, steps: list[Any]) -> None:
    chain = kind(tmp_path_factory.mktemp("chain"), "interval")
    chain.second = replace(chain.second, mode="chained")
    chain.put(*range(31))
    made, published, corrections = Repaired(chain), {3}, 0
    made.run(minutes(30, 31))
    for step, day in [*steps, ("read", 0), ("read", 0)]:
        corrections += 100
        if step == "run":
            made.run(DAYS[day])
            published.add(day)
        elif step == "read":
            made.read()
        elif step == "pin":
            made.pin()
        elif day in published:
            made.repair(DAYS[day], corrections, keep=("other" if step == "correct" else "lake",))
    come = Counter(number % 100 for number in made.out)
    assert come == Counter(number for number in range(31) if number // 10 in published)
