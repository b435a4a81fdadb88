"""What the reprocess behaviours of `airflow backfill create` come to: no-op, new attempt, reprocess."""

from __future__ import annotations

from onceonly.checkpoint.model import Event
from onceonly.dev.demo.standalone import wait_until
from trials.airflow import DAG, World, date, say, world
from trials.backfill import over
from trials.interventions import LIMIT, Day, counts

ENDED = {"success", "failed"}
AGAIN = ("--dag-run-conf", '{"reprocess": true}')


def reprocess() -> bool:
    with world({"ONCEONLY_NOTIFY": "trials.hold:at_event"}) as at:
        seen = [
            _epochs(at, "none", "two days"),
            _epochs(at, "none", "the same days again"),
            _epochs(at, "completed", "the same days again"),
            _epochs(at, "completed", "the same days, to be processed again", *AGAIN),
        ]
        held = seen[0] == seen[1] == seen[2] and [old for _, old in seen[3]] == [epoch for epoch, _ in seen[0]]
        attempts = _failed_day(at)
        whole = all(truth == found for truth, found in (counts(at, number) for number in range(1, 4)))
        say(f"rows of the three days: {[counts(at, number) for number in range(1, 4)]} (CSV, table)")
        return held and attempts == 2 and whole


def _epochs(at: World, behaviour: str, words: str, *more: str) -> list[tuple[int, int]]:
    """The days' last epochs, each with the one that it replaces, once the backfill is over."""
    _backfill(at, 2, behaviour, *more)
    last = [at.of_day(number)[-1] for number in (1, 2)]
    found = [(cp.epoch, cp.replaces or 0) for cp in last]
    plans = [at.airflow.task_states(DAG, run)["plan"] for run in _runs(at)]
    say(f"{behaviour}, {words} {' '.join(more)}: (epoch, in place of) {found}, plan {plans}")
    return found


def _failed_day(at: World) -> int:
    """How many attempts a day took whose first run failed."""
    day = Day(at, 3)
    with day.hold(Event.CLAIMED):
        day.trigger()
        wait_until(lambda: at.of_day(3) and at.of_day(3)[0].claims, "day 3 is being staged", LIMIT)
        day.mark("stage", "failed")
        assert day.ended() == "failed"
    before = at.of_day(3)[-1].state.value
    _backfill(at, 3, "failed")
    cp = at.of_day(3)[-1]
    say(f"failed, day 3 was {before}: epoch {cp.epoch} is {cp.state.value} by attempt {cp.attempt}")
    untouched = [at.of_day(number)[-1].epoch for number in (1, 2)]
    say(f"  and days 1 and 2 stay at epochs {untouched}")
    return cp.attempt


def _backfill(at: World, last: int, behaviour: str, *more: str) -> None:
    window = ["--from-date", date(1), "--to-date", date(last)]
    at.airflow.cli("backfill", "create", "--dag-id", DAG, *window, "--reprocess-behavior", behaviour, *more)
    wait_until(lambda: over(at), "the backfill is over", LIMIT)


def _runs(at: World) -> list[str]:
    window = f"logical_date_gte={date(1)}T00:00:00Z&logical_date_lte={date(2)}T00:00:00Z"
    return [run["dag_run_id"] for run in at.airflow.call("GET", f"/dags/{DAG}/dagRuns?{window}")["dag_runs"]]
