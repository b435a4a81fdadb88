"""Expectations on a figure of a column: its largest value, its mean, its quantiles, its distinct values."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.gate.arguments import Arguments, Bounds
from onceonly.gate.columns import COMPARABLE, NUMBERS, TIMES, Column, Kind
from onceonly.gate.conditions import Condition
from onceonly.gate.errors import Unjudgeable
from onceonly.gate.figures import Moments, find_by_rank, find_moments, square_root, to_float
from onceonly.gate.literals import number
from onceonly.gate.reductions import Judgement, Reduction
from onceonly.gate.results import SHOWN_VALUES, Judged, figure, listed
from onceonly.gate.row_rules import EVERY, Start, counted, values_rule

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


# ---- numbers


def extreme(arguments: Arguments, find: Callable[[Any], Any]) -> Start:
    """Judge the smallest or the largest value. `find`: `min` or `max`."""
    column, where = arguments.column((*NUMBERS, *TIMES)), arguments.where
    bounds = arguments.bounds(column)

    def fold(arrays: list[pa.Array], length: int) -> Any:
        return pc.min_max(arrays[0]).as_py()[find.__name__]

    def merge(a: Any, b: Any) -> Any:
        return b if a is None else a if b is None else find((a, b))

    def judge() -> Judgement:
        value = yield Reduction((column,), where, fold, merge)
        shown = None if value is None else column.show(value)
        return figure(value is not None and bounds.hold(value), shown, column.kind in TIMES)

    return judge


def _figure_of_numbers(
    arguments: Arguments, find: Callable[[Column, Condition | None], Generator[Reduction, Any, Any]]
) -> Start:
    """Judge a figure that is a fraction, a float if a value is infinite, or None if there is none."""
    column, where, bounds = arguments.column(NUMBERS), arguments.where, arguments.number_bounds()

    def judge() -> Judgement:
        value = yield from find(column, where)
        return figure(_holds(bounds, value, column), _shown(value))

    return judge


def _holds(bounds: Bounds, value: Any, column: Column) -> bool:
    """Compare exactly; or, for a column of floats, as the nearest floats."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if column.kind is Kind.FLOAT and isinstance(value, Fraction):
        value = to_float(value)
        low, high = (None if bound is None else to_float(bound) for bound in (bounds.low, bounds.high))
        return Bounds(low, high, bounds.excludes_low, bounds.excludes_high).hold(value)
    return bounds.hold(value)


def _shown(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Fraction) and value.denominator == 1:
        return str(value.numerator)
    return str(to_float(value) if isinstance(value, Fraction) else value)


def mean(arguments: Arguments) -> Start:
    def find(column: Column, where: Condition | None) -> Generator[Reduction, Any, Any]:
        moments = yield from find_moments(column, where)
        return moments.mean

    return _figure_of_numbers(arguments, find)


def total(arguments: Arguments) -> Start:
    """Judge the sum, which is 0 of no values."""

    def find(column: Column, where: Condition | None) -> Generator[Reduction, Any, Any]:
        moments = yield from find_moments(column, where)
        return moments.total if moments.infinite is None else moments.infinite

    return _figure_of_numbers(arguments, find)


def deviation(arguments: Arguments) -> Start:
    """Judge the standard deviation of a sample, as the nearest float. There is none of less than two values."""
    column, where, bounds = arguments.column(NUMBERS), arguments.where, arguments.number_bounds()

    def judge() -> Judgement:
        moments = yield from find_moments(column, where)
        variance = moments.variance
        value = None if variance is None else square_root(variance)
        low, high = (None if bound is None else to_float(bound) for bound in (bounds.low, bounds.high))
        as_floats = Bounds(low, high, bounds.excludes_low, bounds.excludes_high)
        return figure(value is not None and as_floats.hold(value), _shown(value))

    return judge


