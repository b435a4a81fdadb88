"""The report of a verification, and the line that status and metrics show of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from unit.world import Durable

from onceonly.cli import main
from onceonly.statetable.table import Snapshot
from onceonly.verification.archive import Archive
from onceonly.verification.encoding import to_json
from onceonly.verification.verify import Verifier
from onceonly.views import metrics, verification_report, verified
from onceonly.views.summary import read_summaries


@pytest.fixture
def world(tmp_path: Path) -> Durable:
    return Durable.with_two_checkpoints(tmp_path)


def verify(world: Durable) -> dict[str, Any]:
    data = to_json(Verifier(lambda: Snapshot(world.state.uri), world.parts).verify("flights"))
    Archive(world.state.uri).append(data)
    return data


def damage(world: Durable) -> None:
    world.lake.remove(world.now(2).transaction("lake").name)


@pytest.mark.parametrize("render", [verification_report.render_markdown, verification_report.render_html])
def test_report_says_what_was_checked_and_found(world: Durable, render: Any) -> None:
    healthy = render(verify(world))
    for words in ("Verification of flights", "2 checkpoints: all right.", "Onceonly ", world.state.uri, "offsets-once"):
        assert words in healthy
    damage(world)
    wrong = render(verify(world))
    assert "2 checkpoints: 1 wrong, 1 right." in wrong and "commit-missing" in wrong


def test_report_shows_no_markup_of_what_it_quotes(world: Durable) -> None:
    data = verify(world)
    data["findings"] = [
        {"judgement": "wrong", "kind": "sink", "name": "<b>", "epochs": "1|2", "code": "x", "why": "a|b", "advice": ""}
    ]
    assert "<b>" not in verification_report.render_html(data) and "&lt;b&gt;" in verification_report.render_html(data)
    assert "a\\|b" in verification_report.render_markdown(data)


def test_status_has_a_line_of_the_last_verification(world: Durable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_STATE", world.state.uri)

    def status(*options: str) -> str:
        return CliRunner().invoke(main, ["status", "flights", *options]).stdout

    assert "verified" not in status() and json.loads(status("--json"))["verified"] is None
    data = verify(world)
    assert f"flights: verified right until {world.now(2).planned_at:%Y-%m-%d %H:%M:%S} UTC, checked" in status()
    expected = {"at": data["at"], "judgement": "right", "right_until": data["verified_right_until"]}
    assert json.loads(status("--json"))["verified"] == expected
    damage(world)
    verify(world)
    assert f"until {world.now(1).planned_at:%Y-%m-%d %H:%M:%S} UTC" in status() and "1 checkpoint wrong" in status()


def test_metrics_have_the_last_verification(world: Durable) -> None:
    def shown() -> dict[str, float]:
        summaries = read_summaries(world.state, ["flights"])[0].values()
        results = verified.read_last_results(world.state.uri)
        samples = metrics.list_samples(summaries, [], datetime.now(UTC), {}, results)
        return {sample.metric.name: sample.value for sample in samples if "verif" in sample.metric.name}

    assert shown() == {}
    verify(world)
    assert shown()["verified_wrong"] == 0
    assert shown()["verified_until"] == pytest.approx(world.now(2).planned_at.timestamp())
    damage(world)
    verify(world)
    assert (shown()["verified_wrong"], shown()["verified_unknown_checkpoints"]) == (1, 0)


def test_results_that_cannot_be_read_hide_nothing_else(world: Durable) -> None:
    folder = Path(world.state.uri) / "_verifications" / "_delta_log"
    folder.mkdir(parents=True)
    (folder / f"{0:020}.json").write_text("no JSON")
    assert verified.read_last_results(world.state.uri) == {}
