"""What a commit says of its files: by it, readers find every row; of values on which they differ, it says nothing."""

from __future__ import annotations

import json
import math
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from predicates import TYPES, compare, random_rows
from unit import lightdelta
from unit.lightdelta import LightDelta, transaction

from onceonly.checkpoint.model import Transaction
from onceonly.delta import statistics
from onceonly.pipeline.sinks import Merge
from onceonly.sinks.delta import in_process_writer

pytestmark = pytest.mark.slow

LONG = "x" * 40


class FewRows:
    """A DataFrame, as far as staging in this process asks it."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.schema = self
        self.names = table.column_names

    def limit(self, _: int) -> FewRows:
        return self

    def toArrow(self) -> pa.Table:
        return self._table


class Lake(LightDelta):
    """Stages Arrow tables as few rows are staged."""

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        found: pa.Table = rows
        return found

    def publish(self, epoch: int, table: pa.Table) -> None:
        handle = self.stage(transaction(epoch), table)
        self.commit(self.rehearse(handle, epoch), epoch, {})

    def told(self) -> list[dict[str, Any]]:
        """The statistics of the table's files."""
        version = DeltaTable(self.uri).version()
        text = Path(self.uri, "_delta_log", f"{version:020}.json").read_text()
        adds = [json.loads(line)["add"] for line in text.splitlines() if '"add"' in line]
        return [json.loads(add["stats"], parse_float=Decimal) for add in adds]


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def append(uri: str, table: pa.Table) -> None:
        assert in_process_writer.write(uri, FewRows(table))

    monkeypatch.setattr(lightdelta, "append", append)


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_every_reader_finds_the_same_rows(tmp_path: Path, seed: int, merges: bool) -> None:
    chance = random.Random(seed)
    merge = {"merge": Merge(["id"], ["at"])} if merges else {}
    lake = Lake(tmp_path / "lake", **merge)
    for epoch in range(1, 6):
        ids = chance.sample(range(40), 12) if merges else list(range(12 * epoch, 12 * epoch + 12))
        lake.publish(epoch, random_rows(chance, ids, TYPES, at=[epoch] * len(ids)))
    columns = chance.sample(sorted(TYPES), 4 if seed == 1 else len(TYPES))
    answers = compare(lake.uri, chance, {name: TYPES[name] for name in columns})
    assert answers >= 30 * len(columns)


def test_a_file_has_exact_bounds_of_every_column(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    table = {
        "n": pa.array([1, None, 3]),
        "nothing": pa.nulls(3, pa.int32()),
        "x": pa.array([-0.0, 2.5, None]),
        "amount": pa.array([Decimal("-1234567890123456789.123456789"), Decimal(0), None], pa.decimal128(38, 9)),
        "time": pa.array([datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), None]),
        "text": ["a", LONG, "b"],
        "flag": [True, True, None],
    }
    lake.publish(1, pa.table(table))
    (told,) = lake.told()
    low, high = told["minValues"], told["maxValues"]
    assert (told["nullCount"]["n"], told["nullCount"]["nothing"], "nothing" in low) == (1, 3, False)
    assert (low["n"], high["n"], float(low["x"]), float(high["x"])) == (1, 3, 0, 2.5)
    assert math.copysign(1, float(low["x"])) == -1, "the lower of both zeros"
    assert (low["amount"], high["amount"]) == (Decimal("-1234567890123456789.123456789"), 0)
    assert (low["time"], high["time"]) == ("0001-01-01T00:00:00.000001Z", "9999-12-31T23:59:59.999999Z")
    assert (low["text"], high["text"]) == ("a", "x" * 32 + "\U0010ffff")
    assert (low["flag"], high["flag"]) == (True, True)


