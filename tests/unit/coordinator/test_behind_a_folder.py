"""A pipeline behind the folder of another one, on real files: what each checkpoint covers, and what ends it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from hypothesis import given
from person import Person
from unit.backfills import RUNS, check_backfill, few
from unit.chain import MORE, NEXT, TEN, minutes
from unit.filechain import FileChain

from onceonly.checkpoint.model import State
from onceonly.coordinator.skip import Skip
from onceonly.errors import InvalidPipeline, OnceonlyError, SourceLost
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, FileSink
from onceonly.pipeline.sources import DeltaSource, FileSource, KafkaSource
from onceonly.sinks.files.sink import FileWriter
from onceonly.views import provenance as lineage

pytestmark = pytest.mark.slow


@pytest.fixture
def chain(tmp_path: Path) -> FileChain:
    """Without a barrier: the first pipeline has published once."""
    made = FileChain(tmp_path, after=[])
    made.put(*range(5))
    made.run(made.first)
    return made


@pytest.fixture
def days(tmp_path: Path) -> FileChain:
    """By intervals, with a barrier: the first pipeline has published two."""
    made = FileChain(tmp_path, "interval")
    made.put(*range(25))
    made.run(made.first, TEN)
    made.run(made.first, NEXT)
    return made


def more(numbers: Any) -> list[int]:
    return [number + MORE for number in numbers]


def publish(chain: FileChain, *numbers: int) -> None:
    chain.put(*numbers)
    chain.run(chain.first)


# ---- in chained mode


def test_each_checkpoint_goes_on_where_the_one_before_ended(chain: FileChain) -> None:
    chain.write(77)
    chain.run(chain.second)
    assert chain.run(chain.second) is None
    publish(chain, 5)
    publish(chain, 6)
    done = chain.run(chain.second)
    assert done is not None
    assert done.ranges[0].partitions == {0: (2, 4)}
    assert chain.rows("out") == more(range(7))


def test_what_was_pinned_stays_pinned_while_more_is_published(chain: FileChain) -> None:
    chain.run(chain.second)
    publish(chain, 5)
    planned = chain.plan(chain.second, owner="mine")
    assert planned is not None
    publish(chain, 6)
    chain.through.abort("second", 2, "told to")
    again = chain.plan(chain.second, owner="again")
    assert again is not None
    assert (again.epoch, again.ranges) == (2, planned.ranges)
    chain.ended = {"mine", "again"}
    chain.run(chain.second)
    assert chain.rows("out") == more(range(6))
    chain.run(chain.second)
    assert chain.rows("out") == more(range(7))


def test_a_sink_that_was_given_up_leaves_nothing_to_read(chain: FileChain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files vanish after the decision: what vanishes before it is staged again."""
    chain.put(5)
    planned = chain.plan(chain.first, owner="mine")
    assert planned is not None
    staged = chain.stage(planned)
    Path(staged.handles["lake"]["folder"], "part-00000.jsonl").unlink()
    with monkeypatch.context() as patch, pytest.raises(OnceonlyError):
        patch.setattr(FileWriter, "rehearse", lambda self, handle, *_: handle)
        chain.through.commit("first", 2)
    Person(chain.through).give_up("first", 2, "lake", "ann", "lost")
    publish(chain, 6)
    chain.run(chain.second)
    assert chain.rows("out") == more([0, 1, 2, 3, 4, 6])


def test_files_that_vanish_while_it_is_staged_are_noticed(chain: FileChain) -> None:
    planned = chain.plan(chain.second)
    assert planned is not None

    def produce(claimed: Any) -> Any:
        found = chain.parts.numbers(claimed)
        next((chain.parts.folder / "lake").glob("*.jsonl")).unlink()
        return {"out": found}

    with raises(SourceLost, "source-files-missing"):
        chain.through.stage("second", 1, produce)
    assert chain.rows("out") == []


def test_a_decision_that_takes_back_is_left_out_on_purpose(chain: FileChain) -> None:
    publish(chain, 5)
    chain.run(chain.second)
    Person(chain.through).rewind("first", 1, "ann", "wrong")
    with raises(InvalidPipeline, "not-append-only", match="decision 3"):
        chain.run(chain.second)
    Person(chain.through).skip_offsets("second", Skip("lake", 0, 4, "ann", "it was taken back"))
    chain.run(chain.first)
    done = chain.run(chain.second)
    assert done is not None
    assert done.ranges[0].partitions == {0: (4, 5)}
    assert chain.rows("out") == more(
        [*range(6), 5]
    )  # 5 was read twice from the topic, and published twice to the folder


def test_after_a_rewind_of_its_own_it_reads_again(chain: FileChain) -> None:
    chain.run(chain.second)
    publish(chain, 5)
    chain.run(chain.second)
    Person(chain.through).rewind("second", 1, "ann", "wrong")
    assert chain.rows("out") == more(range(5))
    chain.run(chain.second)
    assert chain.rows("out") == more(range(6))


def test_it_begins_at_the_latest_decision_of_now(tmp_path: Path) -> None:
    chain = FileChain(tmp_path, after=[])
    chain.put(1)
    chain.run(chain.first)
    sinks = [FileSink("out", "out", "json")]
    chain.second = Pipeline(name="third", source=FileSource("lake", start="latest"), transform="jobs:f", sinks=sinks)
    first = chain.plan(chain.second)
    assert first is not None
    assert (first.state, first.ranges[0].partitions) == (State.COMMITTED, {0: (2, 2)})
    publish(chain, 2)
    chain.run(chain.second)
    assert chain.rows("out") == more([2])


