"""onceonly adopt: what it shows, what it records, and what it refuses, beside real Delta logs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import CommitProperties, Transaction, write_deltalake
from unit.streaming_checkpoint import QUERY, write_checkpoint, write_offsets
from unit.world import Durable, values

from onceonly.cli import main
from onceonly.runtime import adoption, live_services
from onceonly.settings import Settings

PIPELINES = """
from onceonly import DeltaSink, KafkaSource, Pipeline, StateSink

sinks = [DeltaSink("lake", "lake"), DeltaSink("files", "files")]
flights = Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs.flights:clean", sinks=sinks)
"""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Durable]:
    for name in [name for name in os.environ if name.startswith("ONCEONLY_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    (tmp_path / "pipelines.py").write_text(PIPELINES)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    world = Durable(tmp_path / "home")
    parts: Any = world.parts
    parts.settings = Settings.from_env()
    monkeypatch.setattr(live_services, "LiveServices", lambda settings, connections: parts)
    yield world


def adopt(*options: str) -> Result:
    return CliRunner().invoke(main, ["adopt", "pipelines.py:flights", *options])


def answer(*options: str) -> dict[str, Any]:
    result = adopt(*options, "--json")
    assert result.exit_code == 0, result.output
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def refusal(*options: str) -> str:
    result = adopt(*options, "--json")
    assert result.exit_code in (1, 2), result.output
    return str(json.loads(result.stdout)["code"])


def commit_batch(table: Path, batch: int, query: str = QUERY) -> None:
    """Commit rows as Spark's own streaming sink does: with the id of the query, and the number of the batch."""
    properties = CommitProperties(app_transactions=[Transaction(query, batch)])
    write_deltalake(table, pa.table({"value": [batch]}), mode="append", commit_properties=properties)


@pytest.mark.parametrize(("last", "start", "outcome"), [(2, 3, "published"), (1, 2, "not published")])
def test_log_of_the_sink_shows_the_planned_batch(
    world: Durable, tmp_path: Path, last: int, start: int, outcome: str
) -> None:
    write_checkpoint(tmp_path / "old", committed=1, planned=2)
    for batch in range(last + 1):
        commit_batch(tmp_path / "home" / "lake", batch)
    shown = answer("--checkpoint", "old")
    planned = {"batch": 2, "outcome": outcome, "starts": {"flights": {"0": 2}}, "ends": {"flights": {"0": 3}}}
    assert (shown["start"], shown["planned"], shown["epoch"]) == ({"flights": {"0": start}}, planned, None)
    assert world.now() is None
    assert answer("--checkpoint", "old", "--write")["epoch"] == 1
    world.run("run-1")
    assert values(world.lake) == list(range(start, 5))


def test_text_says_what_is_planned_and_what_to_do(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=1, planned=2)
    commit_batch(tmp_path / "home" / "lake", 2)
    shown = " ".join(adopt("--checkpoint", "old").stdout.split())
    assert "topic 'flights': start={0: 3}" in shown
    assert "topic 'flights' partition 0: offsets from 2 up to 3" in shown
    assert "Nothing was recorded. The option --write" in shown
    recorded = " ".join(adopt("--checkpoint", "old", "--write").stdout.split())
    assert "epoch 1: the first checkpoint begins there" in recorded


def test_table_can_be_named(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=1, planned=2)
    commit_batch(tmp_path / "home" / "lake", 0)
    commit_batch(tmp_path / "other", 2)
    assert refusal("--checkpoint", "old") == "streaming-batch-unknown"
    assert answer("--checkpoint", "old", "--table", "other")["start"] == {"flights": {"0": 3}}
    assert refusal("--checkpoint", "old", "--table", "nowhere") == "not-a-delta-table"


def test_batches_of_another_query_show_nothing(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=1, planned=2)
    commit_batch(tmp_path / "home" / "lake", 2, query="another")
    assert refusal("--checkpoint", "old", "--write") == "streaming-batch-unknown"
    assert world.now() is None


def test_query_that_stopped_between_batches_needs_no_table(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=2, planned=2)
    shown = answer("--checkpoint", "old", "--write")
    assert (shown["start"], shown["planned"]) == ({"flights": {"0": 3}}, None)
    assert shown["job"] == {"folder": str(tmp_path / "old"), "query": QUERY, "committed": 2, "published": 2}


def test_writing_twice_records_once(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=2, planned=2)
    assert answer("--checkpoint", "old", "--write") == answer("--checkpoint", "old", "--write")
    assert answer("--checkpoint", "old")["epoch"] == 1
    assert world.events() == ["empty"]


def test_pipeline_that_has_begun_is_refused_without_write_as_well(world: Durable, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "old", committed=2, planned=2)
    world.run("run-1")
    assert refusal("--checkpoint", "old") == refusal("--checkpoint", "old", "--write") == "pipeline-has-begun"


def test_query_at_work_is_refused(world: Durable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path / "old", committed=2, planned=2)
    read = adoption.read_progress

    def read_and_go_on(files: Any, folder: str) -> Any:
        progress = read(files, folder)
        write_offsets(tmp_path / "old", 3, {"flights": {0: 4}})
        return progress

    monkeypatch.setattr(adoption, "read_progress", read_and_go_on)
    assert refusal("--checkpoint", "old", "--write") == "streaming-query-active"
    assert world.now() is None


def test_group_is_recorded(world: Durable) -> None:
    world.source.commit_group("flink", {0: 4})
    shown = answer("--group", "flink", "--write")
    assert (shown["job"], shown["start"], shown["epoch"]) == ({"group": "flink"}, {"flights": {"0": 4}}, 1)
    world.run("run-1")
    assert values(world.lake) == [4]


def test_checkpoint_folder_on_unknown_storage_is_refused(world: Durable) -> None:
    assert refusal("--checkpoint", "ftp://host/old") == "storage-unsupported"


@pytest.mark.parametrize("options", [[], ["--checkpoint", "a", "--group", "b"], ["--group", "b", "--table", "c"]])
def test_options_that_name_no_job_or_two(world: Durable, options: list[str]) -> None:
    assert adopt(*options).exit_code == 2
