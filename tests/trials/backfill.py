"""January by `airflow backfill create`: 31 days, four at a time, backwards, the scheduler SIGKILLed twice."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from deltalake import DeltaTable

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import flights
from onceonly.dev.demo.proof import prove, truth_by_day
from onceonly.dev.demo.standalone import wait_until
from trials.airflow import World, say, world

KILL_AT = (5, 15)  # days committed
LIMIT = 1500.0


def backfill() -> bool:
    with world() as at:
        create(at)
        for count in KILL_AT:
            wait_until(lambda count=count: len(committed(at)) >= count, f"{count} days are committed", LIMIT)
            at.airflow.kill("scheduler")
            running = [cp.epoch for cp in at.checkpoints() if not cp.state.is_settled]
            say(f"  {len(committed(at))} days committed, epochs {running} on their way")
            at.airflow.replace("scheduler")
        wait_until(
            lambda: len(states(at)) == 31 and set(states(at).values()) == {"success"}, "all 31 runs succeeded", LIMIT
        )
        say(f"runs: {dict(Counter(states(at).values()))}")
        return verdict(at)


def create(at: World, *more: str) -> None:
    window = ["--from-date", "2013-01-01", "--to-date", "2013-01-31"]
    how = ["--max-active-runs", "4", "--run-backwards", *more]
    say("airflow backfill create --dag-id " + " ".join([at.dag, *window, *how]))
    at.airflow.cli("backfill", "create", "--dag-id", at.dag, *window, *how)


def states(at: World) -> dict[str, str]:
    """Of the runs of January, by run id."""
    window = "logical_date_gte=2013-01-01T00:00:00Z&logical_date_lte=2013-01-31T00:00:00Z&limit=100"
    runs = at.airflow.call("GET", f"/dags/{at.dag}/dagRuns?{window}")["dag_runs"]
    return {run["dag_run_id"]: run["state"] for run in runs}


def over(at: World) -> bool:
    """Whether the last backfill has come to its end."""
    found = at.airflow.call("GET", f"/backfills?dag_id={at.dag}&order_by=-id")["backfills"]
    return bool(found) and bool(found[0]["completed_at"])


def committed(at: World) -> list[Checkpoint]:
    return [cp for cp in at.checkpoints() if cp.state is State.COMMITTED and january(cp)]


def january(checkpoint: Checkpoint) -> bool:
    month = flights.month_period("2013-01")
    return checkpoint.interval is not None and month.start <= checkpoint.interval.start < month.end


def verdict(at: World) -> bool:
    """Whole rows against the CSV; rows per day; the pinned offsets side by side."""
    proof = prove(at.table, flights.month_period("2013-01"))
    say(f"rows: {proof.expected:,} in the CSV, {proof.missing} missing, {proof.extra} too many of {proof.actual:,}")
    truth = truth_by_day(flights.month_period("2013-01"))
    found = Counter(str(day) for day in DeltaTable(str(at.table)).to_pyarrow_table(columns=["day"])["day"].to_pylist())
    wrong = {day: (truth.get(day), found.get(day)) for day in truth.keys() | found.keys() if truth[day] != found[day]}
    say(f"days: {len(truth) - len(wrong)} of {len(truth)} equal the CSV {wrong or ''}")
    days = sorted(committed(at), key=lambda cp: cp.interval.start if cp.interval else datetime.min)
    whole = [cp.interval for cp in days] == [_day(number) for number in range(31)]
    breaks = [cp.epoch for before, cp in pairwise(days) if ends(before) != starts(cp)]
    say(f"intervals: {len(days)} committed, {'every day once' if whole else 'NOT every day once'}; {_breaks(breaks)}")
    attempts = Counter(cp.attempt for cp in at.checkpoints() if january(cp))
    order = [cp.interval.start.day for cp in sorted(days, key=lambda cp: cp.decision or 0) if cp.interval]
    say(f"attempts per checkpoint: {dict(attempts)}; order of the decisions, by day: {order}")
    staged = [folder.name for folder in at.table.glob("staged-*") if not referred(at, folder.name)]
    say(f"staged folders that no published row is in: {staged or 'none'}")
    return proof.holds and not wrong and whole and not breaks and not staged


def referred(at: World, folder: str) -> bool:
    return any(
        path.startswith(folder + "/") for path in DeltaTable(str(at.table)).get_add_actions()["path"].to_pylist()
    )


def starts(checkpoint: Checkpoint) -> dict[int, int]:
    return checkpoint.ranges[0].starts


def ends(checkpoint: Checkpoint) -> dict[int, int]:
    return checkpoint.ranges[0].ends


def _breaks(epochs: list[int]) -> str:
    return f"GAP OR OVERLAP at {epochs}" if epochs else "each begins at the offsets where the day before ends"


def _day(number: int) -> Interval:
    start = datetime(2013, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return Interval(start, start + timedelta(days=1))