def median(arguments: Arguments) -> Start:
    """Judge the middle value, or the mean of both middle values."""

    def find(column: Column, where: Condition | None) -> Generator[Reduction, Any, Any]:
        values = yield from find_by_rank(column, where, lambda count: [(count - 1) // 2, count // 2] if count else [])
        return _middle(*values) if values else None

    return _figure_of_numbers(arguments, find)


def _middle(low: Any, high: Any, weight: Fraction = Fraction(1, 2)) -> Any:
    """Return a value between two, exactly; a float if one of them is infinite."""
    if low == high:
        return low if _is_infinite(low) else Fraction(low)
    if _is_infinite(low) or _is_infinite(high):
        return float(low) * float(1 - weight) + float(high) * float(weight)
    return Fraction(low) * (1 - weight) + Fraction(high) * weight


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def quantiles(arguments: Arguments) -> Start:
    """Judge the values at quantiles. Without an interpolation in `allow_relative_error`, the nearest value counts."""
    column, where = arguments.column(NUMBERS), arguments.where
    asked, ranges = _quantile_ranges(arguments, column)
    allowed = arguments.kwargs.get("allow_relative_error")
    interpolation = "nearest" if allowed is None or isinstance(allowed, bool) else allowed
    if interpolation not in INTERPOLATIONS:
        raise Unjudgeable(f"its allow_relative_error is {allowed!r}; known are {', '.join(INTERPOLATIONS)}")

    def ranks_of(count: int) -> list[int]:
        places = [(count - 1) * quantile for quantile in asked] if count else []
        return [rank for place in places for rank in (math.floor(place), math.ceil(place))]

    def judge() -> Judgement:
        number = yield Reduction((column,), where, lambda arrays, length: length - arrays[0].null_count, _plus)
        pairs = yield from find_by_rank(column, where, ranks_of)
        values: list[Any] = [None] * len(asked)
        for index in range(len(pairs) // 2):
            low, high = pairs[2 * index : 2 * index + 2]
            place = (number - 1) * asked[index]
            values[index] = _interpolated(low, high, place, interpolation)
        found = [_holds(bounds, value, column) for bounds, value in zip(ranges, values, strict=True)]
        shown = [_shown(value) for value in values]
        details = {
            "observed_value": {"quantiles": [float(each) for each in asked], "values": shown},
            "details": {"success_details": found},
        }
        return Judged(all(found), ", ".join(text or "none" for text in shown), details)

    return judge


def _plus(a: int, b: int) -> int:
    return a + b


def _quantile_ranges(arguments: Arguments, column: Column) -> tuple[list[Fraction], list[Bounds]]:
    given = arguments.kwargs.get("quantile_ranges")
    try:
        asked = [Fraction(number(quantile)) for quantile in given["quantiles"]]  # type: ignore[index]
        ranges = [
            Bounds(_fraction(low), _fraction(high))
            for low, high in given["value_ranges"]  # type: ignore[index]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise Unjudgeable("its quantile_ranges are no quantiles and value_ranges") from error
    if len(asked) != len(ranges) or not all(0 <= quantile <= 1 for quantile in asked):
        raise Unjudgeable("its quantile_ranges do not have one range for each quantile from 0 to 1")
    return asked, ranges


def _fraction(value: Any) -> Fraction | None:
    return None if value is None else Fraction(number(value))


def _interpolated(low: Any, high: Any, place: Fraction, interpolation: str) -> Any:
    weight = place - math.floor(place)
    if interpolation == "nearest":  # of two that are as near, the one at the even rank
        weight = Fraction(round(place) - math.floor(place))
    elif interpolation in ("lower", "higher"):
        weight = Fraction(interpolation == "higher")
    elif interpolation == "midpoint":
        weight = Fraction(1, 2) if weight else Fraction(0)
    if weight in (0, 1):
        nearest = high if weight else low
        return _middle(nearest, nearest)
    return _middle(low, high, weight)


# ---- values that stand out


def z_scores(arguments: Arguments) -> Start:
    """Judge each value by its distance from the mean. Where there is no standard deviation, no value stands out."""
    column, where = arguments.column(NUMBERS), arguments.where
    threshold, double_sided = float(arguments.number("threshold")), arguments.flag("double_sided", True)

    def judge() -> Judgement:
        moments = yield from find_moments(column, where)
        center, deviation = _center(moments)

        def is_near(value: Any) -> bool:
            if not deviation:
                return True
            score = (float(value) - center) / deviation
            return abs(score) < abs(threshold) if double_sided else score < threshold

        return (yield from values_rule(arguments, column, is_near)())

    return judge


def not_outliers(arguments: Arguments) -> Start:
    """Judge each value by the quartiles, or by the mean and the standard deviation."""
    column, where = arguments.column(NUMBERS), arguments.where
    multiplier = float(arguments.kwargs.get("multiplier", 1.5))
    find = _fences if arguments.choice("method", ("iqr", "std"), "iqr") == "iqr" else _window

    def judge() -> Judgement:
        predicate = yield from find(column, where, multiplier)
        return (yield from values_rule(arguments, column, predicate)())

    return judge


def _center(moments: Moments) -> tuple[float, float]:
    """Return the mean and the standard deviation as floats; 0.0 if there is none."""
    if moments.variance is None or not isinstance(moments.mean, Fraction):
        return 0.0, 0.0
    return to_float(moments.mean), square_root(moments.variance)


def _fences(column: Column, where: Condition | None, multiplier: float) -> Generator[Reduction, Any, Any]:
    quarters = (Fraction(1, 4), Fraction(3, 4))
    places: list[Fraction] = []

    def ranks_of(count: int) -> list[int]:
        places[:] = [(count - 1) * quarter for quarter in quarters] if count else []
        return [rank for place in places for rank in (math.floor(place), math.ceil(place))]

    values = yield from find_by_rank(column, where, ranks_of)
    if not values:
        return _everything
    pairs = zip(values[0::2], values[1::2], places, strict=True)
    low, high = (float(_interpolated(below, above, place, "linear")) for below, above, place in pairs)
    if not (math.isfinite(low) and math.isfinite(high)):
        return _everything
    reach = multiplier * (high - low)
    return lambda value: low - reach <= float(value) <= high + reach


def _window(column: Column, where: Condition | None, multiplier: float) -> Generator[Reduction, Any, Any]:
    moments = yield from find_moments(column, where)
    if moments.variance is None:
        return _everything
    center, deviation = _center(moments)
    reach = multiplier * deviation
    if reach <= 0:
        return lambda value: float(value) == center
    return lambda value: abs(float(value) - center) < reach


def _everything(value: Any) -> bool:
    return True


# ---- distinct values


def non_null_proportion(arguments: Arguments) -> Start:
    column, where, bounds = arguments.column(EVERY), arguments.where, arguments.number_bounds()

    def fold(arrays: list[pa.Array], length: int) -> tuple[int, int]:
        return length - arrays[0].null_count, length

    def judge() -> Judgement:
        there, rows = yield Reduction((column,), where, fold, _plus_pairs)
        value = Fraction(there, rows) if rows else Fraction(0)
        return figure(bounds.hold(value), _shown(value))

    return judge


def unique_figure(arguments: Arguments, is_proportion: bool) -> Start:
    """Judge the number of distinct values, or its share of all values that are not null."""
    column, where, bounds = arguments.column(COMPARABLE), arguments.where, arguments.number_bounds()

    def fold(arrays: list[pa.Array], length: int) -> tuple[int, int]:
        there = arrays[1].filter(pc.is_valid(arrays[0]))
        return len(there), pc.sum(there).as_py() or 0

    def judge() -> Judgement:
        distinct, values = yield Reduction((column,), where, fold, _plus_pairs, by_value=True)
        value = Fraction(distinct, values or 1) if is_proportion else Fraction(distinct)
        return figure(bounds.hold(value), _shown(value))

    return judge


def _plus_pairs(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def distinct_in_set(arguments: Arguments, may_have_others: bool, must_have_all: bool) -> Start:
    """Judge which values of a set a column has, and whether it has others."""
    column, where = arguments.column(COMPARABLE), arguments.where
    values = arguments.values(column)

    def fold(arrays: list[pa.Array], length: int) -> tuple[set[Any], set[Any], bool]:
        there = {value for value, _ in counted(arrays[0])}
        others = there - values
        expected = {value for value in there if value in values}
        return expected, _few(others), bool(others)

    def merge(a: Any, b: Any) -> Any:
        return a[0] | b[0], _few(a[1] | b[1]), a[2] or b[2]

    def judge() -> Judgement:
        there, others, has_others = yield Reduction((column,), where, fold, merge)
        lacking = values - there if must_have_all else set()
        ok = not lacking and (may_have_others or not has_others)
        summary = _summary(has_others and not may_have_others, lacking)
        shown = sorted(column.show(value) for value in _few(there | others))
        return listed(ok, shown[:SHOWN_VALUES], summary)

    return judge


def _few(values: set[Any]) -> set[Any]:
    return set(sorted(values)[: 2 * SHOWN_VALUES])


def _summary(has_others: bool, lacking: Any) -> str:
    parts = ["values outside the set"] if has_others else []
    parts += [f"{count(len(lacking), 'value')} of the set missing"] if lacking else []
    return ", ".join(parts) or "as expected"


def most_common(arguments: Arguments) -> Start:
    """Judge whether the most common value is in a set. Of several that are as common: all, or with `ties_okay` any."""
    column, where, ties_okay = arguments.column(COMPARABLE), arguments.where, arguments.flag("ties_okay")
    values = arguments.values(column)

    def fold(arrays: list[pa.Array], length: int) -> tuple[int, int, int, list[Any]]:
        pairs = [pair for pair in zip(*(array.to_pylist() for array in arrays), strict=True) if pair[0] is not None]
        most = max((times for _, times in pairs), default=0)
        leaders = [value for value, times in pairs if times == most]
        return most, len(leaders), sum(value in values for value in leaders), sorted(leaders)[:SHOWN_VALUES]

    def merge(a: Any, b: Any) -> Any:
        if a[0] != b[0]:
            return max(a, b, key=lambda state: state[0])
        return a[0], a[1] + b[1], a[2] + b[2], sorted(a[3] + b[3])[:SHOWN_VALUES]

    def judge() -> Judgement:
        times, leaders, in_set, shown = yield Reduction((column,), where, fold, merge, by_value=True)
        ok = in_set > 0 and (ties_okay or in_set == leaders)
        summary = f"{count(leaders, 'value')} with {count(times, 'row')}"
        return listed(ok, [column.show(value) for value in shown], summary)

    return judge
