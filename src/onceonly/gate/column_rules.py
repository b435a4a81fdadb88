"""Expectations on a figure of a column: its largest value, its mean, its quantiles, its distinct values."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.counts import count
from onceonly.gate.arguments import Arguments, Bounds
from onceonly.gate.columns import COMPARABLE, NUMBERS, TIMES, Column, Kind, Unjudgeable, number
from onceonly.gate.conditions import Condition
from onceonly.gate.figures import Moments, find_by_rank, find_moments, square_root, to_float
from onceonly.gate.reductions import (
    MAX_SHOWN_VALUES,
    ExpectationResult,
    Judgement,
    Reduction,
    figure_result,
    values_result,
)
from onceonly.gate.row_rules import EVERY, Start, count_values, iterate_rows, values_rule

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


# ---- numbers


def extreme(arguments: Arguments, find: Callable[[Any], Any]) -> Start:
    """Judge the smallest or the largest value. `find`: `min` or `max`."""
    column, condition = arguments.column((*NUMBERS, *TIMES)), arguments.condition
    bounds = arguments.bounds(column)

    def fold_part(arrays: list[pa.Array], length: int) -> Any:
        return pc.min_max(arrays[0]).as_py()[find.__name__]

    def merge(a: Any, b: Any) -> Any:
        if a is None:
            return b
        if b is None:
            return a
        return find((a, b))

    def judge() -> Judgement:
        value = yield Reduction((column,), condition, fold_part, merge)
        if value is None:
            return figure_result(False, None)
        return figure_result(bounds.contains(value), column.show(value), column.kind in TIMES)

    return judge


def _number_rule(
    arguments: Arguments, find: Callable[[Column, Condition | None], Generator[Reduction, Any, Any]]
) -> Start:
    """Judge a figure that is a fraction, a float if a value is infinite, or None if there is none."""
    column, condition, bounds = arguments.column(NUMBERS), arguments.condition, arguments.number_bounds()

    def judge() -> Judgement:
        value = yield from find(column, condition)
        return figure_result(_is_within(bounds, value, column), _show_figure(value))

    return judge


def _is_within(bounds: Bounds, value: Any, column: Column) -> bool:
    """Return whether a figure is within bounds: exactly; or, for a column of floats, as the nearest floats.

    No figure and NaN are not.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    if column.kind is Kind.FLOAT and isinstance(value, Fraction):
        return _round_bounds(bounds).contains(to_float(value))
    return bounds.contains(value)


def _round_bounds(bounds: Bounds) -> Bounds:
    """Return the nearest floats as bounds."""
    return Bounds(_round_bound(bounds.low), _round_bound(bounds.high), bounds.excludes_low, bounds.excludes_high)


def _round_bound(bound: Fraction | None) -> float | None:
    if bound is None:
        return None
    return to_float(bound)


