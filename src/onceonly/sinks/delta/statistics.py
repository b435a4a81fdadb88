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

Field = Mapping[str, Any]  # of a Delta schema
INTEGERS = {"byte", "short", "integer", "long"}
FLOATS = {"float", "double"}
BOUNDED = {*INTEGERS, *FLOATS, "string", "boolean", "date", "timestamp", "timestamp_ntz"}  # and decimals
SIDES = ("minValues", "maxValues", "nullCount")
DECIMAL = "decimal("
DAY = re.compile(r"\d{4}-\d\d-\d\d")
TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d|)")
COLUMN_NAME = re.compile(r"(?:`(?:[^`]|``)*`|[^,`])+")
MILLIS = 3  # digits, to which Spark cuts a time
COUNTED_LEAVES = "delta.dataSkippingNumIndexedCols"
NAMED_COLUMNS = "delta.dataSkippingStatsColumns"
DEFAULT_LEAVES = 32


class _NotTold(Exception):
    """A bound that readers look for is missing, or is a value of which they have different ideas."""


def settled(stats: str | None, schema: Field, partitions: Sequence[str], settings: Mapping[str, str]) -> str:
    """A file's statistics, by whichever writer, as a commit may tell them.

    Args:
        schema: of the table, in its JSON form.
        partitions: the partition columns, which have no statistics.
        settings: the table's properties.
    """
    told = json.loads(stats or "{}", parse_float=Decimal)
    if not isinstance(told.get("numRecords"), int):
        return "{}"
    fields = [field for field in schema["fields"] if field["name"] not in partitions]
    low, high, nulls = (_inner(told, side) for side in SIDES)
    try:
        bounds = _Bounds(told["numRecords"], _leaves(settings), _named(settings)).of(fields, low, high, nulls)
    except _NotTold:
        return text({"numRecords": told["numRecords"]})
    return text({"numRecords": told["numRecords"], **dict(zip(SIDES, bounds, strict=True))})


def settled_adds(adds: list[dict[str, Any]], table: Any) -> list[dict[str, Any]]:
    """Add actions of files for that table, with statistics that a commit may tell."""
    metadata, schema = table.metadata(), json.loads(table.schema().to_json())
    known = schema, list(metadata.partition_columns), metadata.configuration
    return [{**add, "stats": settled(add.get("stats"), *known)} for add in adds]


# ---- what is told


def _leaves(settings: Mapping[str, str]) -> int | None:
    """How many columns have statistics, those in structs counted one by one; None: all."""
    number = settings.get(COUNTED_LEAVES, str(DEFAULT_LEAVES))
    return int(number) if number.isdecimal() and NAMED_COLUMNS not in settings else None


def _named(settings: Mapping[str, str]) -> set[str] | None:
    """Which columns have statistics, and all that are inside of them; None: the first ones."""
    if NAMED_COLUMNS not in settings:
        return None
    return {name.strip().replace("`", "") for name in COLUMN_NAME.findall(settings[NAMED_COLUMNS])}


@dataclass
class _Bounds:
    """Checks the statistics of one file, column by column.

    Args:
        rows: in the file.
        leaves: columns that are still to be told of; None: all.
        named: see `_named`.
    """

    rows: int
    leaves: int | None
    named: set[str] | None

    def of(
        self,
        fields: Sequence[Field],
        low: Mapping[str, Any],
        high: Mapping[str, Any],
        nulls: Mapping[str, Any],
        outer: tuple[str, ...] = (),
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """(lower bounds, upper bounds, numbers of nulls). Raises _NotTold."""
        lows: dict[str, Any] = {}
        highs: dict[str, Any] = {}
        counts: dict[str, Any] = {}
        for each in fields:
            name, kind = each["name"], each["type"]
            if is_struct(kind):  # also an empty one: to a dataset, a struct that is missing is null
                parts = _inner(low, name), _inner(high, name), _inner(nulls, name)
                lows[name], highs[name], counts[name] = self.of(kind["fields"], *parts, outer=(*outer, name))
            elif not self._is_told(*outer, name):
                continue
            elif not is_bounded(kind):
                counts |= {name: nulls[name]} if isinstance(nulls.get(name), int) else {}
            elif not isinstance(nulls.get(name), int):
                raise _NotTold
            else:
                counts[name] = nulls[name]
                if counts[name] != self.rows:
                    lows[name] = _checked(kind, low.get(name), False)
                    highs[name] = _checked(kind, high.get(name), True)
        return lows, highs, counts

    def _is_told(self, *path: str) -> bool:
        if self.named is not None:
            return any(".".join(path[:length]) in self.named for length in range(1, len(path) + 1))
        if self.leaves is None:
            return True
        self.leaves -= 1
        return self.leaves >= 0


def _checked(kind: str, value: Any, is_high: bool) -> Any:
    """A bound as every reader understands it. Raises _NotTold."""
    if kind == "boolean":
        return value if isinstance(value, bool) else is_high  # Spark tells none; these are always right
    if value is None:
        raise _NotTold
    if kind in FLOATS:
        return _checked_float(float(value), is_high)
    if kind.startswith(DECIMAL):
        return Decimal(str(value))
    if kind == "string":
        return value
    if kind == "date":
        if not DAY.fullmatch(value):
            raise _NotTold
        return value
    return _checked_time(value, is_high) if kind.startswith("timestamp") else int(value)


def _checked_float(value: float, is_high: bool) -> float:
    if math.isnan(value):
        raise _NotTold
    if value == 0:  # of both zeros, -0.0 is the lower one to some readers, and writers take either
        return 0.0 if is_high else -0.0
    return value


def _checked_time(value: str, is_high: bool) -> str:
    """Spark cuts times to milliseconds, and its own reader alone knows of that."""
    match = TIME.fullmatch(value)
    if match is None:
        raise _NotTold
    seconds, fraction, zone = match[1], match[2] or "", match[3]
    if len(fraction) <= MILLIS:
        fraction = fraction.ljust(MILLIS, "0") + ("999" if is_high else "")
    return f"{seconds}.{fraction}{zone}"


def _inner(side: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = side.get(name)
    return inner if isinstance(inner, dict) else {}


def is_struct(kind: Any) -> bool:
    return not isinstance(kind, str) and kind["type"] == "struct"


def is_bounded(kind: Any) -> bool:
    return isinstance(kind, str) and (kind in BOUNDED or kind.startswith(DECIMAL))


def is_unbounded(kind: Any) -> bool:
    return not is_bounded(kind) and not is_struct(kind)


def text(value: Any) -> str:
    """JSON in which decimals are numbers without an exponent, and infinities are as Spark writes them."""
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{json.dumps(name, ensure_ascii=False)}:{text(each)}" for name, each in value.items()) + "}"
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float) and math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if isinstance(value, float) and math.isnan(value):
        return '"NaN"'
    return json.dumps(value, ensure_ascii=False)
