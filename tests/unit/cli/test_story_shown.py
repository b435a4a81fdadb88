"""What the command line shows of repairs: the story of the same records, and why a request has nothing to do."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Parts, Shop
from unit.world import Durable

from onceonly.cli import main


class DurableShop(Shop, Durable):
    """A shop whose state table another process finds."""


@pytest.fixture
def shop(tmp_path, monkeypatch) -> Shop:
    for name in ("ONCEONLY_STATE", "ONCEONLY_KAFKA_BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    shop = DurableShop(tmp_path)
    assert isinstance(shop.parts, Parts)
    shop.run("run-1", TEN)
    shop.repair(keep=("late",))
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    shop.run("run-2", NEXT)
    return shop


def onceonly(*args: str) -> Any:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(main, args)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if "--json" in args else result.stdout


def lines(text: str, *words: str) -> list[list[str]]:
    """The lines that begin with one of these words, each as its words."""
    found = [line.split() for line in text.splitlines()]
    return [line for line in found if line and line[0] in words]


def test_describe_draws_what_is_in_force_in_each_sink(shop):
    said = onceonly("describe", "flights", "1")
    picture = said.split("Sink by sink (✓ in force)")[1].split("Timeline")[0]
    first, second = lines(picture, "1", "2")
    assert " ".join(first) == "1 committed 10 rows; replaced by epoch 2 ✓ 10 rows -"
    assert " ".join(second) == "2 committed ✓ 10 rows in place of epoch 1 kept epoch 1 - ann: rates"
    assert "No rows are in force in 'new'. Complete it: onceonly run FILE.py:NAME --interval" in picture
    assert "--only new --reason …" in picture
    assert "lake of epoch 1; asked for by ann: rates" in onceonly("describe", "flights", "2")
    assert "Sink by sink" not in onceonly("describe", "flights", "3")


def test_describe_says_who_has_continued_it(shop):
    planned = shop.ask("ann: more", keep=("late", "new"))
    shop.abort(planned.epoch)
    shop.ask_as("bob", "she is ill", keep=("late", "new"))
    assert "asked for by ann: rates, then bob: she is ill" in onceonly("describe", "flights", str(planned.epoch))
    told = onceonly("describe", "flights", str(planned.epoch), "--json")
    assert told["continued_by"] == told["story"][-1]["continued_by"] == [{"who": "bob", "reason": "she is ill"}]


def test_describe_tells_a_program_the_same(shop):
    told = onceonly("describe", "flights", "2", "--json")
    assert (told["only"], told["repairs"], told["requested_by"]) == (["lake"], 1, {"who": "ann", "reason": "rates"})
    assert (told["in_force"], told["lacking"]) == ({"lake": [2], "late": [1]}, ["new"])
    assert [entry["epoch"] for entry in told["story"]] == [1, 2]
    assert told["story"][1]["sinks"]["late"]["did"] == "kept"


def test_status_shows_a_repair_by_its_sink_and_as_the_last_commit(shop):
    shop.repair("ann: past", only=("new",))
    newest, *_, first = onceonly("status", "flights", "--json")["checkpoints"]
    assert (newest["epoch"], newest["only"], newest["rows_by_sink"]) == (4, ["new"], {"new": 10})
    assert first["replaced_by"] == 2
    (pipeline,) = onceonly("status", "--json")["pipelines"]
    assert pipeline["committed_at"] == shop.now(4).updated_at.isoformat().replace("+00:00", "Z")
    assert pipeline["committed_epoch"] == 4
    assert "new 10" in onceonly("status", "flights")
