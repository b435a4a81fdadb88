"""One month asked for twice, by the schedule and by backfills; and a chained catch-up with the DAG behind it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

from onceonly.dev.demo import flights
from onceonly.dev.demo.proof import prove, truth_by_day
from onceonly.dev.demo.standalone import wait_until
from trials.airflow import World, say, world
from trials.backfill import LIMIT, committed, create, over, states, verdict

MONTH = flights.month_period("2013-01")


def overlap() -> bool:
    """From both ends, meeting in the middle; then all of it once more."""
    with world(bundles()) as found:
        at = replace(found, dag="overlap_daily")
        at.airflow.unpause_parsed(at.dag)
        wait_until(lambda: len(committed(at)) >= 3, "the schedule has three days", LIMIT)
        create(at)
        say(f"  {len(committed(at))} days committed; the second backfill: {_second(at)}")
        wait_until(
            lambda: len(states(at)) == 31 and set(states(at).values()) == {"success"}, "all 31 runs succeeded", LIMIT
        )
        say(f"runs: {dict(Counter(name.split('__')[0] for name in states(at)))}")
        wait_until(lambda: over(at), "the first backfill is over", LIMIT)
        create(at, "--reprocess-behavior", "completed")
        wait_until(lambda: over(at), "the backfill of what is there is over", LIMIT)
        say(f"runs: {dict(Counter(name.split('__')[0] for name in states(at)))}, {len(at.checkpoints())} checkpoints")
        return len(at.checkpoints()) == 31 and verdict(at)


def catch_up() -> bool:
    """Runs of at most 3,000 records, one after the other; those that publish start the DAG behind their table."""
    with world(bundles()) as found:
        at = replace(found, dag="overlap_capped")
        at.airflow.unpause_parsed("flights_by_day")
        at.airflow.unpause_parsed(at.dag)
        wait_until(lambda: _counts(at) == truth_by_day(MONTH), "the DAG behind it counts as the CSV does", LIMIT)
        rows = [sum(range_.offset_count for range_ in cp.ranges) for cp in at.checkpoints()]
        say(f"{at.dag}: {dict(_ended(at, at.dag))}, offsets of the checkpoints: {rows}")
        say(f"flights_by_day: {dict(_ended(at, 'flights_by_day'))}, its last run counts every day as the CSV does")
        proof = prove(at.settings.locate("lake/flights"), MONTH)
        say(f"rows: {proof.expected:,} in the CSV, {proof.missing} missing, {proof.extra} too many of {proof.actual:,}")
        return proof.holds and max(rows) <= 3_000


def bundles() -> dict[str, str]:
    """The project's DAGs, and those of the trials."""
    trials = Path(__file__).parent / "dags"
    folders = {"project": trials.parents[2] / "dags", "trials": trials}
    kind = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [{"name": name, "classpath": kind, "kwargs": {"path": str(path)}} for name, path in folders.items()]
    return {"AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles)}


def _second(at: World) -> str:
    """What Airflow says to a backfill beside one that runs."""
    try:
        create(at)
    except AssertionError as refused:
        return str(refused).strip().splitlines()[-1][:200]
    return "accepted"


def _ended(at: World, dag: str) -> Counter[str]:
    return Counter(run["state"] for run in at.airflow.call("GET", f"/dags/{dag}/dagRuns?limit=100")["dag_runs"])


def _counts(at: World) -> dict[str, int] | None:
    """What the last run of the DAG behind the table returned."""
    runs = at.airflow.call("GET", "/dags/flights_by_day/dagRuns?order_by=-id&limit=1")["dag_runs"]
    if not runs or runs[0]["state"] != "success" or runs[0]["run_type"] != "asset_triggered":
        return None
    found = f"/dags/flights_by_day/dagRuns/{runs[0]['dag_run_id']}/taskInstances/count/xcomEntries/return_value"
    return dict(at.airflow.call("GET", f"{found}?deserialize=true")["value"])
