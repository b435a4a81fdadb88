"""Windows over checkpoints of random sizes, on real Spark and a real state, against pandas and a plain loop."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pandas
import pytest
from codes import raises

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Changes
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state.sink import StateWriter
from onceonly.testing.fakes import FakeReceipts
from onceonly.views import descriptions
from onceonly.windows import Sessions, Sliding, Tumbling, Windows, count, least, most, state_key, state_schema, sum_of
from onceonly.windows.state import mark_time

pytestmark = [pytest.mark.integration]
MINUTE = timedelta(minutes=1)
DAY = datetime(2013, 1, 1, tzinfo=UTC)
ROWS_IN_ALL = 200
ROWS = "page STRING, at TIMESTAMP, dwell INT"
OPEN = StateSink(
    "open",
    schema=state_schema("page STRING", "views BIGINT, dwelt BIGINT, shortest INT, longest INT"),
    key=state_key("page"),
)
VALUES = {"views": count(), "dwelt": sum_of("dwell"), "shortest": least("dwell"), "longest": most("dwell")}
Row = tuple[str, datetime | None, int]
Closed = dict[tuple[str, datetime, datetime], tuple[int, int, int, int]]


def windows(by: Sliding | Sessions, lateness: timedelta = timedelta(0)) -> Windows:
    return Windows(time="at", key=["page"], by=by, values=VALUES, lateness=lateness)


@dataclass
class Run:
    """Checkpoint after checkpoint, each with the state that the one before has left."""

    spark: Any
    folder: Path
    windows: Windows
    closed: list[Closed] = field(default_factory=list)
    late: list[list[Row]] = field(default_factory=list)
    before: Handle | None = None
    as_of: datetime | None = None  # of the checkpoints; None: as in a test of a transform

    def add(self, rows: list[Row], **more: Any) -> Closed:
        sink = StateWriter(OPEN, str(self.folder))
        state = sink.read(self.spark, self.before)
        state = mark_time(state, self.as_of) if self.as_of else state
        seen = self.windows.add(self.spark.createDataFrame(rows, ROWS), state, **more)
        closed = {
            (row["page"], row["window_start"].astimezone(UTC), row["window_end"].astimezone(UTC)): tuple(row)[3:]
            for row in seen.closed.collect()
        }
        late = [(row["page"], row["at"] and row["at"].astimezone(UTC), row["dwell"]) for row in seen.late.collect()]
        txn = Transaction("0" * 32, "pages", "open", len(self.closed) + 1, 1, "nonce")
        self.before = json.loads(json.dumps(sink.stage(txn, Changes(seen.changes, self.before))))
        sink.commit(self.before, 1, FakeReceipts(self.folder.parent / "receipts"))
        self.closed.append(closed)
        self.late.append(sorted(late, key=str))
        return closed

    def all_closed(self) -> Closed:
        together: Closed = {}
        for closed in self.closed:
            assert not together.keys() & closed.keys(), "a window was closed twice"
            together |= closed
        return together


@pytest.fixture
def run(tmp_path: Path, spark: Any) -> Any:
    return lambda by, lateness=timedelta(0): Run(spark, tmp_path / "state", windows(by, lateness))


def at(minutes: float) -> datetime:
    return DAY + minutes * MINUTE


def checkpoints(seed: int, wild: float) -> list[list[Row]]:
    """Rows about a minute apart, up to `wild` minutes out of order, in checkpoints of random sizes."""
    chance = random.Random(seed)
    rows: list[Row] = [
        (chance.choice("abc"), at(round(n + chance.uniform(-wild, 0), 1)), chance.randrange(100))
        for n in range(ROWS_IN_ALL)
    ]
    cuts = sorted(chance.sample(range(1, ROWS_IN_ALL), 4))
    return [rows[start:end] for start, end in zip([0, *cuts], [*cuts, ROWS_IN_ALL], strict=True)]


# ---- a plain loop that does the same


def one_by_one(by: Sliding, lateness: timedelta, parts: list[list[Row]]) -> tuple[list[Closed], list[list[Row]]]:
    watermark, held = None, defaultdict[tuple[str, datetime, datetime], list[int]](list)
    closed, late = [], []
    for rows in parts:
        too_late = []
        for row in rows:
            page, time, dwell = row
            assert time is not None
            start, mine = time - (time - DAY) % by.step, []
            while start + by.length > time:
                if watermark is None or start + by.length > watermark:
                    mine.append((page, start, start + by.length))
                start -= by.step
            for window in mine:
                held[window].append(dwell)
            too_late += [] if mine else [row]
        latest = max(time for _, time, _ in rows if time)
        watermark = max(latest - lateness, watermark or latest - lateness)
        done = [window for window in held if window[2] <= watermark]
        closed.append({window: _values(held.pop(window)) for window in done})
        late.append(sorted(too_late, key=str))
    return closed, late


def _values(dwells: list[int]) -> tuple[int, int, int, int]:
    return len(dwells), sum(dwells), min(dwells), max(dwells)


@pytest.mark.parametrize(
    ("by", "lateness"),
    [
        (Tumbling(10 * MINUTE), 5 * MINUTE),
        pytest.param(Sliding(10 * MINUTE, 4 * MINUTE), timedelta(0), marks=pytest.mark.heavy),
    ],
)
def test_each_window_is_closed_once_and_late_rows_are_returned(run: Any, by: Sliding, lateness: timedelta) -> None:
    parts = checkpoints(2013, wild=30)
    mine = run(by, lateness)
    for rows in parts:
        mine.add(rows)
    closed, late = one_by_one(by, lateness, parts)
    assert mine.closed == closed
    assert mine.late == late
    assert sum(map(len, late)) > 3
    mine.all_closed()


# ---- pandas, over everything at once


def frame(parts: list[list[Row]]) -> pandas.DataFrame:
    return pandas.DataFrame([row for rows in parts for row in rows], columns=["page", "at", "dwell"])


def totals(groups: Any) -> dict[Any, tuple[int, int, int, int]]:
    found = groups["dwell"].agg(["count", "sum", "min", "max"])
    return {key: tuple(map(int, values)) for key, values in zip(found.index, found.to_numpy(), strict=True)}


def test_views_per_page_and_hour(run: Any) -> None:
    parts = checkpoints(7, wild=20)
    mine = run(Tumbling(60 * MINUTE), 25 * MINUTE)
    for rows in [*parts, [("a", at(10_000), 1)]]:
        mine.add(rows)
    data = frame(parts)
    truth = totals(data.groupby(["page", data["at"].dt.floor("60min")]))
    assert {(page, start): values for (page, start, _), values in mine.all_closed().items()} == truth
    assert not any(mine.late)


@pytest.mark.heavy
def test_sessions_grow_and_join(run: Any) -> None:
    gap = 3 * MINUTE
    parts = checkpoints(11, wild=20)
    mine = run(Sessions(gap), 25 * MINUTE)
    for rows in [*parts, [("a", at(10_000), 1)]]:
        mine.add(rows)
    data = frame(parts).sort_values(["page", "at"])
    number = (data.groupby("page")["at"].diff() > gap).groupby(data["page"]).cumsum()
    groups = data.groupby(["page", number])
    starts, ends = groups["at"].min(), groups["at"].max() + gap
    truth = {(key[0], starts[key], ends[key]): values for key, values in totals(groups).items()}
    assert mine.all_closed() == truth
    assert not any(mine.late)


def test_a_session_that_was_closed_does_not_open_again(run: Any) -> None:
    mine = run(Sessions(10 * MINUTE))
    assert mine.add([("a", at(0), 1), ("a", at(8), 2), ("b", at(30), 3)]) == {("a", at(0), at(18)): (2, 3, 1, 2)}
    assert mine.add([("a", at(5), 4), ("b", at(25), 5)]) == {}
    assert mine.late[-1] == [("a", at(5), 4)]
    assert mine.add([("c", at(100), 6)]) == {("b", at(25), at(40)): (2, 8, 3, 5)}  # at(25) joined what was still open


# ---- the edges


def test_a_row_without_a_time_is_late(run: Any) -> None:
    for by in (Tumbling(MINUTE), Sessions(MINUTE)):
        mine = run(by)
        mine.folder = mine.folder / type(by).__name__
        mine.add([("a", None, 1), ("a", at(0), 2)])
        mine.add([("a", None, 3)])
        assert mine.late == [[("a", None, 1)], [("a", None, 3)]]
        assert mine.add([("a", at(9), 4)]) == {("a", at(0), at(1)): (1, 2, 2, 2)}


def test_the_watermark_never_goes_back(run: Any) -> None:
    mine = run(Tumbling(10 * MINUTE))
    assert mine.add([("a", at(1), 1)], watermark=at(5)) == {}
    assert mine.add([("a", at(2), 2)], watermark=at(20)) == {("a", at(0), at(10)): (2, 3, 1, 2)}
    with raises(InvalidPipeline, "watermark-decreased", match="from 2013-01-01T00:20:00Z"):
        mine.add([("a", at(30), 1)], watermark=at(19))
    assert mine.add([("a", at(12), 5), ("a", at(15), 6)]) == {}
    assert mine.late[-1] == [("a", at(12), 5), ("a", at(15), 6)]


@pytest.mark.parametrize(
    "other",
    [
        windows(Tumbling(30 * MINUTE)),
        windows(Sliding(60 * MINUTE, 20 * MINUTE)),
        windows(Sessions(60 * MINUTE)),
        replace(windows(Tumbling(60 * MINUTE)), values={**VALUES, "dwelt": most("dwell")}),
    ],
    ids=lambda other: str(other)[:40],
)
def test_open_windows_are_not_taken_up_by_others(run: Any, other: Windows) -> None:
    mine = run(Tumbling(60 * MINUTE))
    mine.add([("a", at(1), 1)])
    mine.windows = other
    with raises(InvalidPipeline, "windows-changed") as refused:
        mine.add([("a", at(2), 1)])
    assert "windows of 1:00:00 every 1:00:00 of 'at' by page" in refused.value.why
    assert f"now has {other}" in refused.value.why


def test_once_all_are_closed_windows_may_change_and_lateness_always(run: Any) -> None:
    mine = run(Tumbling(60 * MINUTE))
    mine.add([("a", at(1), 1)])
    mine.add([], watermark=at(2))  # a run without rows: how they were made is known all the same
    mine.windows = windows(Tumbling(60 * MINUTE), lateness=5 * MINUTE)
    assert mine.add([], watermark=at(60)) == {("a", at(0), at(60)): (1, 1, 1, 1)}
    mine.windows = windows(Tumbling(30 * MINUTE))
    assert mine.add([("a", at(70), 1), ("a", at(95), 2)]) == {("a", at(60), at(90)): (1, 1, 1, 1)}


@pytest.mark.parametrize(
    ("kind", "said"), [("DOUBLE", "'dwelt' has the type double"), ("BIGINT", "'longest' has the type")]
)
def test_a_value_that_the_state_would_cut_is_refused(tmp_path: Path, spark: Any, kind: str, said: str) -> None:
    state = StateWriter(OPEN, str(tmp_path / "state")).read(spark, None)
    unread = spark.range(1).selectExpr("'a' page", "now() at", "raise_error('it was read') x")
    cut = unread.selectExpr("page", "at", f"CAST(x AS {kind}) AS dwell")
    with raises(InvalidPipeline, "state-type-too-narrow") as refused:
        windows(Tumbling(MINUTE)).add(cut, state)
    assert said in refused.value.why


def test_nonsense_is_refused() -> None:
    with raises(InvalidPipeline, "option-invalid"):
        Sliding(MINUTE, 2 * MINUTE)
    with raises(InvalidPipeline, "option-invalid"):
        Tumbling(timedelta(0))
    with raises(InvalidPipeline, "option-invalid"):
        Sessions(timedelta(0))


# ---- rows that are dated ahead

IN_2092 = datetime(2092, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("by", [Tumbling(10 * MINUTE), Sessions(10 * MINUTE)], ids=["tumbling", "sessions"])
def test_one_row_of_2092_closes_nothing(run: Any, by: Sliding | Sessions) -> None:
    mine = run(by)
    mine.as_of = at(60)
    assert mine.add([("a", at(1), 1), ("a", IN_2092, 2), ("b", at(121), 3)]) == {}
    assert "2 rows are dated more than 1:00:00 ahead of the checkpoint" in descriptions.describe_staged_rows(
        mine.before
    )
    mine.as_of = at(90)
    closed = mine.add([("a", at(2), 4), ("b", at(30), 5)])
    assert list(closed.values()) == [(2, 5, 1, 4)]
    assert mine.late[-1] == []
    assert "dated" not in descriptions.describe_staged_rows(mine.before)
    mine.as_of = IN_2092 + timedelta(days=1)
    closed = mine.add([("c", IN_2092 + timedelta(hours=1), 6)])
    assert sorted(closed.values()) == [(1, 2, 2, 2), (1, 3, 3, 3), (1, 5, 5, 5)]
    mine.all_closed()


def test_rows_up_to_the_bound_move_the_watermark(run: Any) -> None:
    mine = run(Tumbling(10 * MINUTE))
    mine.windows = replace(mine.windows, ahead=30 * MINUTE)
    mine.as_of = at(60)
    assert mine.add([("a", at(1), 1), ("a", at(90), 2)]) == {("a", at(0), at(10)): (1, 1, 1, 1)}
    assert mine.add([("a", at(90.1), 3)]) == {}
    assert "1 row is dated more than 0:30:00 ahead" in descriptions.describe_staged_rows(mine.before)


def test_a_repeated_stage_computes_the_same_watermark(tmp_path: Path, spark: Any) -> None:
    rows = [("a", at(n), 1) for n in (1, 15, 70, 125)] + [("a", IN_2092, 1)]
    for folder in ("first", "again"):
        mine = Run(spark, tmp_path / folder, windows(Tumbling(10 * MINUTE)), as_of=at(60))
        assert sorted(start for _, start, _ in mine.add(rows)) == [at(0), at(10)]


def test_a_watermark_of_the_transform_is_taken_as_it_is(run: Any) -> None:
    mine = run(Tumbling(10 * MINUTE))
    mine.as_of = at(60)
    assert len(mine.add([("a", at(1), 1)], watermark=IN_2092)) == 1
