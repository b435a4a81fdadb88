"""What tasks send to Airflow's metrics, in place of which these tests keep it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from collector import collector
from patience import PATIENCE
from unit.world import Durable, World

import onceonly
from onceonly.coordinator.coordinator import Coordinator
from onceonly.pipeline.gate import Gate
from onceonly.pipeline.sinks import DeltaSink

pytestmark = pytest.mark.usefixtures("airflow_home")


@dataclass
class Sent:
    """Calls of Airflow's functions: (name, value, tags)."""

    counters: list[tuple[str, Any, Any]] = field(default_factory=list)
    gauges: dict[tuple[str, ...], float] = field(default_factory=dict)
    timings: list[tuple[str, Any, Any]] = field(default_factory=list)

    def counted(self, name: str) -> list[tuple[Any, Any]]:
        return [(value, tags) for each, value, tags in self.counters if each == name]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    from onceonly.airflow import stats

    kept = Sent()
    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "True")
    monkeypatch.setattr(stats.stats(), "incr", lambda name, n=1, tags=None: kept.counters.append((name, n, tags)))
    monkeypatch.setattr(stats.stats(), "timing", lambda name, dt, tags=None: kept.timings.append((name, dt, tags)))

    def gauge(name: str, value: float, tags: Any = None) -> None:
        kept.gauges[name, *sorted((tags or {}).values())] = value

    monkeypatch.setattr(stats.stats(), "gauge", gauge)
    return kept


def counting(world: World) -> Coordinator:
    """As the operators' coordinator is."""
    from onceonly.airflow import stats

    return Coordinator(world.state, world.parts, stats.count_transition)


def test_what_a_task_records_is_counted_by_pipeline_and_sink(tmp_path: Path, sent: Sent) -> None:
    world = World(tmp_path)
    through = counting(world)
    through.plan(world.pipeline, "run-1", world.alive)
    through.stage("flights", 1, world.parts.produce)
    through.commit("flights", 1)
    mine = {"pipeline": "flights"}
    names = [name for name, _, _ in sent.counters]
    assert [names.count(f"onceonly.{step}") for step in ("planned", "committing", "published", "committed")] == [
        1,
        1,
        2,
        1,
    ]
    assert sent.counted("onceonly.published") == [(1, {**mine, "sink": sink}) for sink in ("files", "lake")]
    assert sent.counted("onceonly.rows") == [(5, {**mine, "sink": sink}) for sink in ("files", "lake")]
    ((name, took, tags),) = sent.timings
    assert (name, tags) == ("onceonly.checkpoint.duration", mine)
    assert took == world.now(1).updated_at - world.now(1).planned_at


def test_a_verdict_is_counted_by_its_outcome_and_an_abort(tmp_path: Path, sent: Sent) -> None:
    world = World(tmp_path, sinks=[DeltaSink("lake", "lake")], gate=Gate(min_rows={"lake": 9}))
    through = counting(world)
    through.plan(world.pipeline, "run-1", world.alive)
    through.stage("flights", 1, world.parts.produce)
    world.parts.inspector(world.pipeline).find("critical")
    through.gate("flights", 1, "run-1")
    through.abort("flights", 1, "the gate failed it")
    assert sent.counted("onceonly.verdict") == [(1, {"pipeline": "flights", "outcome": "failed"})]
    assert sent.counted("onceonly.aborted") == [(1, {"pipeline": "flights"})]


def test_an_attempt_that_spark_has_staged_is_counted_with_those_before_it(tmp_path: Path, sent: Sent) -> None:
    from onceonly.airflow import stats

    world = World(tmp_path)
    world.plan()
    world.files.fail("stage", "before")
    with pytest.raises(ConnectionError):
        world.stage()
    stats.count_staged(world.stage())
    mine = {"pipeline": "flights"}
    assert sent.counters == [("onceonly.staged", 1, mine), ("onceonly.retries", 1, mine)]


