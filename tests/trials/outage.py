"""The scheduler is away for four intervals and comes back: each of them is committed, or the gap is shown and named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from confluent_kafka import Producer
from deltalake import DeltaTable
from integration.readers.kafka_reader import create_topic

from onceonly.checkpoint.model import State
from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo.standalone import wait_until
from onceonly.statetable.table import StateTable
from trials.airflow import World, say, world
from trials.overlap import bundles

MINUTE = timedelta(minutes=1)
AWAY = 4  # intervals
RECORDS = 50  # one a minute, from the start on: more minutes than a trial takes
LIMIT = 900.0


def outage() -> bool:
    start = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    with world({**bundles(), "ONCEONLY_TRIAL_START": start.isoformat()}) as found:
        at, other = replace(found, dag="outage_caught_up"), replace(found, dag="outage_left_out")
        _produce(found, start)
        for each in (at, other):
            each.airflow.unpause_parsed(each.dag)
        wait_until(lambda: _covered(at) and _covered(other), "both pipelines have covered a minute", LIMIT)
        with _scheduler_away(at, other) as before:
            back = before + (AWAY + 1) * MINUTE
            wait_until(lambda: datetime.now(UTC) > back, f"{AWAY} more intervals are over", LIMIT)
        wait_until(lambda: _covered(at)[-1:] > [back] and not _gaps(at), "what was missed is committed", LIMIT)
        wait_until(lambda: _gaps(other), "a later minute is covered where nothing catches up", LIMIT)
        return _every_minute_once(at, start) and _shown(other)


@contextmanager
def _scheduler_away(*worlds: World) -> Iterator[datetime]:
    """Until the block ends; up to when both pipelines had come. Its workers finish what is under way."""
    airflow = worlds[0].airflow
    airflow.kill("scheduler")
    last = max(_covered(each)[-1] for each in worlds)
    say(f"  they have covered what came before {last:%H:%M}")
    yield last
    airflow.replace("scheduler")


def _produce(at: World, start: datetime) -> None:
    """The number of each minute, in the middle of it."""
    broker = at.settings.brokers(None)
    create_topic(broker, "minutes", 1)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(RECORDS):
        stamp = int((start + number * MINUTE + MINUTE / 2).timestamp() * 1000)
        producer.produce("minutes", str(number).encode(), partition=0, timestamp=stamp)
    assert producer.flush(60) == 0


def _covered(at: World) -> list[datetime]:
    """The ends of the intervals that are committed, in order."""
    return sorted(cp.interval.end for cp in at.checkpoints() if cp.interval and cp.state is State.COMMITTED)


def _gaps(at: World) -> list[Interval]:
    return StateTable(at.settings.state).gaps([at.dag])[at.dag]


def _every_minute_once(at: World, start: datetime) -> bool:
    """Of the minutes that are covered without a gap; a run may be under way now."""
    ends = _covered(at)
    last = next((before for before, after in pairwise([*ends, ends[-1] + 2 * MINUTE]) if after - before > MINUTE))
    expected = range(round((ends[0] - start) / MINUTE) - 1, round((last - start) / MINUTE))
    found = Counter(DeltaTable(str(at.table)).to_pyarrow_table()["n"].to_pylist())
    missing, twice = [n for n in expected if n not in found], [n for n, count in found.items() if count > 1]
    say(f"{at.dag}: {len(ends)} intervals committed, up to {last:%H:%M}; missing {missing}, twice {twice}")
    return not missing and not twice and expected.start == 0


def _shown(at: World) -> bool:
    """By plan, by status; and a person says that it is wanted."""
    gap = max(_gaps(at), key=lambda each: each.end - each.start)
    words = f"{at.dag}: no checkpoint covers {gap}."
    say(words)
    logs = (at.airflow.folder / "logs" / f"dag_id={at.dag}").rglob("*.log")
    planned = sum(words in log.read_text(errors="replace") for log in logs)
    times = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (gap.start, gap.end)]
    status = words in _onceonly(at, "status")
    seen = str(json.loads(_onceonly(at, "status", at.dag, "--json"))["seen"])
    _onceonly(at, "skip", at.dag, "--interval", *times, "--reason", "the scheduler was away", "--seen", seen)
    say(f"  told by {planned} plan task, by status: {status}; skipped: {_gaps(at)} is left")
    return (gap.end - gap.start) / MINUTE >= AWAY - 1 and planned > 0 and status and gap not in _gaps(at)


def _onceonly(at: World, *arguments: str) -> str:
    environment = {**os.environ, **at.airflow.environment()}
    command = [sys.executable, "-c", "from onceonly.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=300).stdout
