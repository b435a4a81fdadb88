"""Every expectation that Great Expectations ships, on a column of every type: for both ways of judging."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from onceonly.gate.suites import RULES, WHY_NOT_JUDGED

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
Literals = tuple[Any, Any]  # two values that a suite may give for the column
COLUMNS: dict[str, tuple[pa.DataType, list[Any], Literals]] = {
    "truth": (pa.bool_(), [True, False, None, True, True, False], (True, False)),
    "tiny": (pa.int8(), [-128, 127, None, 0, 0, 5], (0, 5)),
    "whole": (pa.int32(), [1, 2, None, 3, 3, -5], (1, 3)),
    "large": (pa.int64(), [2**53 + 1, -(2**63), None, 2**63 - 1, 7, 7], (7, 2**53 + 1)),
    "single": (pa.float32(), [0.1, -0.0, None, math.nan, 0.0, 3.5], (Decimal("0.1"), Decimal("3.5"))),
    "double": (pa.float64(), [0.1, -0.0, None, math.nan, 0.0, 1e300], (Decimal("0.1"), 0)),
    "endless": (pa.float64(), [math.inf, -math.inf, None, 1.5, 1.5, 2.0], (Decimal("1.5"), 2)),
    "cents": (pa.decimal128(10, 2), [Decimal("0.01"), Decimal("99.99"), None, Decimal("5.00"), Decimal("5.00"),
              Decimal("-0.10")], (Decimal("0.01"), Decimal("99.99"))),
    "exact": (pa.decimal128(38, 18), [Decimal("0.1"), Decimal("-12345678901234567890.000000000000000001"), None,
              Decimal("0.1"), Decimal("0.2"), Decimal("0.3")], (Decimal("0.1"), Decimal("0.3"))),
    "text": (pa.string(), ["a", "", None, "2026-05-01", '{"a": 1}', "a\n"], ("a", "2026-05-01")),
    "day": (pa.date32(), [date(1, 1, 1), date(2026, 5, 1), None, date(9999, 12, 31), date(2026, 5, 1),
            date(1970, 1, 1)], ("2026-05-01", "9999-12-31")),
    "at": (pa.timestamp("us", "UTC"), [NOON, datetime(1, 1, 1, tzinfo=UTC), None, datetime(9999, 12, 31, tzinfo=UTC),
           NOON, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)], ("2026-05-01T12:00:00+00:00", "9999-12-31")),
    "local": (pa.timestamp("us"), [NOON.replace(tzinfo=None), datetime(1, 1, 1), None, datetime(2026, 5, 1), None,
              datetime(1900, 1, 1)], ("2026-05-01T12:00:00", "1900-01-01")),
    "raw": (pa.binary(), [b"a", b"", None, b"\xff", b"a", b"b"], ("a", "b")),
    "words": (pa.list_(pa.string()), [["a"], [], None, [None], ["a"], ["b", "c"]], ("a", "b")),
    "pair": (pa.struct([("x", pa.int32())]), [{"x": 1}, {"x": None}, None, {"x": 1}, {"x": 2}, {"x": 3}], (1, 2)),
}  # fmt: skip
KINDS = [*RULES, *WHY_NOT_JUDGED]


def table(rows: str = "all") -> pa.Table:
    """Rows with values of every type beside nulls and NaN; or `nulls` only; or `none`."""
    columns = {}
    for name, (kind, values, _) in COLUMNS.items():
        chosen = {"all": values, "nulls": [None] * len(values), "none": []}[rows]
        columns[name] = pa.array(chosen, kind)
        columns[f"other_{name}"] = pa.array(chosen[1:] + chosen[:1], kind)
    return pa.table(columns)


def expectations(name: str) -> Iterator[dict[str, Any]]:
    """Every expectation on that column, with and without a condition."""
    low, high = COLUMNS[name][2]
    for kind in KINDS:
        for kwargs in _arguments(kind, name, low, high):
            yield {"type": kind, "kwargs": kwargs}
            if "column" in kwargs and kind not in ("expect_column_to_exist", "expect_column_type_to_be"):
                condition = "text != 'a' or whole >= 2"
                yield {"type": kind, "kwargs": {**kwargs, "row_condition": condition, "condition_parser": "pandas"}}


def _arguments(kind: str, name: str, low: Any, high: Any) -> Iterator[dict[str, Any]]:
    if "table" in kind:
        yield {"min_value": 1, "max_value": 10, "value": 6, "column_list": [name], "column_set": [name]}
    elif "pair" in kind:
        for ignored in ("both_values_are_missing", "either_value_is_missing", "neither"):
            both = {"column_A": name, "column_B": f"other_{name}", "ignore_row_if": ignored}
            yield {**both, "value_pairs_set": [[low, high], [high, low]], "or_equal": True}
    elif "compound" in kind or "multicolumn" in kind or "within_record" in kind:
        for ignored in ("all_values_are_missing", "any_value_is_missing", "never"):
            yield {"column_list": [name, f"other_{name}"], "ignore_row_if": ignored, "sum_total": 1}
    else:
        for kwargs in _of_one_column(kind, low, high):
            yield {"column": name, **kwargs}


def _of_one_column(kind: str, low: Any, high: Any) -> Iterator[dict[str, Any]]:
    if kind.endswith(("_in_set", "_contain_set", "_equal_set")):
        yield {"value_set": [low, high]}
        yield {"value_set": [low], "mostly": Decimal("0.2"), "ties_okay": True}
    elif "quantile" in kind:
        for error in (False, "linear", "midpoint", "lower", "higher"):
            ranges = {"quantiles": [0, Decimal("0.5"), Decimal("0.9")], "value_ranges": [[None, 0], [0, 4], [-10, 10]]}
            yield {"quantile_ranges": ranges, "allow_relative_error": error}
    elif kind.endswith("_between") and not any(word in kind for word in ("length", "proportion", "count")):
        yield {"min_value": low}
        yield {"max_value": high, "strict_max": True}
        yield {"min_value": low, "max_value": high, "mostly": Decimal("0.5")}
    elif kind.endswith("_between"):
        yield {"min_value": 1, "max_value": 4}
        yield {"min_value": Decimal("0.5"), "max_value": 1}
    else:
        yield OTHERS


OTHERS = {
    "value": 1,
    "threshold": 1,
    "multiplier": 1,
    "double_sided": True,
    "regex": "^a$",
    "regex_list": ["a", "^2"],
    "like_pattern": "a%",
    "like_pattern_list": ["a%", "2_26%"],
    "strftime_format": "%Y-%m-%d",
    "json_schema": {"type": "object"},
    "type_": "LongType",
    "type_list": ["LongType", "string", "decimal(10,2)"],
}
