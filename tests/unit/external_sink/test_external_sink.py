"""A sink of another package: found by its entry point, it goes through every step, and is shown everywhere."""

import json
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from shutil import copy
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from codes import raises
from installed import read_project, write_metadata

from onceonly import DeltaSink, InvalidPipeline, KafkaSource, Pipeline
from onceonly.checkpoint.model import State, Transaction
from onceonly.checkpoint.sink import Sink
from onceonly.cli import main
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline import registry
from onceonly.runtime import live_services
from onceonly.runtime.live_services import LiveServices
from onceonly.settings import Settings
from onceonly.sinks.context import Context
from onceonly.testing import contract
from onceonly.testing.contract import SINK, Break, SinkContract
from onceonly.testing.fakes import FakeParts, FakeSource
from onceonly.views import descriptions, queries

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def install(folder: Path, name: str = "onceonly-sqlite", entries: Mapping[str, str] | None = None) -> None:
    """As an installer does it: the modules, and what its pyproject says about entry points."""
    project = {**read_project((HERE / "pyproject.toml").read_text()), "name": name}
    if entries:
        project["entry-points"] = {"onceonly.sinks": entries}
    write_metadata(folder, project)
    copy(HERE / "onceonly_sqlite.py", folder)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages; afterwards nothing of them is known."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)
    yield site
    registry._find_installed.cache_clear()
    sys.modules.pop("onceonly_sqlite", None)


@pytest.fixture
def sqlite(site: Path) -> Any:
    install(site)
    return import_module("onceonly_sqlite")


class Parts(LiveServices):
    """Live sinks, and fake topics."""

    def sources(self, pipeline: Pipeline) -> Mapping[str, FakeSource]:  # type: ignore[override]
        return {source.topic: FakeSource(source.topic, self.settings.home) for source in pipeline.sources}


@dataclass
class World:
    """One pipeline into the database, with two records to be read."""

    pipeline: Pipeline
    parts: Parts

    @property
    def coordinator(self) -> Coordinator:
        return live_services.open_planner(self.parts)

    def run(self, owner: str = "run-1") -> Any:
        planned = self.coordinator.plan(self.pipeline, owner, lambda checkpoint: False).checkpoint
        assert planned
        self.coordinator.stage("flights", planned.epoch, FakeParts(self.parts.settings.home).produce)
        return self.coordinator.commit("flights", planned.epoch)

    @property
    def env(self) -> dict[str, str]:
        settings = self.parts.settings
        return {"ONCEONLY_HOME": str(settings.home), "ONCEONLY_PROJECT": str(settings.project)}

    def rows(self) -> list[Any]:
        with sqlite3.connect(self.parts.settings.home / "out.db") as db:
            return [json.loads(row)["value"] for (row,) in db.execute("SELECT row FROM published")]


@pytest.fixture
def world(sqlite: Any, tmp_path: Path) -> World:
    sinks = [sqlite.SqliteSink("out", "out.db")]
    pipeline = Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs.flights:same", sinks=sinks)
    (tmp_path / "home").mkdir()
    parts = Parts(Settings.from_env({"ONCEONLY_HOME": str(tmp_path / "home"), "ONCEONLY_PROJECT": str(tmp_path)}))
    parts.sources(pipeline)["flights"].append(0, (NOON, "a"), (NOON, "b"))
    return World(pipeline, parts)


# ---- found


def test_a_definition_brings_it_back(world: World) -> None:
    stored = json.loads(json.dumps(world.pipeline.to_json()))
    assert stored["sinks"] == [{"kind": "sqlite", "name": "out", "path": "out.db", "table": "published"}]
    assert Pipeline.from_json(stored) == world.pipeline


def test_where_it_is_not_installed_it_is_refused_and_taken_for_nothing_else(world: World, site: Path) -> None:
    registry._find_installed.cache_clear()
    (site / "onceonly_sqlite-1.0.dist-info/entry_points.txt").unlink()
    with raises(InvalidPipeline, "sink-kind-unknown") as refused:
        Pipeline.from_json(world.pipeline.to_json())
    assert all(kind in refused.value.why for kind in ("delta", "files", "kafka", "state"))
    assert "Install the package that provides it" in refused.value.todo
    with raises(InvalidPipeline, "sink-kind-unknown"):
        Pipeline(name="other", source=KafkaSource("t"), transform="m:f", sinks=world.pipeline.sinks)


