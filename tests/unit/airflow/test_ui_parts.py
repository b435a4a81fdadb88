"""Parts of the checkpoints page that need no server: how long it waits, and what its charts say."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from exposition import parsed
from patience import PATIENCE
from unit.world import Durable

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval, TopicRange
from onceonly.errors import OutcomeUnknown
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import live_services
from onceonly.runtime.live_services import LiveServices
from onceonly.statetable.gaps import Coverage
from onceonly.testing.fakes import FakeParts
from onceonly.views.summary import Lag, Summary

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("airflow_home")]
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def checkpoint(epoch: int, planned: datetime, ended: datetime, **columns: Any) -> Checkpoint:
    given: dict[str, Any] = {"state": State.COMMITTED, "interval": None, "handles": {"out": {"rows": epoch * 100}}}
    return Checkpoint(
        pipeline="p",
        epoch=epoch,
        definition=Definition({"sinks": [{"name": "out"}]}),
        ranges=(TopicRange("t", "id", {0: (0, 1)}),),
        owners=("o",),
        first_seq=epoch,
        last_seq=epoch,
        planned_at=planned,
        updated_at=ended,
        **(given | columns),
    )


# ---- answers


def test_nobody_waits_for_a_service_that_does_not_answer() -> None:
    from onceonly.airflow.ui.live import Answers

    asked: Answers[str, int] = Answers()
    silence = threading.Event()

    def slow() -> int:
        assert silence.wait(PATIENCE)
        return 1

    assert asked.ask({"slow": slow, "quick": lambda: 2}, 0.01)["slow"] is None
    silence.set()
    assert asked.ask({"slow": lambda: 3}, PATIENCE) == {"slow": 1}  # one that is under way is not asked twice


def test_an_answer_stands_for_a_while_and_the_last_one_until_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.ui import live

    asked: live.Answers[str, int] = live.Answers()
    assert asked.ask({"lag": lambda: 1}, PATIENCE) == {"lag": 1}
    assert asked.ask({"lag": lambda: 2}, PATIENCE) == {"lag": 1}
    monkeypatch.setattr(live, "ANSWER_TTL_SECONDS", -1.0)
    assert asked.ask({"lag": lambda: 3}, PATIENCE) == {"lag": 3}
    silence = threading.Event()
    assert asked.ask({"lag": lambda: 4 if silence.wait(PATIENCE) else 5}, 0.01) == {"lag": 3}
    silence.set()


def test_an_error_is_not_told_again_once_there_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.ui import live

    def down() -> int:
        raise ConnectionError("the broker is down")

    asked: live.Answers[str, int] = live.Answers()
    monkeypatch.setattr(live, "ANSWER_TTL_SECONDS", -1.0)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            asked.ask({"lag": down}, 60)
    assert asked.ask({"lag": lambda: 1}, PATIENCE) == {"lag": 1}


# ---- charts


def test_bars_run_from_old_to_new_and_leave_out_what_is_not_known() -> None:
    from onceonly.airflow.ui import charts

    young = checkpoint(3, NOON, NOON, state=State.PLANNED, handles={})
    drawn = charts.rows([young, checkpoint(2, NOON, NOON), checkpoint(1, NOON, NOON)])
    assert [bar.epoch for bar in drawn.bars] == [1, 2]
    assert [bar.height for bar in drawn.bars] == [pytest.approx(drawn.bars[1].height / 2), drawn.bars[1].height]
    assert drawn.bars[1].label == "epoch 2: 200 rows, committed"
    assert (drawn.first, drawn.last, drawn.summary) == ("epoch 1", "epoch 3", "2 checkpoints, from 100 to 200 rows")
    assert [tick.label for tick in drawn.ticks] == ["0", "100", "200"]


def test_equal_values_are_told_once_and_no_tick_is_rounded() -> None:
    from onceonly.airflow.ui import charts

    seven = {"handles": {"out": {"rows": 7}}}
    both = [checkpoint(epoch, NOON, NOON + MINUTE / 12, **seven) for epoch in (2, 1)]
    assert charts.rows(both).summary == "2 checkpoints, each 7 rows"
    assert charts.rows(both[:1]).summary == "1 checkpoint, 7 rows"
    assert [tick.label for tick in charts.durations(both).ticks] == ["0 s", "5 s"]


def test_the_last_label_is_below_the_last_bar_where_bars_are_few() -> None:
    from onceonly.airflow.ui import charts

    few, many = ([checkpoint(epoch, NOON, NOON) for epoch in range(count, 0, -1)] for count in (7, 30))
    drawn = charts.rows(few)
    assert drawn.end == pytest.approx(drawn.bars[-1].x + drawn.bars[-1].width + 1)
    assert charts.rows(many).end == pytest.approx(charts.WIDTH - charts.RIGHT)


def test_who_did_it_comes_last_and_a_number_stays_with_its_sink() -> None:
    from onceonly.airflow.ui import pages

    assert pages.words({"by": "recovery", "outcome": "failed", "docs": "x"}) == "outcome failed, by recovery"
    lost = {"who": "ann", "reason": "an old copy", "rows": 4_211}
    assert pages.words(lost) == "an old copy, 4,211 rows, by ann"
    both = checkpoint(1, NOON, NOON, handles={"delays": {"rows": 4_288}, "late": {"rows": 26}})
    assert pages.rows(both) == "delays\N{NO-BREAK SPACE}4,288, late\N{NO-BREAK SPACE}26"


def test_a_pipeline_without_a_staged_checkpoint_has_empty_charts() -> None:
    from onceonly.airflow.ui import charts

    planned = [checkpoint(1, NOON, NOON, state=State.PLANNED, handles={})]
    for drawn in (charts.rows(planned), charts.durations(planned), charts.rows([])):
        assert drawn.bars == drawn.ticks == []
        assert drawn.summary.startswith("none")
    assert charts.freshness(planned, NOON) is None


def test_lag_grows_with_the_clock_and_falls_with_each_commit() -> None:
    from onceonly.airflow.ui import charts

    first = checkpoint(1, NOON, NOON + 2 * MINUTE)
    second = checkpoint(2, NOON + 10 * MINUTE, NOON + 11 * MINUTE)
    drawn = charts.freshness([second, first], NOON + 15 * MINUTE)
    assert drawn is not None
    assert drawn.summary == "now 5 min, at most 11 min"
    heights = [charts.FLOOR - float(point.split(",")[1]) for point in drawn.line.split()]
    scale = heights[1] / 11
    assert [height / scale for height in heights] == pytest.approx([2, 11, 1, 5], abs=0.2)


def test_an_old_interval_that_is_committed_late_makes_nothing_fresher() -> None:
    from onceonly.airflow.ui import charts

    hour = timedelta(hours=1)
    newest = checkpoint(1, NOON, NOON + MINUTE, interval=Interval(NOON - hour, NOON))
    backfilled = checkpoint(2, NOON, NOON + 5 * MINUTE, interval=Interval(NOON - 9 * hour, NOON - 8 * hour))
    drawn = charts.freshness([backfilled, newest], NOON + 10 * MINUTE)
    assert drawn is not None
    assert drawn.summary == "now 10 min, at most 10 min"


# ---- lag


@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # of Airflow's own, when its server is imported
def test_a_pipeline_that_leaves_out_time_is_not_up_to_date() -> None:
    from onceonly.airflow.ui import app

    gaps = (Interval(NOON, NOON + MINUTE), Interval(NOON + 3 * MINUTE, NOON + 4 * MINUTE))
    assert app._describe_lag(Lag(0, None))["state"] == "even"
    assert app._describe_lag(Lag(0, None, gaps)) == {"state": "behind", "text": "2 gaps", "why": ""}
    assert app._describe_lag(Lag(7, None, gaps[:1]))["text"] == "up to 7 records, 1 gap"
    since = datetime.now(UTC) - timedelta(days=18)
    assert app._describe_lag(Lag(7, since, gaps[:1]))["text"] == "up to 7 records, 1 gap; complete until 18 d ago"


def test_lag_in_time_begins_where_the_oldest_gap_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_services, "_count_uncovered", lambda logs, summary: (0, 0))
    parts = cast(LiveServices, FakeParts(Path("/nowhere")))
    source, sinks = KafkaSource("t"), [DeltaSink("out", "out")]
    pipeline = Pipeline(name="p", source=source, transform="a:b", sinks=sinks, mode="interval")
    definition, interval = Definition(pipeline.to_json()), Interval(NOON - MINUTE, NOON)
    newest = replace(checkpoint(2, NOON, NOON, interval=interval), definition=definition)
    gap = Interval(NOON - 5 * MINUTE, NOON - MINUTE)
    for gaps, since in (((), NOON), ((gap,), gap.start)):
        assert live_services.measure_lag(parts, Summary("p", newest, newest, (), Coverage(gaps, NOON))).since == since


# ---- for Prometheus


@pytest.mark.filterwarnings("ignore:Using `httpx` with")
def test_prometheus_gets_what_the_user_may_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.ui import app, live

    for name in ("flights", "orders"):
        world = Durable(tmp_path, name=name, sinks=[DeltaSink("lake", name)])
        world.plan()
    asked: list[str] = []

    def lags(found: list[Summary]) -> dict[str, Lag | None]:
        asked.extend(each.name for each in found)
        return {each.name: Lag(3) for each in found}

    monkeypatch.setattr(live, "lags", lags)
    seen = {"flights": world.state.versions()["flights"], "unreadable": 7}
    viewer: Any = SimpleNamespace(state=world.state, pipelines=lambda: seen)
    monkeypatch.setattr(world.state, "recent", damaged(world.state.recent))
    answer = app.serve_metrics(viewer)
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = parsed(bytes(answer.body).decode())
    assert found['onceonly_lag_records{pipeline="flights"}'] == 3
    assert found['onceonly_pipeline_readable{pipeline="unreadable"}'] == 0
    assert "orders" not in str(found) and asked == ["flights"]
    assert 'onceonly_lag_records{pipeline="flights"}' not in parsed(
        bytes(app.serve_metrics(viewer, lag=False).body).decode()
    )
    assert asked == ["flights"]
    nobody: Any = SimpleNamespace(pipelines=dict)
    assert bytes(app.serve_metrics(nobody).body) == b""


def damaged(recent: Any) -> Any:
    """The rows of one pipeline cannot be read."""

    def read(names: list[str], most: int) -> Any:
        if "unreadable" in names:
            raise OutcomeUnknown("unreadable: the state table is damaged.")
        return recent(names, most)

    return read


# ---- what is not shown


@pytest.fixture
def password() -> str:
    """Of a Kafka connection that this process has looked up."""
    from onceonly.airflow.ui import pages

    pages.mask_secrets({"sasl.username": "reader", "sasl.password": "Kn0wn-t0-few", "ssl.key.pem": "----- a key"})
    return "Kn0wn-t0-few"


@pytest.mark.filterwarnings("ignore:Using `httpx` with")  # Airflow imports Starlette's test client
def test_an_error_answer_holds_no_password(password: str) -> None:
    from fastapi import Request

    from onceonly.airflow.ui.app import render_onceonly_error
    from onceonly.errors import CannotPublish

    error = CannotPublish(
        "hdfs://user:in-the-address@namenode/lake cannot be reached.",
        f"the broker refused {password} and '----- a key' of reader.",
        "See https://user:p@ss@docs.example/x.",
    )
    answer = render_onceonly_error(Request({"type": "http", "method": "POST"}), error)
    assert json.loads(bytes(answer.body)) == {
        "what": "hdfs://…@namenode/lake cannot be reached.",
        "why": "the broker refused *** and '***' of reader.",
        "todo": "See https://…@docs.example/x.",
    }


def test_pages_hold_no_password_wherever_it_was_recorded(password: str) -> None:
    from jinja2 import Environment

    from onceonly.airflow.ui import pages

    templates: Environment = pages._templates
    text = "{% macro told(x) %}<b>{{ x }}</b>{% endmacro %}<{{ why }}> {{ entry | words }} "
    text += "{{ entry | pretty }} {{ told(why) }}"
    shown = templates.from_string(text).render(why=f"no: {password} & x", entry={"why": f"{password} at ftp://u:p@h"})
    assert password not in shown
    assert shown.startswith("<no: *** &amp; x> *** at ftp://…@h {")
    assert shown.endswith("<b>no: *** &amp; x</b>")


def test_scripts_of_a_page_share_no_name() -> None:
    """A name that two of them declare is a syntax error of the second, which then does nothing at all."""
    declared: dict[str, str] = {}
    for script in sorted((files("onceonly.airflow.ui") / "static").iterdir(), key=lambda file: file.name):
        if script.name.endswith(".js"):
            names = re.findall(r"^(?:async )?(?:function|const|let) (\w+)", script.read_text(), re.MULTILINE)
            for name in names:
                assert declared.setdefault(name, script.name) == script.name, name
    assert "ask" in declared


# ---- what a run does now


def test_progress_of_a_killed_try_is_not_that_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow.ui import work
    from onceonly.airflow.ui.owner_runs import ActiveTask, OwnerRun
    from onceonly.runtime.stage_progress import StageProgress
    from onceonly.spark.progress import Work

    written = StageProgress(NOON, NOON + MINUTE, "", Work(records=3), total=9)
    planned = checkpoint(1, NOON, NOON, state=State.PLANNED)
    monkeypatch.setattr(work, "read_progress", lambda *_: written)

    def describe(state: str, since: datetime) -> str:
        monkeypatch.setattr(work, "read_active_tasks", lambda _: [ActiveTask("stage", state, since)])
        return work.describe_work("state", planned, OwnerRun("p", "run", "running"))

    assert "3 of up to 9 records read" in describe("running", NOON)
    assert "records read" not in describe("running", NOON + 2 * MINUTE)
    failed = describe("up_for_retry", NOON + 2 * MINUTE)
    assert failed.startswith("stage has failed and will be tried again: it failed at 12:02:00 UTC (")
