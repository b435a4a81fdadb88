"""What changes between two pipelines of a chain: sinks get other names and paths, versions are exchanged, `after` is
added or removed, intervals are left out.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from person import Person
from unit.chain import MORE, NEXT, TEN, Chain, minutes
from unit.tables import real

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.coordinator.forward import Forward
from onceonly.errors import ActionNeeded, InvalidPipeline
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.statetable.location import relocate
from onceonly.statetable.table import StateTable
from onceonly.views import provenance as lineage

pytestmark = pytest.mark.slow

LATER = minutes(20, 30)


@pytest.fixture
def days(tmp_path: Path) -> Chain:
    """By intervals: the first pipeline has published three."""
    made = Chain(tmp_path, "interval")
    made.put(*range(35))
    for interval in (TEN, NEXT, LATER):
        made.run(made.first, interval)
    return made


def more(numbers: Any) -> list[int]:
    return [number + MORE for number in numbers]


def renamed(first: Pipeline) -> Pipeline:
    """Its sink has another name, and writes the same table."""
    return replace(first, sinks=[DeltaSink("sea", "lake")])


# ---- the sink before


def test_an_interval_that_a_sink_published_under_another_name(days: Chain) -> None:
    days.first = renamed(days.first)
    days.run(days.first, minutes(30, 35))
    days.run(days.second, TEN)
    days.run(days.second, minutes(30, 35))
    assert days.rows("out") == more([*range(10), *range(30, 35)])
    (read,) = lineage.trace_checkpoint(days.state, days.now("second", 1))["reads"]
    assert (read["sink"], [checkpoint["epoch"] for checkpoint in read["checkpoints"]]) == ("lake", [1])


def test_a_chain_goes_on_when_a_sink_gets_another_name(tmp_path: Path) -> None:
    chain = Chain(tmp_path)
    chain.put(1)
    chain.run(chain.first)
    chain.first = renamed(chain.first)
    chain.put(2)
    chain.plan(chain.first)
    chain.run(chain.second)
    assert chain.rows("out") == more([1]), "what was published under the old name is there to be read"
    chain.stage(chain.now("first", 2))
    chain.through.commit("first", 2)
    chain.run(chain.second)
    assert chain.rows("out") == more([1, 2])
    (read,) = lineage.trace_checkpoint(chain.state, chain.now("second", 1))["reads"]
    assert (read["sink"], [checkpoint["epoch"] for checkpoint in read["checkpoints"]]) == ("lake", [1])


def test_an_interval_that_was_published_to_another_table_is_not_taken_for_an_empty_one(days: Chain) -> None:
    moved = replace(days.first, sinks=[DeltaSink("sea", "sea")])
    days.run(moved, minutes(30, 35))
    second = days.pipeline("second", DeltaSource("sea"), "out", after=["first"])
    with raises(InvalidPipeline, "interval-not-in-table") as refused:
        days.plan(second, TEN)
    assert "Epoch 1 was published before" in refused.value.why
    days.run(second, minutes(30, 35))
    assert days.rows("out") == more(range(30, 35))


def test_only_the_checkpoint_that_is_looked_for_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(tmp_path)
    for number in range(3):
        chain.put(number)
        chain.run(chain.first)
    kind: Any = type(chain.state.view("first"))
    inner, taken = kind.iterate_committed, []

    def iterate_committed(self: Any, most: int | None = None) -> Iterator[Checkpoint]:
        for known in inner(self, most):
            taken.append(known.epoch)
            yield known

    monkeypatch.setattr(kind, "iterate_committed", iterate_committed)
    chain.run(chain.second)
    assert set(taken) == {3}
    assert chain.rows("out") == more(range(3))


def test_where_nothing_was_published_since_nothing_is_looked_for(tmp_path: Path) -> None:
    """However long that is: the log entry may have expired."""
    chain = Chain(tmp_path)
    chain.put(1)
    chain.run(chain.first)
    chain.run(chain.second)
    chain.write(77)
    DeltaTable(chain.parts.folder / "lake").create_checkpoint()
    for version in (0, 1):
        chain.entry(version).unlink()
    assert chain.run(chain.second) is None
    chain.put(2)
    chain.run(chain.first)
    chain.run(chain.second)
    assert chain.rows("out") == more([1, 2, 77])


# ---- the table between


def test_a_version_is_recognised_by_what_it_has_published(days: Chain) -> None:
    """In a copy that was restored, and written to by others, its number is that of another one."""
    planned = days.plan(days.second, minutes(0, 30))
    assert planned is not None and sorted(planned.ranges[0].starts.values()) == [1, 2, 3]
    for version in (2, 3):
        days.entry(version).unlink()
    days.write(77)
    days.write(88)
    with pytest.raises(ActionNeeded) as refused:
        days.stage(planned)
    assert refused.value.code == "target-went-back"
    assert days.rows("out") == []


# ---- `after` itself


@pytest.mark.parametrize("at_first", [True, False])
def test_intervals_do_not_begin_or_end_to_come_after_others(days: Chain, at_first: bool) -> None:
    """By the time of its commit, a row of one interval may be in another: it would be read twice, or never."""
    alone = replace(days.second, after=())
    then, now = (days.second, alone) if at_first else (alone, days.second)
    days.run(then, TEN)
    with raises(InvalidPipeline, "pipeline-changed") as refused:
        days.run(now, NEXT)
    assert "['first']" in refused.value.why
    assert days.state.view("second").head.epoch == 1


def test_a_chain_may_begin_to_come_after_others(tmp_path: Path) -> None:
    """Its versions follow each other, whoever says how far they may be read."""
    chain = Chain(tmp_path)
    alone = replace(chain.second, after=())
    for number, second in enumerate([alone, chain.second, alone]):
        chain.put(number)
        chain.run(chain.first)
        chain.run(second)
    assert chain.rows("out") == more(range(3))


def test_a_table_is_read_by_one_kind_of_intervals(days: Chain) -> None:
    """Both tables of the second pipeline are read after others, until one of those stops to write its table."""
    other = days.pipeline("other", days.first.source, "side", transform="jobs:other")
    for interval in (TEN, NEXT):
        days.run(other, interval)
    both = [DeltaSource("lake"), DeltaSource("side")]
    second = days.pipeline("second", both, "out", after=["first", "other"])
    days.run(second, TEN)
    with raises(InvalidPipeline, "pipeline-changed"):
        days.run(replace(second, after=["first"]), NEXT)


# ---- an interval that is left out


def test_an_interval_that_is_left_out_has_no_versions(days: Chain) -> None:
    days.run(days.second, TEN)
    days.run(days.second, LATER)
    done = Person(days.through).skip("second", NEXT, "ann", "on purpose")
    assert (done.state, [range_.offset_count for range_ in done.ranges]) == (State.COMMITTED, [0])
    days.run(days.second, NEXT, "again, 1")
    assert days.rows("out") == more(range(30))


def test_an_interval_that_is_said_to_be_published_has_no_versions(days: Chain) -> None:
    """Nothing of the table has to be readable for that: here it does more than append."""
    days.run(days.first, TEN, "again, 1")
    for version, minute in enumerate((-4, -3, -2, -1, 5)):
        at = minutes(minute, minute + 1).start.timestamp()
        os.utime(days.entry(version), (at, at))
    done = Person(days.through).forward(days.second, Forward(7, "ann", "restored", intervals=[TEN]))
    assert (done.forwarded, [range_.offset_count for range_ in done.ranges]) == (7, [0])
    days.run(days.second, NEXT)
    assert days.rows("out") == more(range(10, 20))


# ---- the state table of both


def test_a_state_table_that_went_back_reads_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the lost checkpoints of both have published stays what it is: a person says how far each of them was."""
    monkeypatch.setattr("unit.tables.make", real)
    chain = Chain(tmp_path)
    state = Path(chain.state.uri)
    for number in range(2):
        chain.put(number)
        chain.run(chain.first)
        chain.run(chain.second)
        if not number:
            shutil.copytree(state, tmp_path / "backup")
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "backup", state)
    relocate(str(state))
    chain.state = StateTable(str(state))
    assert chain.run(chain.second) is None
    chain.put(2)
    with raises(InvalidPipeline, "state-behind"):
        chain.run(chain.first)
    Person(chain.through).forward(chain.first, Forward(2, "ann", "restored", {"flights": {0: 2}}))
    assert chain.run(chain.second) is None
    chain.run(chain.first)
    with raises(InvalidPipeline, "state-behind"):
        chain.run(chain.second)
    chain.through.abort("second", 2, "behind")
    Person(chain.through).forward(chain.second, Forward(2, "ann", "restored", {"lake": {0: 3}}))
    chain.run(chain.second)
    assert chain.rows("out") == more(range(3))
