"""What a pipeline is measured by, and how Prometheus reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from exposition import parsed
from person import Person
from unit.world import World, minutes

from onceonly.checkpoint.model import State
from onceonly.coordinator.reprocess import Reprocess
from onceonly.errors import InDoubt
from onceonly.pipeline.gate import Gate
from onceonly.views import metrics
from onceonly.views.metrics import Kind, Metric, Sample
from onceonly.views.summary import MAX_RECENT, Lag, Summary, read_summaries

NOW = datetime(2024, 1, 1, 12, tzinfo=UTC)


def summary(world: World) -> Summary:
    return read_summaries(world.state, ["flights"])[0]["flights"]


def shown(*found: Summary, lags: dict[str, Lag | None] | None = None, damaged: Iterable[str] = ()) -> dict[str, float]:
    return parsed(metrics.format_for_prometheus(metrics.list_samples(found, damaged, NOW, lags or {})))


def states(world: World) -> dict[str, float]:
    found = shown(summary(world))
    return {state: found[f'onceonly_checkpoints{{pipeline="flights",state="{state}"}}'] for state in metrics.UNSETTLED}


def test_every_state_has_a_number_and_unsettled_checkpoints_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 60))
    world.run("run-0", minutes(0, 10))
    assert set(states(world).values()) == {0}
    world.plan("run-1", minutes(10, 20))
    world.plan("run-2", minutes(20, 30))
    world.plan("run-3", minutes(30, 40))
    world.stage(3)
    assert states(world) == dict.fromkeys(metrics.UNSETTLED, 0) | {"planned": 2, "staged": 1}
    found = shown(summary(world))
    assert found['onceonly_epochs_total{pipeline="flights"}'] == 4
    oldest = world.now(2).planned_at.timestamp()
    assert found['onceonly_oldest_unsettled_timestamp_seconds{pipeline="flights"}'] == pytest.approx(oldest, abs=0.001)


def test_what_is_held_and_what_is_in_doubt_have_states_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, gate=Gate(min_rows={"lake": 9}, on_fail="hold"))
    world.plan()
    world.stage()
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 1, "run-1")
    assert (states(world)["held"], states(world)["staged"]) == (1, 0)
    Person(world.coordinator).approve("flights", 1, "ann", "they are right")
    assert (states(world)["held"], states(world)["staged"]) == (0, 1)
    world.lake.fail("commit", "doubt")
    with pytest.raises(InDoubt):
        world.commit()
    assert (states(world)["in_doubt"], states(world)["committing"]) == (1, 0)


def test_the_last_commit_is_told_by_sink(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("run-1")
    found, committed = shown(summary(world)), world.now(1)
    assert found['onceonly_last_commit_rows{pipeline="flights",sink="lake"}'] == 5
    assert found['onceonly_last_commit_rows{pipeline="flights",sink="files"}'] == 5
    told = found['onceonly_last_commit_timestamp_seconds{pipeline="flights"}']
    assert told == pytest.approx(committed.updated_at.timestamp(), abs=0.001)
    reached = found['onceonly_published_until_timestamp_seconds{pipeline="flights"}']
    assert reached == pytest.approx(committed.planned_at.timestamp(), abs=0.001)
    assert 'onceonly_last_commit_bad_records{pipeline="flights"}' not in found  # it has no such thing
    assert 'onceonly_lag_records{pipeline="flights"}' not in found  # nobody has asked


def test_the_last_commit_may_reach_less_far_than_another(tmp_path: Path) -> None:
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 60))
    world.run("run-1", minutes(30, 40))
    world.run("run-2", minutes(0, 10))
    world.plan("run-3", minutes(10, 20))  # open: then more than the last checkpoint is read
    told = summary(world)
    assert told.last_commit is not None and told.furthest_commit is not None
    assert (told.last_commit.epoch, told.furthest_commit.epoch) == (2, 1)
    assert [checkpoint.epoch for checkpoint in told.open_or_unfit] == [3]


def test_the_furthest_commit_is_found_behind_many_older_intervals(tmp_path: Path) -> None:
    """The lag is counted from it: a backfill of old days must not look like a pipeline that falls behind."""
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 60))
    world.run("run-0", minutes(40, 50))
    for number in range(MAX_RECENT + 2):
        world.run(f"run-{number + 1}", minutes(3 * number, 3 * number + 3))
    found = summary(world)
    assert found.last_commit is not None and found.furthest_commit is not None
    assert (found.last_commit.epoch, found.furthest_commit.epoch) == (MAX_RECENT + 3, 1)


def test_the_furthest_commit_is_found_behind_its_own_repair_and_open_ones(tmp_path: Path) -> None:
    """A repair, a skip or an open checkpoint of the newest intervals says nothing of what was read before them."""
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 100))
    world.run("run-0", minutes(40, 50))
    for number in range(MAX_RECENT + 2):
        world.run(f"run-{number + 1}", minutes(3 * number, 3 * number + 3))
    request = Reprocess("again, 1", keep=("files",), who="ann", reason="wrong rates")
    for wanted, interval in ((request, minutes(40, 50)), (None, minutes(50, 55)), (None, minutes(55, 60))):
        world.coordinator.plan(world.pipeline, "again", world.alive, interval, wanted)
        found = summary(world)
        assert found.furthest_commit is not None and found.furthest_commit.epoch == 1
    Person(world.coordinator).abort("flights", MAX_RECENT + 6, "not yet", "ann")
    Person(world.coordinator).skip("flights", minutes(55, 60), "ann", "a strike")
    found = summary(world)
    assert found.furthest_commit is not None and found.furthest_commit.epoch == 1


def test_the_last_commit_is_found_behind_many_open_checkpoints(tmp_path: Path) -> None:
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 300))
    world.run("run-1", minutes(0, 10))
    for number in range(2, MAX_RECENT + 3):
        world.plan(f"run-{number}", minutes(10 * number - 10, 10 * number))
    last_commit = summary(world).last_commit
    assert last_commit is not None and last_commit.epoch == 1


def test_a_run_that_aborts_again_and_again_is_seen(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("run-1")
    assert shown(summary(world))['onceonly_last_checkpoint_aborted{pipeline="flights"}'] == 0
    world.put(7)
    for run in range(2):
        world.plan(f"run-{2 + run}")
        world.stage(2)
        world.abort(2)
    found = shown(summary(world))
    assert found['onceonly_last_checkpoint_aborted{pipeline="flights"}'] == 1
    assert found['onceonly_last_checkpoint_attempts{pipeline="flights"}'] == 2
    assert found['onceonly_last_commit_rows{pipeline="flights",sink="lake"}'] == 5  # of the one that was committed


def staged(world: World, opened: dict[str, timedelta]) -> Summary:
    """Its sinks have transactions that were opened so long ago."""
    known = summary(world)
    (checkpoint,) = known.open
    handles = {
        sink: {**checkpoint.handles[sink], "opened_at": (NOW - ago).isoformat(), "timeout": 900.0}
        for sink, ago in opened.items()
    }
    return replace(known, open=(replace(checkpoint, handles=handles, state=State.STAGED),))


def test_how_long_transactions_are_open(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.plan()
    world.stage()
    found = shown(staged(world, {"lake": timedelta(seconds=450), "files": timedelta(seconds=90)}))
    assert found['onceonly_transaction_timeout_used_ratio{pipeline="flights",sink="lake"}'] == 0.5
    assert found['onceonly_transaction_timeout_used_ratio{pipeline="flights",sink="files"}'] == 0.1
    opened = found['onceonly_oldest_transaction_timestamp_seconds{pipeline="flights",sink="lake"}']
    assert opened == NOW.timestamp() - 450


@pytest.mark.parametrize(
    ("lag", "expected"),
    [
        (Lag(7, None, versions=2), {"source_up": 1, "lag_records": 7, "lag_versions": 2}),
        (Lag(error="no broker answers at secret:9092"), {"source_up": 0}),
        (None, {}),
    ],
)
def test_lag_is_told_where_it_is_known(tmp_path: Path, lag: Lag | None, expected: dict[str, int]) -> None:
    world = World(tmp_path)
    world.run("run-1")
    found = shown(summary(world), lags={"flights": lag})
    names = ("source_up", "lag_records", "lag_versions")
    told = {name: found.get(f'onceonly_{name}{{pipeline="flights"}}') for name in names}
    assert {name: value for name, value in told.items() if value is not None} == expected


def test_one_whose_rows_are_damaged_says_so_beside_the_others(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.run("run-1")
    found = shown(summary(world), damaged=["orders"])
    assert found['onceonly_pipeline_readable{pipeline="flights"}'] == 1
    assert found['onceonly_pipeline_readable{pipeline="orders"}'] == 0


def test_label_values_are_escaped_and_numbers_are_whole_or_to_the_millisecond() -> None:
    metric = metrics.GAPS
    text = metrics.format_for_prometheus(
        [Sample(metric, {"pipeline": 'a"b\\c\nd'}, 3), Sample(metric, {"pipeline": "b"}, 0.5)]
    )
    assert 'onceonly_gaps{pipeline="a\\"b\\\\c\\nd"} 3\n' in text
    assert 'onceonly_gaps{pipeline="b"} 0.500\n' in text
    assert len(parsed(text)) == 2
    assert metrics.format_for_prometheus([]) == ""


def test_the_number_of_series_is_bounded_and_none_ends_while_nothing_is_committed(tmp_path: Path) -> None:
    """A label is a pipeline, a sink, or one of six states; and an alert needs the last commit, however long ago."""
    world = World(tmp_path, mode="interval")
    world.put(*range(5, 120))
    world.run("run-0", minutes(0, 10))
    few = len(list(metrics.sample_pipeline(summary(world), NOW)))
    for run in range(1, 12):
        world.plan(f"run-{run}", minutes(10 * run, 10 * run + 10))
    assert len(list(metrics.sample_pipeline(summary(world), NOW))) == few + 1  # the oldest unsettled


def all_metrics() -> list[Metric]:
    return [var for var in vars(metrics).values() if isinstance(var, Metric)]


def test_every_metric_is_written_and_named_as_prometheus_has_it() -> None:
    assert set(metrics.METRICS) == set(all_metrics())
    for metric in metrics.METRICS:
        name = metrics.prometheus_name(metric)
        assert re.fullmatch(r"onceonly_[a-z_]+", name)
        assert metric.kind is not Kind.GAUGE or not name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert metric.meaning.endswith(".")


def test_the_page_lists_every_metric() -> None:
    page = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
    for metric in metrics.METRICS:
        assert f"`{metrics.prometheus_name(metric)}`" in page, metrics.prometheus_name(metric)


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((Path(__file__).parents[3] / "docs" / "alerts.rules.yml").read_text())["groups"]
    return list(group["rules"])


def test_the_alert_rules_name_metrics_that_exist_and_what_to_do() -> None:
    known = {metrics.prometheus_name(metric) for metric in metrics.METRICS}
    assert len(rules()) >= 8
    for rule in rules():
        named, told = set(re.findall(r"\bonceonly_[a-z_]+", rule["expr"])), rule["annotations"]
        assert named and named <= known, rule
        assert "onceonly " in told["description"] or "recovery" in told["description"], rule
        labels = set(re.findall(r"\$labels\.(\w+)", told["description"] + told["summary"]))
        assert labels <= ({"pipeline", "sink"} if "sink" in str(told) else {"pipeline"}), rule
        assert set(re.findall(r'state="(\w+)"', rule["expr"])) <= set(metrics.UNSETTLED)
