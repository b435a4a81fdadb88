"""A run's name may come again: after a rewind it has work left, and a run that was deleted may have a successor."""

from collections import UserDict
from types import SimpleNamespace

import pytest
from person import Person
from unit.world import World, minutes, values

from onceonly.checkpoint.model import State
from onceonly.errors import Fenced
from onceonly.pipeline.sinks import DeltaSink

RUN = "airflow:flights:manual__2013-01-01T00:00:00+00:00"


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path, sinks=[DeltaSink("lake", "lake")])


def run(world: World, owner: str = RUN, instance: str | None = None):
    """Plan, and if that finds work, stage and commit; the checkpoint that plan has found."""
    planned = world.plan(owner, instance=instance)
    if planned and planned.state is not State.COMMITTED:
        world.stage(planned.epoch, owner)
        world.commit(planned.epoch)
    return planned


def test_a_run_that_is_cleared_after_a_rewind_plans_anew(world):
    run(world, "run-1")
    world.put(5, 6)
    run(world, RUN, "a")
    world.put(7)
    run(world, "run-3")
    Person(world.coordinator).rewind("flights", 1, "me", "wrong prices")
    again = run(world, RUN, "a")
    assert (again.epoch, again.state) == (5, State.PLANNED)
    assert values(world.lake) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert run(world, RUN, "a").epoch == 5, "cleared once more, it has nothing to do"
    assert world.now(5).state is State.COMMITTED


def test_a_rewind_to_a_run_or_after_it_takes_nothing_back_of_it(world):
    run(world, RUN)
    world.put(5)
    run(world, "run-2")
    Person(world.coordinator).rewind("flights", 1, "me", "wrong prices")
    assert run(world).epoch == 1
    assert values(world.lake) == [0, 1, 2, 3, 4]


def test_what_a_rewind_has_taken_back_stays_so_after_another(world):
    """The second goes back to the first: it takes back what came since, and brings nothing again."""
    run(world, "run-1")
    world.put(5)
    run(world, RUN)
    Person(world.coordinator).rewind("flights", 1, "me", "wrong prices")
    run(world, "run-3")
    Person(world.coordinator).rewind("flights", 3, "me", "wrong again")
    assert run(world).epoch == 6


def test_a_run_that_was_deleted_and_made_again_is_another(world):
    run(world, RUN, "a")
    world.put(5)
    assert run(world, RUN, "a").epoch == 1, "a try of the same run"
    assert run(world, RUN, "b").epoch == 2
    assert values(world.lake) == [0, 1, 2, 3, 4, 5]
    assert run(world, RUN, "b").epoch == 2


def test_rows_of_a_version_that_told_no_runs_apart_count_as_the_runs_own(world):
    run(world, RUN, None)
    world.put(5)
    assert run(world, RUN, "a").epoch == 1
    run(world, "run-2", "b")
    assert run(world, "run-2", None).epoch == 2, "nor does a try that does not know which run it is of"


def test_a_successor_goes_on_with_what_the_deleted_run_left_open(world):
    """Not two checkpoints: Airflow says of the deleted run that it is at work, for it answers by name."""
    world.plan(RUN, instance="a")
    dead = world.coordinator._stager.claim("flights", 1, RUN).require(1)
    planned = world.plan(RUN, instance="b")
    assert (planned.epoch, planned.owners, planned.instances) == (1, (RUN, RUN), ("a", "b"))
    with pytest.raises(Fenced):
        world.coordinator._stager.record(dead, {})
    assert run(world, RUN, "b").epoch == 1
    assert run(world, RUN, "b").epoch == 1, "it has published that itself"
    world.put(5)
    assert run(world, RUN, "c").epoch == 2


def test_what_another_run_took_over_and_published_is_not_done_again(world):
    world.plan(RUN, instance="a")
    world.abort()
    assert run(world, "run-2", "b").epoch == 1
    assert run(world, RUN, "a").epoch == 1
    world.put(5)
    assert run(world, RUN, "c").epoch == 2


def test_the_tries_of_one_run_change_nothing(world):
    for _ in range(3):
        world.plan(RUN, instance="a")
    assert world.events() == ["planned"]


# ---- what tells a run apart in Airflow


class Store(UserDict):
    """Stands for the context's task_state_store: one for each run, as long as the run is there."""

    def set(self, key, value, *, retention):
        assert retention.days > 1e6, "it does not go before the run does"
        self[key] = value


def told(store: Store, try_number: int = 1, run: str = "a run") -> str | None:
    runs = pytest.importorskip("onceonly.airflow.runs")
    task = SimpleNamespace(try_number=try_number, id=f"{run}'s try {try_number}")
    return runs.find_instance({"task_state_store": store, "ti": task})


def test_tries_of_one_run_are_told_the_same_and_another_run_another():
    store = Store()
    first = told(store)
    assert first is not None
    assert {told(store), told(store, 2), told(store, 5)} == {first}
    assert told(Store()) != first


def test_what_is_stored_for_a_deleted_run_is_not_its_successors():
    """Airflow's own store forgets it with the run; a backend that a site has configured may not."""
    store = Store()
    first = told(store)
    told(store, 3)
    second = told(store, 1, "another run")
    assert second != first
    assert told(store, 2, "another run") == second


def test_where_airflow_removes_it_when_the_task_is_done_a_cleared_run_is_not_told_apart(monkeypatch):
    monkeypatch.setenv("AIRFLOW__STATE_STORE__CLEAR_ON_SUCCESS", "True")
    store = Store()
    first = told(store)
    assert first is not None and told(store, 2) == first
    assert told(Store(), 2) is None


def test_a_run_that_was_made_again_asks_to_process_its_interval_again_once_more(tmp_path, monkeypatch):
    operators = pytest.importorskip("onceonly.airflow.operators")
    skipped = pytest.importorskip("airflow.sdk.exceptions").AirflowSkipException
    world = World(tmp_path, mode="interval", sinks=[DeltaSink("lake", "lake")])
    interval = minutes(0, 10)
    world.run("run-1", interval)
    operator = operators.PlanOperator(task_id="plan", pipeline=world.pipeline, reprocess=True)
    monkeypatch.setattr(operator, "planner", lambda: world.coordinator)
    monkeypatch.setattr(operator, "_check", lambda *_: None)
    monkeypatch.setattr("onceonly.airflow.runs.read_installation", lambda: "this")

    def plan(store: Store, try_number: int, run: str) -> int:
        task = SimpleNamespace(
            dag_id="flights", id=f"{run}'s try {try_number}", try_number=try_number, xcom_push=lambda *_, **__: None
        )
        about = {
            "ti": task,
            "run_id": "a run",
            "dag_run": SimpleNamespace(clear_number=0, conf={}),
            "task_state_store": store,
        }
        return operator.execute({**about, "data_interval_start": interval.start, "data_interval_end": interval.end})

    first, second = Store(), Store()
    for store, run, epoch in ((first, "one", 2), (second, "another", 3)):
        assert plan(store, 1, run) == epoch
        world.stage(epoch)
        world.commit(epoch)
        with pytest.raises(skipped):
            plan(store, 2, run)
    assert [world.now(epoch).replaces for epoch in (2, 3)] == [1, 2]