def test_under_a_new_name_it_would_publish_everything_again(chain: FileChain) -> None:
    chain.run(chain.second)
    renamed = Pipeline(**{**vars(chain.second), "name": "renamed"})
    with raises(InvalidPipeline, "pipeline-renamed"):
        chain.plan(renamed)


# ---- after the pipeline that writes it


def test_it_reads_up_to_the_newest_committed_checkpoint(tmp_path: Path) -> None:
    chain = FileChain(tmp_path)
    chain.put(1)
    chain.run(chain.first)
    chain.put(2)
    planned = chain.plan(chain.first, owner="later")
    assert planned is not None
    chain.stage(planned)
    done = chain.run(chain.second)
    assert done is not None
    assert (done.after, chain.rows("out")) == ({"first": (1,)}, more([1]))
    chain.through.commit("first", 2)
    done = chain.run(chain.second)
    assert done is not None
    assert (done.after, chain.rows("out")) == ({"first": (2,)}, more([1, 2]))
    (read,) = lineage.trace_checkpoint(chain.state, done)["reads"]
    assert (read["published_by"], read["sink"], [checkpoint["epoch"] for checkpoint in read["checkpoints"]]) == (
        "first",
        "lake",
        [2],
    )


def test_an_interval_has_exactly_the_rows_of_that_interval(days: FileChain) -> None:
    days.write(77)
    days.run(days.second, NEXT)
    assert days.rows("out") == more(range(10, 20))
    days.run(days.second, TEN)
    assert days.rows("out") == more(range(20))


def test_an_interval_of_several(days: FileChain) -> None:
    days.run(days.first, TEN, "again, 1")
    done = days.run(days.second, minutes(0, 20))
    assert done is not None
    assert (done.after, sorted(done.ranges[0].partitions.values())) == ({"first": (3, 2)}, [(2, 3), (3, 4)])
    assert days.rows("out") == more(range(20))


def test_an_interval_without_records(days: FileChain) -> None:
    days.run(days.first, minutes(30, 40))
    done = days.run(days.second, minutes(30, 40))
    assert done is not None
    assert (done.state, done.handles) == (State.COMMITTED, {})


def test_processing_both_again_is_as_if_they_had_run_once(days: FileChain) -> None:
    days.run(days.second, TEN)
    days.run(days.second, NEXT)
    days.added = 100
    days.run(days.first, TEN, "again, 1")
    assert days.rows("out") == more(range(20))
    days.run(days.second, TEN, "again, 1")
    assert days.rows("out") == more([*range(10, 20), *range(100, 110)])


def test_what_was_planned_before_reads_what_is_published_now(days: FileChain) -> None:
    planned = days.plan(days.second, TEN, "mine")
    assert planned is not None
    days.added = 100
    days.run(days.first, TEN, "again, 1")
    with raises(SourceLost, "source-retracted"):
        days.stage(planned)
    days.ended = {"mine"}
    days.run(days.second, TEN, "again, 1")
    assert days.rows("out") == more(range(100, 110))


@few
@given(RUNS)
def test_a_backfill_of_both_equals_the_truth_wherever_runs_have_ended(tmp_path_factory: Any, runs: list[Any]) -> None:
    check_backfill(FileChain(tmp_path_factory.mktemp("chain"), "interval"), runs, SourceLost)  # taken back since


# ---- the definition


def test_it_is_stored_and_read_again() -> None:
    made = Pipeline(
        name="p",
        source=[FileSource("lake/orders", max_decisions=3), DeltaSource("lake/other"), KafkaSource("flights")],
        transform="jobs:f",
        sinks=[DeltaSink("x", "x")],
    )
    stored = json.loads(json.dumps(made.to_json()))
    assert Pipeline.from_json(stored) == made
    whole = {"path": "lake/orders", "name": None, "start": "earliest", "max_decisions": 3, "grace": 0.0}
    assert stored["source"][0] == {"kind": "files", **whole}
    older = {"path": "lake/other", "name": None, "changes": False, "start": "earliest", "max_versions": None}
    assert stored["source"][1] == {"kind": "delta", **older, "grace": 0.0}


@pytest.mark.parametrize(
    ("changes", "code", "why"),
    [
        (
            {"sinks": [FileSink("a", "lake/orders")]},
            "own-output-read",
            "reads the folder 'lake/orders', which it writes to",
        ),
        (
            {"source": FileSource("lake/orders", max_decisions=1), "after": ["first"]},
            "options-conflict",
            "max_decisions of 'orders'",
        ),
        (
            {"source": FileSource("lake/orders", max_decisions=1), "mode": "interval"},
            "options-conflict",
            "an interval is read completely",
        ),
        (
            {"source": FileSource("lake/orders", start="latest"), "mode": "interval"},
            "options-conflict",
            "start is for chained mode",
        ),
        ({"source": FileSource("lake/orders", grace=1.0)}, "options-conflict", "grace is for intervals"),
    ],
)
def test_what_does_not_fit_together(changes: dict[str, Any], code: str, why: str) -> None:
    fields: dict[str, Any] = {"name": "p", "source": FileSource("lake/orders"), "transform": "jobs:f"}
    with raises(InvalidPipeline, code, match=why):
        Pipeline(**{**fields, "sinks": [DeltaSink("x", "x")], **changes})


@pytest.mark.parametrize("path", ["", "a b", "\0"])
def test_a_folder_needs_a_name(path: str) -> None:
    with raises(InvalidPipeline, "option-invalid"):
        FileSource(path)