def test_plain_statsd_has_the_tags_in_the_name(tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.airflow import stats

    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
    world = World(tmp_path)
    counting(world).plan(world.pipeline, "run-1", world.alive)
    assert sent.counters == [("onceonly.planned.flights", 1, None)]
    stats.measure_pipelines(world.state, world.parts)
    assert sent.gauges["onceonly.checkpoints.flights.planned",] == 1
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    stats.measure_pipelines(world.state, world.parts)
    assert sent.gauges["onceonly.checkpoints", "flights", "planned"] == 1


def test_gauges_have_every_pipeline_with_its_lag_and_its_age(tmp_path: Path, sent: Sent) -> None:
    from onceonly.airflow import stats

    world = Durable(tmp_path)
    world.run("run-1")
    world.put(8, 9)
    other = Durable(tmp_path, name="orders", sinks=[DeltaSink("lake", "orders")])
    other.plan("run-1")
    stats.measure_pipelines(world.state, world.parts)
    assert sent.gauges["onceonly.lag_records", "flights"] == 7
    assert sent.gauges["onceonly.lag_records", "orders"] == 12  # nothing of it is committed
    assert sent.gauges["onceonly.checkpoints", "orders", "planned"] == 1
    assert sent.gauges["onceonly.checkpoints", "flights", "planned"] == 0
    assert 0 <= sent.gauges["onceonly.published_until_age", "flights"] < 3600
    assert not [name for name, *_ in sent.gauges if "epochs" in name]  # a counter: it would be added up


def test_a_source_that_does_not_answer_in_time_leaves_out_its_lag(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    from onceonly.airflow import stats
    from onceonly.runtime import live_services

    world, silence = World(tmp_path), threading.Event()
    world.run("run-1")
    monkeypatch.setattr(live_services, "measure_lag", lambda *_: silence.wait(PATIENCE))
    monkeypatch.setattr(stats, "LAG_TIMEOUT_SECONDS", 0.01)
    stats.measure_pipelines(world.state, world.parts)
    silence.set()
    assert ("onceonly.published_until_age", "flights") in sent.gauges
    assert ("onceonly.lag_records", "flights") not in sent.gauges


def test_nothing_is_asked_or_sent_where_metrics_are_off(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.airflow import stats

    monkeypatch.setenv("AIRFLOW__METRICS__OTEL_ON", "False")
    world = World(tmp_path)
    counting(world).plan(world.pipeline, "run-1", world.alive)
    stats.count_staged(world.stage())
    stats.measure_pipelines(SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
    assert not sent.counters and not sent.gauges


@pytest.mark.filterwarnings("error")
def test_metrics_that_cannot_be_sent_stop_nothing(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from onceonly.airflow import stats

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(stats.stats(), "incr", broken)
    world = World(tmp_path)
    counting(world).plan(world.pipeline, "run-1", world.alive)
    assert world.now(1).state.value == "planned"
    assert "could not be sent" in caplog.text


def test_recovery_sets_gauges_after_all_is_settled_and_their_error_is_not_its(
    tmp_path: Path, sent: Sent, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.airflow import recovery, stats

    world = World(tmp_path)
    world.plan("airflow:flights:run-1")
    world.stage()
    task = recovery.RecoverOperator(task_id="recover")
    through = Coordinator(world.state, world.parts, task._log_transition)
    monkeypatch.setattr(task, "coordinator", lambda: through)
    monkeypatch.setattr(recovery.OnceonlyOperator, "services", lambda self: world.parts)
    ti = SimpleNamespace(get_dagrun_state=lambda *_: "failed", xcom_push=lambda **_: None)
    monkeypatch.setattr("onceonly.runtime.job_report.sweep_reports", lambda state: None)
    monkeypatch.setattr("onceonly.runtime.job_report.list_drivers", lambda state: [])
    monkeypatch.setattr("onceonly.runtime.driver.list_drivers", lambda state: [])
    assert task.execute({"ti": ti}) == {"flights": {1: "committed"}}
    assert sent.gauges["onceonly.checkpoints", "flights", "staged"] == 0
    assert sent.counted("onceonly.committed") == [(1, {"pipeline": "flights"})]

    def broken(*_: Any) -> None:
        raise OSError("no state table")

    monkeypatch.setattr(stats, "measure_pipelines", broken)
    assert task.execute({"ti": ti}) == {}


TASK = """
import sys
from pathlib import Path
from airflow.sdk.observability import stats as airflows
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory
from onceonly.airflow import stats
from onceonly.coordinator.coordinator import Coordinator
from unit.world import World

airflows.initialize(factory=get_stats_factory(), export_legacy_names=False)  # as the process of a task does
world = World(Path(sys.argv[1]))
through = Coordinator(world.state, world.parts, stats.count_transition)
through.plan(world.pipeline, "run", world.alive)
stats.count_staged(through.stage("flights", 1, world.parts.produce))
through.commit("flights", 1)
world.put(7)
stats.measure_pipelines(world.state, world.parts)
"""


@pytest.mark.slow
def test_a_real_collector_of_opentelemetry_gets_them_with_their_tags(tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(__file__).parents[2]), str(Path(onceonly.__file__).parents[1])])
    with collector() as found:
        env = {**os.environ, **found.env, "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", TASK, str(tmp_path)], env=env, check=True, timeout=PATIENCE)
    mine = "flights"
    assert [found.values[f"onceonly.{name}", mine] for name in ("planned", "staged", "committed")] == [1, 1, 1]
    assert found.values["onceonly.rows", mine, "lake"] == 5
    assert found.values["onceonly.checkpoint.duration", mine] > 0
    assert found.values["onceonly.checkpoints", mine, "held"] == 0
    assert found.values["onceonly.lag_records", mine] == 1