def test_of_a_file_with_nan_only_the_rows_are_told(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    lake.publish(1, pa.table({"n": [1, 2], "x": [math.nan, 1.0]}))
    assert lake.told() == [{"numRecords": 2}]


def test_copies_of_a_merge_say_what_is_in_them(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake", merge=Merge(["id"], ["at"]))
    exact = pa.decimal128(38, 9)
    amounts = [Decimal("1234567890123456789.123456789"), Decimal("1234567890123456790.123456789"), Decimal(1)]
    lake.publish(1, pa.table({"id": [1, 2, 3], "at": [1, 1, 1], "amount": pa.array(amounts, exact)}))
    lake.publish(2, pa.table({"id": [3], "at": [2], "amount": pa.array([Decimal(2)], exact)}))
    bounds = sorted((told["minValues"]["amount"], told["maxValues"]["amount"]) for told in lake.told())
    assert bounds == [(2, 2), (amounts[0], amounts[1])]


# ---- what others have written


def schema(**kinds: Any) -> dict[str, Any]:
    return {"fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}


def settled(stats: dict[str, Any] | str, settings: dict[str, str] | None = None, **kinds: Any) -> dict[str, Any]:
    text = stats if isinstance(stats, str) else json.dumps(stats)
    found: dict[str, Any] = json.loads(statistics.settle(text, schema(**kinds), [], settings or {}))
    return found


def one(name: str, low: Any, high: Any, nulls: Any = 0) -> dict[str, Any]:
    return {"numRecords": 9, "minValues": {name: low}, "maxValues": {name: high}, "nullCount": {name: nulls}}


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("double", 0.5, "NaN"),
        ("float", "NaN", "NaN"),
        ("date", "2020-01-01", "+10000-01-01"),
        ("date", "-0001-01-01", "2020-01-01"),
        ("timestamp", "2020-01-01T00:00:00.000Z", "+10000-01-01T00:00:00.000Z"),
        ("long", 1, None),
        ("decimal(9,2)", None, 1),
    ],
)
def test_bounds_on_which_readers_differ_are_left_out(kind: str, low: Any, high: Any) -> None:
    assert settled(one("x", low, high), x=kind) == {"numRecords": 9}


def test_one_column_without_bounds_leaves_out_all(tmp_path: Path) -> None:
    assert settled(one("n", 1, 2), n="long", x="double") == {"numRecords": 9}


def test_times_that_spark_has_cut_are_bounds_again() -> None:
    told = settled(one("t", "1899-12-31T23:59:59.123Z", "2024-01-01T00:00:00.123Z"), t="timestamp")
    assert told["minValues"]["t"] == "1899-12-31T23:59:59.123Z"
    assert told["maxValues"]["t"] == "2024-01-01T00:00:00.123999Z"


def test_decimals_lose_exponents_and_no_digit() -> None:
    text = '{"numRecords":2,"minValues":{"d":-1E-9},"maxValues":{"d":1.23456789012345678901E+20},"nullCount":{"d":0}}'
    told = statistics.settle(text, schema(d="decimal(38,9)"), [], {})
    assert '"minValues":{"d":-0.000000001},"maxValues":{"d":123456789012345678901}' in told


def test_booleans_that_spark_does_not_tell_are_bounded() -> None:
    told = settled({"numRecords": 9, "nullCount": {"flag": 1}}, flag="boolean")
    assert (told["minValues"], told["maxValues"]) == ({"flag": False}, {"flag": True})


def test_a_struct_of_nulls_is_told_of() -> None:
    inner = {"type": "struct", **schema(n="long")}
    told = settled({"numRecords": 9, "nullCount": {"s": {"n": 9}}}, s=inner)
    assert (told["minValues"], told["nullCount"]) == ({"s": {}}, {"s": {"n": 9}})


@pytest.mark.parametrize(
    "settings",
    [{"delta.dataSkippingNumIndexedCols": "1"}, {"delta.dataSkippingStatsColumns": "`a`"}],
)
def test_columns_that_the_owner_leaves_out_need_no_bounds(settings: dict[str, str]) -> None:
    assert settled(one("a", 1, 2), settings, a="long", b="long") == one("a", 1, 2)


def test_files_without_a_number_of_rows_stay_without_statistics() -> None:
    assert settled("{}", a="long") == {}
