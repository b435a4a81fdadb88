"""What the conf of a run asks for: some sinks to be written again, kept, or completed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.coordinator.test_repairs import LAKE, LATE, NEW, NEXT, TEN, Shop, corrected

from onceonly.checkpoint.offsets import Interval
from onceonly.pipeline.sinks import DeltaSink, KafkaSink

pytestmark = pytest.mark.usefixtures("airflow_home")
KEEP = {"reprocess": True, "keep": ["late"], "reason": "rates"}
AGAIN = {"reprocess": True, "again": "late", "reason": "rates"}
ONLY_NEW = {"only": ["new"], "reason": "its past"}


class Runs:
    """The runs of one DAG: their plan tasks, and the steps that follow."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.clears: dict[str, int] = {}

    def plan(
        self, conf: dict[str, Any], interval: Interval | None = TEN, run: str = "", who: str | None = "ann"
    ) -> int:
        from onceonly.airflow import PlanOperator

        dag_run = SimpleNamespace(clear_number=self.clears.get(run, 0), run_id=run, conf=conf, triggering_user_name=who)
        context = {"ti": SimpleNamespace(dag_id="flights", xcom_push=lambda **_: None), "run_id": run}
        if interval:
            context |= {"data_interval_start": interval.start, "data_interval_end": interval.end}
        word = conf.get("reprocess", False)  # the template
        task = PlanOperator(task_id="plan", pipeline=self.shop.pipeline, reprocess=word)
        return task.execute({**context, "dag_run": dag_run})

    def run(self, *arguments: Any, **options: Any) -> int:
        epoch = self.plan(*arguments, **options)
        self.shop.stage_corrected(epoch)
        self.shop.commit(epoch)
        return epoch

    def clear(self, run: str) -> None:
        self.clears[run] = self.clears.get(run, 0) + 1


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Runs]:
    from onceonly.airflow import PlanOperator, operators

    def started(**changes: Any) -> Runs:
        shop = Shop(tmp_path, **changes)
        monkeypatch.setattr(PlanOperator, "planner", lambda self: shop.coordinator)
        monkeypatch.setattr(PlanOperator, "_check", lambda *arguments: None)
        monkeypatch.setattr(operators, "make_alive_check", lambda context: shop.alive)
        monkeypatch.setattr(operators, "find_instance", lambda context: "an-instance")
        return Runs(shop)

    return started


@pytest.fixture
def runs(start: Callable[..., Runs]) -> Runs:
    runs = start()
    runs.shop.run("run-1", TEN)
    return runs


def failure(runs: Runs, *arguments: Any, **options: Any) -> str:
    from onceonly.airflow.versions import AirflowFailException

    with pytest.raises(AirflowFailException) as failed:
        runs.plan(*arguments, **options)
    return str(failed.value)


def skip(runs: Runs, *arguments: Any, **options: Any) -> str:
    from onceonly.airflow.versions import AirflowSkipException

    with pytest.raises(AirflowSkipException) as skipped:
        runs.plan(*arguments, **options)
    return str(skipped.value)


def test_a_run_without_the_words_names_the_ways_out_and_a_run_with_them_goes_on(runs: Runs) -> None:
    assert '"keep": ["late"]' in failure(runs, {"reprocess": True})
    epoch = runs.run(KEEP, run="manual__1")
    done = runs.shop.now(epoch)
    assert (done.sinks, done.requested_by) == (("lake",), {"who": "ann", "reason": "rates"})
    assert runs.shop.rows("lake") == corrected(*range(10))
    assert runs.shop.rows("late") == list(range(10))


def test_a_run_that_nobody_triggered_is_named_itself(runs: Runs) -> None:
    epoch = runs.plan(KEEP, run="backfill__1", who=None)
    assert runs.shop.now(epoch).requested_by["who"].endswith("backfill__1")


def test_a_cleared_run_brings_rows_once_more_only_once(runs: Runs) -> None:
    runs.run(AGAIN, run="manual__1")
    for _ in range(2):
        runs.clear("manual__1")
        assert "this request is done, by epoch 2 (lake, late)" in skip(runs, AGAIN, run="manual__1")
    assert runs.shop.rows("late") == sorted([*range(10), *corrected(*range(10))])


def test_a_run_that_is_cleared_before_it_has_published_goes_on_with_its_checkpoint(runs: Runs) -> None:
    epoch = runs.plan(AGAIN, run="manual__1")
    runs.clear("manual__1")
    assert runs.plan(AGAIN, run="manual__1") == epoch
    runs.shop.stage_corrected(epoch)
    runs.shop.commit(epoch)
    assert len(runs.shop.rows("late")) == 20


