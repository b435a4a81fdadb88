"""What the command line shows of intervals that no checkpoint covers, and how a person settles them."""

import json

import pytest
from click.testing import CliRunner
from person import seen
from unit.world import World, minutes

from onceonly.cli import main
from onceonly.pipeline.sinks import DeltaSink
from onceonly.runtime import live_services
from onceonly.settings import Settings

pytestmark = pytest.mark.slow
GAP = {"start": "2013-01-01T12:10:00Z", "end": "2013-01-01T12:30:00Z"}
COVERED_BY_NONE = "flights: no checkpoint covers [2013-01-01T12:10:00Z, 2013-01-01T12:30:00Z)."
SKIP = ("skip", "flights", "--interval", GAP["start"], GAP["end"], "--reason", "a strike")
LOOK = ("--seen", "12")  # at the pipeline with two committed intervals


@pytest.fixture
def world(tmp_path, monkeypatch) -> World:
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP", "ONCEONLY_NOTIFY", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    world = World(tmp_path, mode="interval", sinks=[DeltaSink("lake", "lake")])
    world.put(*range(5, 40))
    for interval in (minutes(0, 10), minutes(30, 40)):
        world.run(f"run of {interval}", interval)
    return world


def onceonly(*args: str):
    result = CliRunner(env={"COLUMNS": None}).invoke(main, args)
    return result if "--json" not in args else json.loads(result.stdout)


def test_status_shows_what_is_left_out_and_what_to_do(world):
    for asked in ((), ("flights",)):
        said = onceonly("status", *asked).stdout
        assert COVERED_BY_NONE in said and "onceonly skip flights --interval" in said
    assert onceonly("status", "--json")["pipelines"][0]["gaps"] == [GAP]
    assert onceonly("status", "flights", "--json")["gaps"] == [GAP]


def test_a_gap_that_is_wanted_is_shown_as_a_checkpoint_with_its_reason(world):
    done = onceonly(*SKIP, *LOOK, "--json")
    assert (done["epoch"], done["state"], done["skipped"], done["interval"]) == (3, "committed", "a strike", GAP)
    said = onceonly("status", "flights").stdout
    assert "no checkpoint covers" not in said and "a strike)" in said
    assert onceonly("status", "--json")["pipelines"][0]["gaps"] == []
    assert "a strike" in onceonly("describe", "flights", "3").stdout


def test_a_person_is_told_what_was_recorded(world):
    assert onceonly(*SKIP, *LOOK).stdout == f"✓ epoch 3: {minutes(10, 30)} is left out\n"


def test_what_is_no_gap_is_refused(world):
    refused = onceonly("skip", "flights", "--interval", "2013-01-01T12:10", "2013-01-01T12:20", "--reason", "x", *LOOK)
    assert refused.exit_code == 2
    assert "The gap it lies in is [2013-01-01T12:10:00Z, 2013-01-01T12:30:00Z)" in refused.stderr
    assert onceonly("skip", "nobody", *SKIP[2:]).exit_code == 2


OFFSETS = ("skip", "flights", "--topic", "flights", "--partition", "0", "--to", "3", "--reason", "damaged")


@pytest.fixture
def chained(world, tmp_path, monkeypatch) -> World:
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "chained"))
    made = World(tmp_path / "chained", sinks=[DeltaSink("lake", "lake")])
    made.parts.settings = Settings.from_env()
    monkeypatch.setattr(live_services, "LiveServices", lambda settings, connections: made.parts)
    made.plan()
    made.abort()
    return made


def test_offsets_are_left_out_with_a_reason_that_is_shown(chained):
    look = seen(chained.state, "flights")
    assert onceonly(*OFFSETS, *look).stdout.startswith(
        "✓ epoch 2 leaves out 'flights' partition 0 from 0 to 3 (skipped by "
    )
    assert "damaged)" in onceonly("status", "flights").stdout.replace("\n", "")
    assert "damaged" in onceonly("describe", "flights", "2").stdout
    assert onceonly(*OFFSETS, *look, "--json")["epoch"] == 2
    assert chained.run("run-2").ranges[0].partitions == {0: (3, 5)}


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (OFFSETS[:6] + OFFSETS[8:], "Give --interval, or all of"),
        (OFFSETS[:4] + OFFSETS[6:], "Give --interval, or all of"),
        ((*OFFSETS, "--interval", GAP["start"], GAP["end"]), "Give --interval, or all of"),
        (("skip", "flights", "--reason", "x"), "Give --interval, or all of"),
        (OFFSETS[:8], "Missing option '--reason'"),
        ((*OFFSETS[:9], " "), "it is empty"),
        ((*OFFSETS[:7], "9", *OFFSETS[8:]), "the log ends at 5"),
    ],
)
def test_offsets_need_all_that_names_them_and_a_reason(chained, args, why):
    before = chained.events()
    refused = onceonly(*args, *seen(chained.state, "flights"))
    assert refused.exit_code == 2
    assert why in " ".join(refused.stderr.split())
    assert chained.events() == before