def test_another_pipeline_whose_sink_is_not_installed_does_not_matter(world: World, site: Path) -> None:
    world.run()
    registry._find_installed.cache_clear()
    (site / "onceonly_sqlite-1.0.dist-info/entry_points.txt").unlink()
    other = Pipeline(name="other", source=KafkaSource("flights"), transform="m:f", sinks=[DeltaSink("lake", "lake")])
    assert world.coordinator.plan(other, "run-1", lambda checkpoint: False).checkpoint


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("sqlite = onceonly_sqlite:SqliteWriter", "not a subclass of SinkConfig"),
        ("sqlite = onceonly_sqlite:Missing", "has no attribute 'Missing'"),
        ("sqlite = no_such_module:SqliteSink", "No module named 'no_such_module'"),
        ("lines = onceonly_sqlite:SqliteSink", "It needs kind = 'lines'"),
    ],
)
def test_an_entry_point_that_leads_to_nothing_usable_is_refused(site: Path, entry: str, why: str) -> None:
    kind, _, value = entry.partition(" = ")
    install(site, entries={kind: value})
    with raises(InvalidPipeline, "sink-package-broken") as refused:
        registry.sink_class(kind)
    assert why in refused.value.why
    assert "onceonly-sqlite 1.0" in refused.value.why


def test_two_packages_that_offer_one_kind_are_refused(site: Path) -> None:
    install(site)
    install(site, "another-sqlite")
    with raises(InvalidPipeline, "sink-kind-ambiguous") as refused:
        registry.sink_class("sqlite")
    assert "another-sqlite 1.0, onceonly-sqlite 1.0" in refused.value.why


def test_a_sink_that_other_processes_could_not_make_again_is_refused(sqlite: Any) -> None:
    class Mine(sqlite.SqliteSink):  # type: ignore[name-defined, misc]
        pass

    for sink, code in [
        (Mine("out", "out.db"), "sink-kind-of-another"),
        (sqlite.SqliteSink("out", Path("x")), "sink-not-storable"),
    ]:
        with raises(InvalidPipeline, code):
            Pipeline(name="flights", source=KafkaSource("t"), transform="m:f", sinks=[sink])


# ---- used


def test_it_is_planned_staged_and_committed_like_any_other(world: World) -> None:
    assert world.run().state is State.COMMITTED
    assert world.rows() == ["a", "b"]
    world.parts.sources(world.pipeline)["flights"].append(0, (NOON, "c"))
    assert world.run("run-2").decision == 2
    assert world.rows() == ["a", "b", "c"]


def test_an_aborted_attempt_leaves_nothing_and_is_staged_again(world: World) -> None:
    through = world.coordinator
    through.plan(world.pipeline, "run-1", lambda checkpoint: False)
    through.stage("flights", 1, FakeParts(world.parts.settings.home).produce)
    through.abort("flights", 1, "told to")
    live = world.parts.sink(world.pipeline, "out")
    assert live.leftovers(f"{through.state_table.id}-flights") == []
    assert world.run("run-2").state is State.COMMITTED
    assert world.rows() == ["a", "b"]


def test_a_renamed_pipeline_is_known_by_it(world: World) -> None:
    world.run()
    renamed = Pipeline.from_json({**world.pipeline.to_json(), "name": "journeys"})
    with raises(InvalidPipeline, "pipeline-renamed") as refused:
        world.coordinator.plan(renamed, "run-2", lambda checkpoint: False)
    assert "table 'published' of 'out.db'" in refused.value.why


def test_what_it_could_not_read_back_is_not_recorded(
    world: World, sqlite: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite.SqliteWriter, "stage", lambda sink, txn, rows: {"txn": txn.name})
    with raises(InvalidPipeline, "handle-unsuitable"):
        world.run()
    assert world.coordinator.state_table.view("flights").checkpoint(1).state is State.PLANNED  # type: ignore[union-attr]


# ---- shown


