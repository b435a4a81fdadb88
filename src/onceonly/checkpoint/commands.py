"""Commands that messages and views tell people to run, with their names, quoted for a shell."""

from __future__ import annotations

import json
from datetime import timedelta
from shlex import quote

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval
from onceonly.checkpoint.owner_keys import parse_airflow_run

PIPELINE_FILE = "FILE.py:NAME"  # what names a pipeline on the command line, where the file is not known
PLAN_AGAIN = f"plan again: a retry in Airflow does, or onceonly run {PIPELINE_FILE}"


def how_to_run(checkpoint: Checkpoint) -> str:
    """Return how an aborted checkpoint is run again: in the Airflow of its owner, or by hand."""
    run = parse_airflow_run(checkpoint.owner)
    if checkpoint.interval is not None:
        ways = how_to_run_interval(checkpoint.interval, run[0] if run else None)
        return f"clear the run '{run[1]}' on its page, or {ways}" if run else ways
    if run is None:
        return f"onceonly run {PIPELINE_FILE}"
    at_once = f"airflow dags trigger {quote(run[0])}, or onceonly run {PIPELINE_FILE}"
    return f"the next run of '{run[0]}' does it; at once: {at_once}"


def how_to_run_interval(interval: Interval, dag_id: str | None = None, file: str = PIPELINE_FILE) -> str:
    """Return how an interval is run that no checkpoint covers.

    Args:
        dag_id: the DAG of the pipeline; None: it is in none, or in one that is not known.
    """
    start, end = interval_times(interval)
    by_hand = f"onceonly run {file} --interval {start} {end}"
    if dag_id is None:
        return by_hand
    conf = quote(json.dumps({"interval": [start, end]}))
    return f"airflow dags trigger {quote(dag_id)} --conf {conf}, or {by_hand}"


def how_to_backfill(interval: Interval, dag_id: str | None) -> str:
    """Return the command that gives each interval of the schedule within this one a run; both dates are inclusive."""
    last = interval.end - timedelta(seconds=1)
    return (
        f"airflow backfill create --dag-id {quote(dag_id or 'DAG')} --from-date {interval.start:%Y-%m-%dT%H:%M:%SZ} "
        f"--to-date {last:%Y-%m-%dT%H:%M:%SZ} --reprocess-behavior completed"
    )


def interval_times(interval: Interval) -> tuple[str, str]:
    """Return start and end as commands take them."""
    return f"{interval.start:%Y-%m-%dT%H:%M:%SZ}", f"{interval.end:%Y-%m-%dT%H:%M:%SZ}"
