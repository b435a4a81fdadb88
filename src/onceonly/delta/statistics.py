"""What a log says of the values in a file, by which readers skip it: all of it right, or the number of rows alone.

Readers differ in what they do with a part. `deltalake`'s datasets take a bound that is missing for null, and then find
no row of the file. Its reader of decimals knows no exponents. delta-rs leaves NaN out of a maximum, and to Spark NaN is
the largest value. So a file's statistics name every column that readers look for, or none.

`numRecords` stands alone for a file with NaN, or with a date or time outside the years 1 to 9999: no reader's idea of
them is that of the others. Source: Delta protocol, "Per-file Statistics"; what readers do was tried
(`tests/integration/sinks/test_delta_statistics.py`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from onceonly.delta import table_snapshot

Field = Mapping[str, Any]  # of a Delta schema
INTEGERS = {"byte", "short", "integer", "long"}
FLOATS = {"float", "double"}
BOUNDED = {*INTEGERS, *FLOATS, "string", "boolean", "date", "timestamp", "timestamp_ntz"}  # and decimals
SIDES = ("minValues", "maxValues", "nullCount")
DECIMAL_PREFIX = "decimal("
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d")
TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d|)")
COLUMN_NAME = re.compile(r"(?:`(?:[^`]|``)*`|[^,`])+")
MILLISECOND_DIGITS = 3  # to which Spark cuts a time
COUNTED_LEAVES = "delta.dataSkippingNumIndexedCols"
NAMED_COLUMNS = "delta.dataSkippingStatsColumns"
DEFAULT_LEAVES = 32


class _CannotState(Exception):
    """A bound that readers look for is missing, or is a value of which they have different ideas."""


def settle(stats: str | None, schema: Field, partitions: Sequence[str], settings: Mapping[str, str]) -> str:
    """Return a file's statistics, by whichever writer, as a commit may state them.

    Args:
        stats: as the writer states them, JSON; None: it states none.
        schema: of the table, in its JSON form.
        partitions: the partition columns, which have no statistics.
        settings: the table's properties.
    """
    written = json.loads(stats or "{}", parse_float=Decimal)
    rows = written.get("numRecords")
    if not isinstance(rows, int):
        return "{}"
    fields = table_snapshot.without_columns(schema["fields"], partitions)
    low, high, nulls = (_inner(written, side) for side in SIDES)
    try:
        bounds = _Bounds(rows, _max_leaves(settings), _chosen_columns(settings)).check(fields, low, high, nulls)
    except _CannotState:
        return to_json({"numRecords": rows})
    return to_json({"numRecords": rows, **dict(zip(SIDES, bounds, strict=True))})


def with_settled_statistics(adds: list[dict[str, Any]], table: Any) -> list[dict[str, Any]]:
    """Return add actions of files for that table, with statistics that a commit may state."""
    metadata, schema = table.metadata(), json.loads(table.schema().to_json())
    partitions = list(metadata.partition_columns)
    settled = []
    for add in adds:
        stats = settle(add.get("stats"), schema, partitions, metadata.configuration)
        settled.append({**add, "stats": stats})
    return settled


# ---- what is stated


def _max_leaves(settings: Mapping[str, str]) -> int | None:
    """Return how many columns have statistics, those in structs counted one by one; None: all."""
    if NAMED_COLUMNS in settings:
        return None
    number = settings.get(COUNTED_LEAVES, str(DEFAULT_LEAVES))
    return int(number) if number.isdecimal() else None


def _chosen_columns(settings: Mapping[str, str]) -> set[str] | None:
    """Return which columns have statistics, and all that are inside of them; None: the first ones."""
    if NAMED_COLUMNS not in settings:
        return None
    columns = set()
    for quoted_name in COLUMN_NAME.findall(settings[NAMED_COLUMNS]):
        columns.add(quoted_name.strip().replace("`", ""))
    return columns


@dataclass
class _Bounds:
    """Checks the statistics of one file, column by column.

    Args:
        rows: in the file.
        leaves: columns that may still have statistics; None: all.
        chosen: see `_chosen_columns`.
    """

    rows: int
    leaves: int | None
    chosen: set[str] | None

    def check(
        self,
        fields: Sequence[Field],
        low: Mapping[str, Any],
        high: Mapping[str, Any],
        nulls: Mapping[str, Any],
        outer: tuple[str, ...] = (),
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Return (lower bounds, upper bounds, numbers of nulls), each by column. Raises _CannotState."""
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        counts: dict[str, Any] = {}
        for field in fields:
            name, kind = field["name"], field["type"]
            if is_struct(kind):  # also an empty one: to a dataset, a struct that is missing is null
                parts = _inner(low, name), _inner(high, name), _inner(nulls, name)
                lows[name], highs[name], counts[name] = self.check(kind["fields"], *parts, outer=(*outer, name))
                continue
            if not self._has_statistics(*outer, name):
                continue
            null_count = nulls.get(name)
            if not isinstance(null_count, int):
                if is_bounded(kind):
                    raise _CannotState
                continue
            counts[name] = null_count
            if is_bounded(kind) and null_count != self.rows:
                lows[name] = _check_bound(kind, low.get(name), False)
                highs[name] = _check_bound(kind, high.get(name), True)
        return lows, highs, counts

    def _has_statistics(self, *path: str) -> bool:
        """Return whether that column has statistics, by the table's settings. Counts the column."""
        if self.chosen is not None:
            return _is_inside_chosen(path, self.chosen)
        if self.leaves is None:
            return True
        self.leaves -= 1
        return self.leaves >= 0