def test_status_and_describe_show_it(world: World) -> None:
    world.run()
    status = CliRunner().invoke(main, ["status", "flights", "--json"], env=world.env)
    assert status.exit_code == 0, status.output
    described = CliRunner().invoke(main, ["describe", "flights", "1"], env=world.env)
    assert (described.exit_code, "out" in described.output) == (0, True), described.output
    handle = world.coordinator.state_table.view("flights").checkpoint(1).handles["out"]  # type: ignore[union-attr]
    assert descriptions.describe_target(handle).endswith("out.db")


def test_status_shows_it_where_it_is_not_installed(world: World, site: Path) -> None:
    world.run()
    registry._find_installed.cache_clear()
    (site / "onceonly_sqlite-1.0.dist-info/entry_points.txt").unlink()
    for command in (["status"], ["status", "flights"], ["describe", "flights", "1"]):
        shown = CliRunner().invoke(main, command, env=world.env)
        assert (shown.exit_code, "flights" in shown.output) == (0, True), shown.output
    refused = CliRunner().invoke(main, ["sweep", "flights"], env=world.env)
    assert (refused.exit_code, "no sink of the kind 'sqlite'" in refused.output) == (2, True), refused.output


def test_what_programs_read_has_it(world: World) -> None:
    done = world.run()
    shown = queries.full_json(done, queries.timeline(world.coordinator.state_table, done))
    assert shown["definition"]["sinks"][0]["kind"] == "sqlite"
    assert (shown["handles"]["out"]["rows"], shown["published"]["out"]["rows"], shown["rows"]) == (2, 2, 2)


def test_the_pages_show_it(world: World, airflow_home: None) -> None:
    app = pytest.importorskip("onceonly.airflow.ui.app")
    from starlette.requests import Request

    done, state = world.run(), world.coordinator.state_table
    viewer = SimpleNamespace(
        state=state, may=lambda method, _: method == "GET", version=lambda name: state.view(name).head.seq
    )
    request = Request({"type": "http", "root_path": "/onceonly", "headers": []})
    page = app.one_checkpoint(request, done.pipeline, done.epoch, viewer).body.decode()
    assert ("Sink out" in page, "2 rows" in page, done.handles["out"]["target"] in page) == (True, True, True)
    page = app.one_pipeline(request, done.pipeline, viewer).body.decode()
    assert f"{done.pipeline}/{done.epoch}" in page


def test_its_assets_are_announced(world: World, airflow_home: None) -> None:
    from onceonly.airflow import assets

    assert [asset.uri for asset in assets.outlets(world.pipeline)] == ["sqlite://out.db/published"]
    [(asset, extra)] = assets.list_published(world.run())
    assert (asset.uri, extra["rows"]) == ("sqlite://out.db/published", 2)


# ---- the contract


@dataclass(frozen=True)
class Database(contract.Target):
    """The sink by itself, as any process makes it."""

    path: str

    def sink(self) -> Sink:
        written = import_module("onceonly_sqlite")
        config, settings = written.SqliteSink(SINK, self.path), Settings.from_env({})
        pipeline = Pipeline(name="flights", source=KafkaSource("t"), transform="m:f", sinks=[config])
        parts = LiveServices(settings)
        made: Sink = written.SqliteWriter(config, Context(pipeline, settings, dict, parts.kafka, parts.spark))
        return made

    def published(self) -> list[int]:
        with sqlite3.connect(self.path) as db:
            there = db.execute("SELECT name FROM sqlite_master WHERE name = 'published'").fetchall()
            found = db.execute("SELECT row FROM published").fetchall() if there else []
        return sorted(json.loads(row)["n"] for (row,) in found)

    def traces(self, txn: Transaction) -> list[Any]:
        with sqlite3.connect(self.path) as db:
            return db.execute("SELECT txn FROM rows WHERE txn = ?", (txn.name,)).fetchall()


def remove_staged_rows(target: Any, handle: Any, txn: Transaction) -> None:
    with sqlite3.connect(target.path) as db:
        db.execute("DELETE FROM rows WHERE txn = ?", (txn.name,))


class TestSqlite(SinkContract):
    breaks = (Break("staged rows removed", remove_staged_rows, "again", first=True),)

    @pytest.fixture
    def target(self, tmp_path: Path, sqlite: Any) -> contract.Target:
        return Database(str(tmp_path / "lake.db"))
