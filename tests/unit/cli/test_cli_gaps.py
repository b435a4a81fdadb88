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


def test_gap_has_a_command_for_each_interval_with_the_file_of_the_pipeline(world, tmp_path, monkeypatch):
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    (tmp_path / "pipelines.py").write_text('by_minutes = Pipeline(\n    name="flights",\n    source=x)\n')
    monkeypatch.chdir(tmp_path)
    for asked in ((), ("flights",)):
        said = onceonly("status", *asked).stdout
        for start, end in (("12:10", "12:20"), ("12:20", "12:30")):
            assert (
                f"onceonly run pipelines.py:by_minutes --interval 2013-01-01T{start}:00Z 2013-01-01T{end}:00Z\n" in said
            )


def test_looking_names_the_state_table_and_what_says_so(world, tmp_path, monkeypatch):
    table = str(tmp_path / "state")
    for asked in (("status",), ("status", "flights"), ("describe", "flights", "1")):
        assert f"State table: {table} (ONCEONLY_HOME says so)" in onceonly(*asked).stdout
        told = onceonly(*asked, "--json")
        assert (told["state_table"], told["state_table_from"]) == (table, "ONCEONLY_HOME")
    monkeypatch.chdir(tmp_path)
    for name in ("ONCEONLY_HOME", "ONCEONLY_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    told = onceonly("status", "--json")
    assert (told["state_table"], told["state_table_from"]) == (str(tmp_path / ".onceonly" / "state"), None)
    assert "no ONCEONLY_STATE is set" in onceonly("status").stdout


@pytest.mark.parametrize("columns", [100, 120, 200])
def test_a_checkpoint_stays_one_line(world, columns):
    owner = "airflow:sales_daily/scheduled__2026-11-26T00:00:00.000000+00:00_with_a_long_name"
    world.run(owner, minutes(40, 50))
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, ["status", "flights"])
    rows = [line for line in result.stdout.splitlines() if line.strip()[:2] in ("3 ", "2 ", "1 ")]
    assert len(rows) == 3
    assert all(len(line.rstrip()) <= columns for line in rows)
    assert ("airflow sales_daily" in rows[0]) == (columns >= 120)
    table = result.stdout.split("\n")
    assert [line.strip()[:1] for line in table[1:4]] == ["3", "2", "1"]
