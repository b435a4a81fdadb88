"""The command line, the pages and the metrics show the same figures of a pipeline, in every state that it may be in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from exposition import parsed
from person import Person
from unit.world import Durable, minutes

from onceonly.cli import main
from onceonly.coordinator.reprocess import Reprocess
from onceonly.coordinator.stage import Produced
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink
from onceonly.views import formatting

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Using `httpx` with")]
NEVER = "never"
BAD = {"records": 1204, "undecoded": {"flights": 10}, "rejected": 2}


@dataclass(frozen=True)
class Figures:
    """What a surface shows of a pipeline, as texts."""

    latest: str  # epoch and state of the last checkpoint
    committed_at: str  # to the millisecond
    rows: str  # of that commit, by sink
    unsettled: str  # their number
    gaps: str  # their number


# ---- the states


def one_commit(world: Durable) -> None:
    world.run("run-1")


def nothing_committed(world: Durable) -> None:
    world.plan()


def the_next_is_staged(world: Durable) -> None:
    world.run("run-1")
    world.put(7)
    world.plan("run-2")
    world.stage(2)


def the_next_is_aborted(world: Durable) -> None:
    the_next_is_staged(world)
    world.abort(2)


def bad_records(world: Durable) -> None:
    world.plan()
    world.coordinator.stage("flights", 1, lambda cp: Produced(world.parts.produce(cp), BAD), None)
    world.commit(1)


def held(world: Durable) -> None:
    world.run("run-1")
    world.put(7)
    world.pipeline = replace(world.pipeline, gate=Gate(on_fail="hold", min_rows={"lake": 9}))
    world.plan("run-2")
    world.stage(2)
    world.parts.inspector(world.pipeline).find("critical")
    world.coordinator.gate("flights", 2, "run-2")


def several_are_open(world: Durable) -> None:
    world.put(*range(5, 60))
    world.run("run-1", minutes(0, 10))
    world.plan("run-2", minutes(10, 20))
    world.plan("run-3", minutes(20, 30))


def the_last_commit_reaches_less_far(world: Durable) -> None:
    world.put(*range(5, 60))
    world.run("run-1", minutes(30, 45))
    world.run("run-2", minutes(0, 10))
    world.plan("run-3", minutes(10, 20))


def an_aborted_day(world: Durable) -> None:
    several_are_open(world)
    world.abort(2)
    world.stage(3)
    world.commit(3)


def a_skipped_day(world: Durable) -> None:
    an_aborted_day(world)
    Person(world.coordinator).skip("flights", minutes(10, 20), "ann", "a strike")


def a_repair(world: Durable) -> None:
    world.put(*range(5, 60))
    world.run("run-1", minutes(0, 10))
    request = Reprocess("run-2, 1", keep=("files",), who="ann", reason="wrong rates")
    world.coordinator.plan(world.pipeline, "run-2", world.alive, minutes(0, 10), request)
    world.stage(2)
    world.commit(2)


CHAINED = [one_commit, nothing_committed, the_next_is_staged, the_next_is_aborted, bad_records, held]
INTERVALS = [several_are_open, the_last_commit_reaches_less_far, an_aborted_day, a_skipped_day, a_repair]


# ---- what shows them


def of_json(overview: dict[str, Any]) -> Figures:
    at, by_sink = overview["committed_at"], overview["rows_by_sink"]
    rows = formatting.counts(by_sink) + (f" ({overview['bad']} bad)" if overview["bad"] else "")
    assert overview["rows"] == (sum(by_sink.values()) if at else None)
    latest = f"{overview['epoch']} {'held' if overview['held'] else overview['state']}"
    return Figures(latest, _to_millisecond(at), rows, str(len(overview["unsettled"])), str(len(overview["gaps"])))


def of_text(text: str, time: str) -> Figures:
    """Of `onceonly status`. Its table has the age of the last commit, so `time` is what its JSON has."""
    titles, values = ([cell.strip() for cell in re.split(r"\s{2,}", line)] for line in text.splitlines()[:2])
    row = dict(zip(titles, [*values, ""], strict=False))
    assert row["last commit"] == NEVER if time == NEVER else row["last commit"].endswith(" ago")
    gaps = text.count("no checkpoint covers")
    return Figures(f"{row['epoch']} {row['state']}", time, row["its rows"], _count(row["unsettled"]), str(gaps))


def of_page(html: str) -> Figures:
    """Of the page with all pipelines."""
    page = Cells()
    page.feed(html)
    _, latest, at, rows, _, unsettled, gaps, _ = page.cells
    epoch, state = latest.removeprefix("epoch ").split()[:2]
    more = re.search(r"(\d+) more", gaps)
    number = 0 if gaps == "none" else 1 + int(more[1] if more else 0)
    time = _to_millisecond(page.times[0]) if page.times else at
    return Figures(f"{epoch} {state}", time, rows.replace("\N{NO-BREAK SPACE}", " "), _count(unsettled), str(number))


def of_metrics(found: dict[str, float]) -> Figures:
    """The state of the last checkpoint is only shown while it is open, or aborted."""

    def value(name: str) -> float | None:
        return found.get(f'onceonly_{name}{{pipeline="flights"}}')

    by_sink, states = {}, {}
    for key, number in found.items():
        if match := re.fullmatch(r'onceonly_last_commit_rows{pipeline="flights",sink="(.*)"}', key):
            by_sink[match[1]] = int(number)
        if match := re.fullmatch(r'onceonly_checkpoints{pipeline="flights",state="(.*)"}', key):
            states[match[1]] = int(number)
    at, bad = value("last_commit_timestamp_seconds"), value("last_commit_bad_records")
    rows = formatting.counts(by_sink) + (f" ({bad:.0f} bad)" if bad else "")
    aborted = " aborted" if value("last_checkpoint_aborted") else ""
    time = NEVER if at is None else f"{at:.3f}"
    open_ = str(sum(states.values()))
    return Figures(f"{value('epochs_total'):.0f}{aborted}", time, rows, open_, f"{value('gaps'):.0f}")


class Cells(HTMLParser):
    """The cells of the only row of a table's body, and the times in it."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.times: list[str] = []
        self._is_in_body = self._is_in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tbody":
            self._is_in_body = True
        if tag in ("td", "th") and self._is_in_body:
            self._is_in_cell = True
            self.cells.append("")
        if tag == "time" and self._is_in_body:
            self.times.append(dict(attrs)["datetime"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tbody":
            self._is_in_body = False
        if tag in ("td", "th"):
            self._is_in_cell = False
            self.cells = [*map(str.strip, self.cells)]

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.cells[-1] = " ".join([*self.cells[-1].split(" "), *data.split()]).strip()


def _to_millisecond(iso: str | None) -> str:
    return NEVER if iso is None else f"{datetime.fromisoformat(iso).timestamp():.3f}"


def _count(unsettled: str) -> str:
    """The number that '2, the oldest is epoch 6' or 'epoch 6' says."""
    if unsettled in ("", "none"):
        return "0"
    return "1" if unsettled.startswith("epoch ") else unsettled.split(",")[0]


def onceonly(*args: str) -> str:
    result = CliRunner(env={"COLUMNS": None}).invoke(main, args)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("reach", [*CHAINED, *INTERVALS], ids=lambda reach: reach.__name__)
def test_the_surfaces_show_the_same(
    reach: Callable[[Durable], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.airflow.ui import app

    for name in ("ONCEONLY_STATE", "ONCEONLY_NOTIFY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    sinks = [DeltaSink("lake", "lake"), DeltaSink("files", "files")]
    world = Durable(tmp_path, mode="interval" if reach in INTERVALS else "chained", sinks=sinks)
    reach(world)
    viewer: Any = SimpleNamespace(state=world.state, pipelines=lambda: world.state.versions(), list_failed_plans=list)
    request: Any = SimpleNamespace(scope={})

    (overview,) = json.loads(onceonly("status", "--json"))["pipelines"]
    expected = of_json(overview)
    assert of_text(onceonly("status"), expected.committed_at) == expected
    assert of_page(bytes(app.pipelines(request, viewer).body).decode()) == expected
    for text in (onceonly("metrics"), bytes(app.serve_metrics(viewer, lag=False).body).decode()):
        found = parsed(text)
        shown = of_metrics(found)
        assert shown.latest in (expected.latest, expected.latest.split()[0])
        assert (shown.committed_at, shown.rows, shown.unsettled, shown.gaps) == (
            expected.committed_at,
            expected.rows,
            expected.unsettled,
            expected.gaps,
        )
        until = found.get('onceonly_published_until_timestamp_seconds{pipeline="flights"}')
        assert _to_millisecond(overview["complete_until"]) == (NEVER if until is None else f"{until:.3f}")
