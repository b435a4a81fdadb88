"""onceonly metrics: from the state table alone, and with what the sources say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from exposition import parsed
from unit.world import Durable, World

from onceonly.cli import main
from onceonly.runtime import live_services
from onceonly.testing.fakes import FakeSource

pytestmark = pytest.mark.slow
LAG = 'onceonly_lag_records{pipeline="flights"}'


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP", "ONCEONLY_NOTIFY", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    world = Durable(tmp_path)
    monkeypatch.setattr(live_services, "LiveServices", lambda settings, connections: world.parts)
    return world


def metrics(*args: str) -> dict[str, float]:
    result = CliRunner(env={"COLUMNS": None}).invoke(main, ["metrics", *args])
    assert result.exit_code == 0, result.output
    return parsed(result.stdout)


def test_the_sources_are_asked_only_where_that_is_wanted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("run-1")
    world.put(7, 8)
    assert LAG not in metrics()
    assert metrics("--lag")[LAG] == 2

    def silent(self: Any) -> Any:
        raise ConnectionError("no broker answers")

    monkeypatch.setattr(FakeSource, "log", silent)
    found = metrics("--lag")
    assert LAG not in found
    assert found['onceonly_source_up{pipeline="flights"}'] == 0


def test_a_home_where_nothing_has_run_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "new"))
    assert metrics() == {}
    assert not (tmp_path / "new").exists()