def test_a_backfill_that_gives_a_run_another_reason_asks_for_something_else(runs: Runs) -> None:
    """`airflow backfill create --reprocess-behavior completed` clears the run of a day, and gives it its own conf."""
    assert runs.run(KEEP, run="scheduled__1") == 2
    assert "this request is done, by epoch 2 (lake)" in skip(runs, KEEP, run="scheduled__1")
    assert runs.run({**KEEP, "reason": "rates, once more"}, run="scheduled__1") == 3
    assert runs.shop.rows("lake") == corrected(*range(10))


def test_a_backfill_completes_a_new_sink_in_any_order_and_several_days_at_once(runs: Runs) -> None:
    shop = runs.shop
    shop.run("run-2", NEXT)
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, LATE, NEW])
    epochs = [runs.plan(ONLY_NEW, day, f"backfill__{number}") for number, day in enumerate((NEXT, TEN))]
    for epoch in epochs:
        shop.stage_corrected(epoch)
    for epoch in reversed(epochs):
        shop.commit(epoch)
    assert shop.rows("new") == corrected(*range(20))
    assert shop.rows("lake") == shop.rows("late") == list(range(20))
    said = skip(runs, ONLY_NEW, TEN, "backfill__9")
    assert "the rows are already in 'new' (epoch 4)" in said
    assert shop.state.view("flights").head.epoch == 4


def test_a_day_that_never_ran_fails_the_run(runs: Runs) -> None:
    assert "was never processed" in failure(runs, {"only": ["lake"], "reason": "x"}, NEXT)


def test_a_run_without_an_interval_may_name_a_checkpoint(runs: Runs) -> None:
    assert runs.run({**KEEP, "epoch": 1}, None, "manual__1") == 2
    assert runs.shop.now(2).interval == TEN
    assert "has no data interval" in failure(runs, KEEP, None)
    assert "Name one of them" in failure(runs, {**KEEP, "epoch": 1, "reason": "y"}, NEXT)


def test_a_chain_completes_a_sink_by_the_number_of_a_checkpoint(start: Callable[..., Runs]) -> None:
    runs = start(mode="chained", sinks=[LAKE])
    shop = runs.shop
    shop.run("run-1")
    shop.pipeline = replace(shop.pipeline, sinks=[LAKE, NEW])
    assert '"epoch" in the run\'s conf' in failure(runs, ONLY_NEW, None)
    assert runs.run({**ONLY_NEW, "epoch": 1}, None, "manual__1") == 2
    assert "this request is done, by epoch 2 (new)" in skip(runs, {**ONLY_NEW, "epoch": 1}, None, "manual__1")
    assert "already in 'new' (epoch 2)" in skip(runs, {**ONLY_NEW, "epoch": 1}, None, "manual__2")
    assert shop.rows("new") == corrected(*range(20))


@pytest.mark.parametrize(
    "conf", [{"keep": ["late"], "reprocess": True}, {"keep": ["late"], "reason": "x"}, {"only": 7, "reason": "x"}]
)
def test_a_conf_that_makes_no_sense_plans_nothing(runs: Runs, conf: dict[str, Any]) -> None:
    assert "Nothing was written" in failure(runs, conf)
    assert runs.shop.state.view("flights").head.epoch == 1


# ---- what others are told


def test_events_and_lineage_name_only_the_sinks_that_were_written(start: Callable[..., Runs], tmp_path: Path) -> None:
    from onceonly.airflow import assets, lineage
    from onceonly.settings import Settings

    sinks = [DeltaSink("lake", "lake"), KafkaSink(name="late", topic="late", mode="late")]
    shop = start(sinks=sinks).shop
    shop.run("run-1", TEN)
    planned = shop.ask(keep=("late",))
    services: Any = SimpleNamespace(
        settings=Settings.from_env({"ONCEONLY_HOME": str(tmp_path)}),
        kafka=lambda *_: SimpleNamespace(bootstrap="one:9092"),
    )
    intended = [output.sink for output in lineage.list_intended_outputs(services, planned)]
    shop.stage_corrected(planned.epoch)
    done = shop.commit(planned.epoch)
    events = [(asset.uri, extra["epoch"], extra["repairs"]) for asset, extra in assets.list_published(done)]
    assert intended == ["lake"]
    assert events == [("onceonly://lake/", 2, 1)]
    outlets = assets.outlets(shop.pipeline)
    made = {outlet: SimpleNamespace(extra={}) for outlet in outlets}
    assert [outlet.uri for outlet in assets.announce({"outlet_events": made}, done, outlets)] == ["onceonly://lake/"]
    assert "repairs" not in next(assets.list_published(shop.now(1)))[1]
    (facet,) = lineage.collect_lineage(services, done).checkpoints
    assert (facet["only"], facet["repairs"], facet["requested_by"]) == (["lake"], 1, {"who": "ann", "reason": "rates"})