def _is_inside_chosen(path: Sequence[str], chosen: set[str]) -> bool:
    """Return whether a column, or one that it is inside of, is chosen."""
    return any(".".join(path[:length]) in chosen for length in range(1, len(path) + 1))


def _check_bound(kind: str, value: Any, is_high: bool) -> Any:
    """Return a bound as every reader understands it. Raises _CannotState."""
    if kind == "boolean":
        return value if isinstance(value, bool) else is_high  # Spark states none; these are always right
    if value is None:
        raise _CannotState
    if kind in FLOATS:
        return _check_float(float(value), is_high)
    if kind.startswith(DECIMAL_PREFIX):
        return Decimal(str(value))
    if kind == "string":
        return value
    if kind == "date":
        if not ISO_DATE.fullmatch(value):
            raise _CannotState
        return value
    if kind.startswith("timestamp"):
        return _check_time(value, is_high)
    return int(value)


def _check_float(value: float, is_high: bool) -> float:
    if math.isnan(value):
        raise _CannotState
    if value == 0:  # of both zeros, -0.0 is the lower one to some readers, and writers take either
        return 0.0 if is_high else -0.0
    return value


def _check_time(value: str, is_high: bool) -> str:
    """Return a bound that holds for microseconds: Spark cuts times to milliseconds, as only its own reader knows."""
    match = TIME.fullmatch(value)
    if match is None:
        raise _CannotState
    seconds, fraction, zone = match[1], match[2] or "", match[3]
    if len(fraction) <= MILLISECOND_DIGITS:
        fraction = fraction.ljust(MILLISECOND_DIGITS, "0")
        if is_high:
            fraction += "999"
    return f"{seconds}.{fraction}{zone}"


def _inner(side: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = side.get(name)
    return inner if isinstance(inner, dict) else {}


def is_struct(kind: Any) -> bool:
    return not isinstance(kind, str) and kind["type"] == "struct"


def is_bounded(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in BOUNDED or kind.startswith(DECIMAL_PREFIX))


def is_unbounded(kind: Any) -> bool:
    return not is_bounded(kind) and not is_struct(kind)


def to_json(value: Any) -> str:
    """Return JSON in which decimals are numbers without an exponent, and infinities are as Spark writes them."""
    if isinstance(value, dict):
        members = []
        for name, member in value.items():
            key = json.dumps(name, ensure_ascii=False)
            members.append(f"{key}:{to_json(member)}")
        return "{" + ",".join(members) + "}"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if isinstance(value, float) and math.isnan(value):
        return '"NaN"'
    return json.dumps(value, ensure_ascii=False)
