"""A pipeline under a new name would publish everything again: refused, unless it is another pipeline."""

from dataclasses import replace

import pytest
from codes import raises
from unit.chain import Chain
from unit.world import World

from onceonly.coordinator import restore_check
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.pipeline.sources import DeltaSource


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.run("run-1")
    return world


def plan(world, **changes):
    return world.coordinator.plan(replace(world.pipeline, **changes), "run-2", world.alive).checkpoint


def test_a_renamed_pipeline_is_refused_and_nothing_is_written(world):
    with raises(InvalidPipeline, "pipeline-renamed") as refused:
        plan(world, name="journeys")
    assert "Keep name='flights'" in refused.value.todo
    assert world.state.pipelines() == ["flights"]


@pytest.mark.parametrize(
    "changes",
    [{"sinks": [DeltaSink("lake", "elsewhere")]}, {"transform": "jobs.flights:late"}],
    ids=["other targets", "another transform"],
)
def test_another_pipeline_on_the_same_topic_is_welcome(world, changes):
    assert plan(world, name="journeys", **changes).epoch == 1


def test_a_topic_that_was_made_anew_may_be_read_under_a_new_name(world):
    world.source.recreate()
    world.put(*range(3))
    assert plan(world, name="journeys").epoch == 1


def test_changes_may_be_merged_a_second_time(world):
    """As docs/how-to/upsert.md says: those that the table has already have no effect."""
    sinks = [DeltaSink("lake", "merged", merge=Merge(keys=["id"], order_by=["at"]))]
    assert plan(world, name="first", sinks=sinks).epoch == 1
    assert plan(world, name="again", sinks=sinks).epoch == 1
    more = [*sinks, DeltaSink("log", "log")]
    assert plan(world, name="more", sinks=more).epoch == 1
    with raises(InvalidPipeline, "pipeline-renamed"):
        plan(world, name="even_more", sinks=more)


def test_it_may_go_on_under_its_own_name(world):
    world.put(7)
    assert plan(world).epoch == 2


def test_a_table_is_the_same_by_whatever_name_it_is_read(tmp_path):
    chain = Chain(tmp_path)
    chain.put(1)
    chain.run(chain.first)
    chain.run(chain.second)
    renamed = chain.pipeline("third", DeltaSource("lake", name="sea"), "out", transform="jobs:second", after=["first"])
    with raises(InvalidPipeline, "pipeline-renamed"):
        chain.plan(renamed, owner="other")


def test_what_a_stored_definition_leaves_out_has_its_default(world):
    whole = world.pipeline.to_json()
    short = {**whole, "source": {"kind": "kafka", "topic": "flights"}}
    assert restore_check._describe_work(short) == restore_check._describe_work(whole)


def test_a_definition_that_cannot_be_read_is_told(world):
    with raises(InvalidPipeline, "definition-unreadable"):
        restore_check._describe_work(
            {name: value for name, value in world.pipeline.to_json().items() if name != "transform"}
        )


def test_an_error_of_our_own_is_raised_once(world, monkeypatch):
    """It was asked again and again, until Python's stack ended."""
    monkeypatch.setattr(restore_check, "_locate_source", lambda source: source["no such field"])
    with pytest.raises(KeyError, match="no such field"):
        restore_check._describe_work(world.pipeline.to_json())