def _show_figure(value: Any) -> str | None:
    """Return a figure as a person reads it: exactly if it is a whole number, else as the nearest float."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, Fraction):
        return str(value)
    if value.denominator == 1:
        return str(value.numerator)
    return str(to_float(value))


def mean(arguments: Arguments) -> Start:
    """Judge the mean. There is none of no values."""

    def find(column: Column, condition: Condition | None) -> Generator[Reduction, Any, Any]:
        moments = yield from find_moments(column, condition)
        return moments.mean

    return _number_rule(arguments, find)


def total(arguments: Arguments) -> Start:
    """Judge the sum, which is 0 of no values."""

    def find(column: Column, condition: Condition | None) -> Generator[Reduction, Any, Any]:
        moments = yield from find_moments(column, condition)
        if moments.infinite is not None:
            return moments.infinite
        return moments.total

    return _number_rule(arguments, find)


def deviation(arguments: Arguments) -> Start:
    """Judge the standard deviation of a sample, as the nearest float. There is none of less than two values."""
    column, condition, bounds = arguments.column(NUMBERS), arguments.condition, arguments.number_bounds()

    def judge() -> Judgement:
        moments = yield from find_moments(column, condition)
        if moments.variance is None:
            return figure_result(False, None)
        value = square_root(moments.variance)
        return figure_result(_round_bounds(bounds).contains(value), _show_figure(value))

    return judge


def median(arguments: Arguments) -> Start:
    """Judge the middle value, or the mean of both middle values."""

    def ranks_of(count: int) -> list[int]:
        if not count:
            return []
        return [(count - 1) // 2, count // 2]

    def find(column: Column, condition: Condition | None) -> Generator[Reduction, Any, Any]:
        values = yield from find_by_rank(column, condition, ranks_of)
        if not values:
            return None
        return _weigh(*values)

    return _number_rule(arguments, find)


def _weigh(low: Any, high: Any, weight: Fraction = Fraction(1, 2)) -> Any:
    """Return a value between two, exactly; a float if one of them is infinite."""
    if _is_infinite(low) or _is_infinite(high):
        if low == high:
            return low
        return float(low) * float(1 - weight) + float(high) * float(weight)
    if low == high:
        return Fraction(low)
    return Fraction(low) * (1 - weight) + Fraction(high) * weight


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


def quantiles(arguments: Arguments) -> Start:
    """Judge the values at quantiles. Without an interpolation in `allow_relative_error`, the nearest value counts."""
    column, condition = arguments.column(NUMBERS), arguments.condition
    levels, ranges = _quantile_ranges(arguments)
    allowed = arguments.kwargs.get("allow_relative_error")
    interpolation = allowed
    if allowed is None or isinstance(allowed, bool):
        interpolation = "nearest"
    if interpolation not in INTERPOLATIONS:
        raise Unjudgeable(f"its allow_relative_error is {allowed!r}; known are {', '.join(INTERPOLATIONS)}")

    def ranks_of(count: int) -> list[int]:
        return _ranks_beside(_positions(levels, count))

    def judge() -> Judgement:
        count = yield Reduction((column,), condition, _count_valid, _add)
        neighbours = yield from find_by_rank(column, condition, ranks_of)
        values: list[Any] = [None] * len(levels)
        for index, position in enumerate(_positions(levels, count)):
            low, high = neighbours[2 * index : 2 * index + 2]
            values[index] = _interpolate(low, high, position, interpolation)
        successes: list[bool] = []
        figures: list[str | None] = []
        for bounds, value in zip(ranges, values, strict=True):
            successes.append(_is_within(bounds, value, column))
            figures.append(_show_figure(value))
        details = {
            "observed_value": {"quantiles": list(map(float, levels)), "values": figures},
            "details": {"success_details": successes},
        }
        return ExpectationResult(all(successes), ", ".join(text or "none" for text in figures), details)

    return judge


def _positions(levels: Sequence[Fraction], count: int) -> list[Fraction]:
    """Return where quantiles lie among `count` sorted values, mostly between two ranks; nowhere if there are none."""
    if not count:
        return []
    return [(count - 1) * level for level in levels]


def _ranks_beside(positions: Sequence[Fraction]) -> list[int]:
    """Return for each position the rank below it and the rank above it."""
    ranks = []
    for position in positions:
        ranks += [math.floor(position), math.ceil(position)]
    return ranks


def _count_valid(arrays: list[pa.Array], length: int) -> int:
    return int(length - arrays[0].null_count)


def _add(a: int, b: int) -> int:
    return a + b


def _quantile_ranges(arguments: Arguments) -> tuple[list[Fraction], list[Bounds]]:
    """Return the quantiles, from 0 to 1, and the bounds of each. Raises Unjudgeable."""
    quantile_ranges: Any = arguments.kwargs.get("quantile_ranges")
    try:
        levels = [Fraction(number(level)) for level in quantile_ranges["quantiles"]]
        ranges = [Bounds(_fraction(low), _fraction(high)) for low, high in quantile_ranges["value_ranges"]]
    except (KeyError, TypeError, ValueError) as error:
        raise Unjudgeable("its quantile_ranges are no quantiles and value_ranges") from error
    if len(levels) != len(ranges) or not all(0 <= level <= 1 for level in levels):
        raise Unjudgeable("its quantile_ranges do not have one range for each quantile from 0 to 1")
    return levels, ranges


def _fraction(value: Any) -> Fraction | None:
    if value is None:
        return None
    return Fraction(number(value))


def _interpolate(low: Any, high: Any, position: Fraction, interpolation: str) -> Any:
    """Return the value at a position between the values of two neighbouring ranks."""
    weight = position - math.floor(position)
    if interpolation == "nearest":  # of two that are as near, the one at the even rank
        weight = Fraction(round(position) - math.floor(position))
    elif interpolation in ("lower", "higher"):
        weight = Fraction(interpolation == "higher")
    elif interpolation == "midpoint":
        weight = Fraction(1, 2) if weight else Fraction(0)
    if weight in (0, 1):
        nearest = high if weight else low
        return _weigh(nearest, nearest)
    return _weigh(low, high, weight)


# ---- values that stand out


def z_scores(arguments: Arguments) -> Start:
    """Judge each value by its distance from the mean. Where there is no standard deviation, no value stands out."""
    column, condition = arguments.column(NUMBERS), arguments.condition
    threshold, double_sided = float(arguments.number("threshold")), arguments.flag("double_sided", True)

    def judge() -> Judgement:
        moments = yield from find_moments(column, condition)
        center, deviation = _center_and_deviation(moments)

        def is_near(value: Any) -> bool:
            if not deviation:
                return True
            score = (float(value) - center) / deviation
            if double_sided:
                return abs(score) < abs(threshold)
            return score < threshold

        return (yield from values_rule(arguments, column, is_near)())

    return judge


def not_outliers(arguments: Arguments) -> Start:
    """Judge each value by the quartiles, or by the mean and the standard deviation."""
    column, condition = arguments.column(NUMBERS), arguments.condition
    multiplier = float(arguments.kwargs.get("multiplier", 1.5))
    find = _find_deviation_predicate
    if arguments.choice("method", ("iqr", "std"), "iqr") == "iqr":
        find = _find_quartile_predicate

    def judge() -> Judgement:
        predicate = yield from find(column, condition, multiplier)
        return (yield from values_rule(arguments, column, predicate)())

    return judge


def _center_and_deviation(moments: Moments) -> tuple[float, float]:
    """Return the mean and the standard deviation as floats; 0.0 if there is none."""
    if moments.variance is None or not isinstance(moments.mean, Fraction):
        return 0.0, 0.0
    return to_float(moments.mean), square_root(moments.variance)


def _find_quartile_predicate(
    column: Column, condition: Condition | None, multiplier: float
) -> Generator[Reduction, Any, Any]:
    """Find the quartiles; return whether a value is near enough to them."""
    quarters = (Fraction(1, 4), Fraction(3, 4))
    positions: list[Fraction] = []

    def ranks_of(count: int) -> list[int]:
        positions[:] = _positions(quarters, count)
        return _ranks_beside(positions)

    values = yield from find_by_rank(column, condition, ranks_of)
    if not values:
        return _accept_everything
    below_low, above_low, below_high, above_high = values
    low = float(_interpolate(below_low, above_low, positions[0], "linear"))
    high = float(_interpolate(below_high, above_high, positions[1], "linear"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return _accept_everything
    reach = multiplier * (high - low)
    return lambda value: low - reach <= float(value) <= high + reach


def _find_deviation_predicate(
    column: Column, condition: Condition | None, multiplier: float
) -> Generator[Reduction, Any, Any]:
    """Find the mean and the standard deviation; return whether a value is near enough to the mean."""
    moments = yield from find_moments(column, condition)
    if moments.variance is None:
        return _accept_everything
    center, deviation = _center_and_deviation(moments)
    reach = multiplier * deviation
    if reach <= 0:
        return lambda value: float(value) == center
    return lambda value: abs(float(value) - center) < reach


def _accept_everything(value: Any) -> bool:
    return True


# ---- distinct values


def non_null_proportion(arguments: Arguments) -> Start:
    """Judge the share of rows whose value is not null; 0 of no rows."""
    column, condition, bounds = arguments.column(EVERY), arguments.condition, arguments.number_bounds()

    def fold_part(arrays: list[pa.Array], length: int) -> tuple[int, int]:
        return length - arrays[0].null_count, length

    def judge() -> Judgement:
        valid, rows = yield Reduction((column,), condition, fold_part, _add_pairs)
        value = Fraction(valid, rows) if rows else Fraction(0)
        return figure_result(bounds.contains(value), _show_figure(value))

    return judge


def unique_figure(arguments: Arguments, is_proportion: bool) -> Start:
    """Judge the number of distinct values, or its share of all values that are not null."""
    column, condition, bounds = arguments.column(COMPARABLE), arguments.condition, arguments.number_bounds()

    def fold_part(arrays: list[pa.Array], length: int) -> tuple[int, int]:
        times = arrays[1].filter(pc.is_valid(arrays[0]))
        return len(times), pc.sum(times).as_py() or 0

    def judge() -> Judgement:
        distinct, values = yield Reduction((column,), condition, fold_part, _add_pairs, by_value=True)
        value = Fraction(distinct)
        if is_proportion and values:
            value = Fraction(distinct, values)
        return figure_result(bounds.contains(value), _show_figure(value))

    return judge


def _add_pairs(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


def distinct_in_set(arguments: Arguments, may_have_others: bool, must_have_all: bool) -> Start:
    """Judge which values of a set a column has, and whether it has others."""
    column, condition = arguments.column(COMPARABLE), arguments.condition
    values = arguments.values(column)

    def fold_part(arrays: list[pa.Array], length: int) -> tuple[set[Any], set[Any], bool]:
        """Return which values of the set the rows have, some of the others, and whether there are others."""
        expected, other_values = set[Any](), set[Any]()
        for value, _ in count_values(arrays[0]):
            if value in values:
                expected.add(value)  # as the column has it: the suite's value is equal, and may be of another type
            else:
                other_values.add(value)
        return expected, _keep_first(other_values), bool(other_values)

    def merge(a: Any, b: Any) -> Any:
        return a[0] | b[0], _keep_first(a[1] | b[1]), a[2] or b[2]

    def judge() -> Judgement:
        expected, other_values, has_others = yield Reduction((column,), condition, fold_part, merge)
        missing = set[Any]()
        if must_have_all:
            missing = set(values - expected)
        ok = not missing and (may_have_others or not has_others)
        summary = _summarize(has_others and not may_have_others, len(missing))
        texts = sorted(column.show(value) for value in _keep_first(expected | other_values))
        return values_result(ok, texts[:MAX_SHOWN_VALUES], summary)

    return judge


def _keep_first(values: set[Any]) -> set[Any]:
    """Return the smallest values: twice as many as are shown."""
    return set(sorted(values)[: 2 * MAX_SHOWN_VALUES])


def _summarize(has_others: bool, missing: int) -> str:
    parts = []
    if has_others:
        parts.append("values outside the set")
    if missing:
        parts.append(f"{count(missing, 'value')} of the set missing")
    return ", ".join(parts) or "as expected"


def most_common(arguments: Arguments) -> Start:
    """Judge whether the most common value is in a set. Of several that are as common: all, or with `ties_okay` any."""
    column, condition, ties_okay = arguments.column(COMPARABLE), arguments.condition, arguments.flag("ties_okay")
    values = arguments.values(column)

    def fold_part(arrays: list[pa.Array], length: int) -> tuple[int, int, int, list[Any]]:
        """Return how often the most common values occur, how many they are, how many are in the set, and some."""
        most, leaders = 0, list[Any]()
        for value, times in iterate_rows(arrays):
            if value is None or times < most:
                continue
            if times > most:
                most, leaders = times, []
            leaders.append(value)
        return most, len(leaders), sum(value in values for value in leaders), sorted(leaders)[:MAX_SHOWN_VALUES]

    def merge(a: Any, b: Any) -> Any:
        if a[0] != b[0]:
            return max(a, b, key=lambda state: state[0])
        return a[0], a[1] + b[1], a[2] + b[2], sorted(a[3] + b[3])[:MAX_SHOWN_VALUES]

    def judge() -> Judgement:
        times, leaders, in_set, samples = yield Reduction((column,), condition, fold_part, merge, by_value=True)
        ok = in_set > 0 and (ties_okay or in_set == leaders)
        summary = f"{count(leaders, 'value')} with {count(times, 'row')}"
        return values_result(ok, [column.show(value) for value in samples], summary)

    return judge
