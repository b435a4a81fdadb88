"""Figures of a column's numbers, exactly: sums, moments and order statistics do not depend on how rows are split."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.columns import Column, Kind
from onceonly.gate.conditions import Condition
from onceonly.gate.reductions import Reduction

EXACT = Context(prec=400)  # digits; a sum of squares of decimals has less than 100
SMALLEST = 1_126  # 2**-1126 divides every product of a double's 53-bit mantissa with a power of two
KEPT_VALUES = 20_000  # of which order statistics are taken at once
PIVOTS = 1_000


@dataclass(frozen=True)
class Moments:
    """The number of values that are not null, their sum, and the sum of their squares.

    `infinite`: the sum is no number, or infinite; then it is this.
    """

    count: int
    total: Fraction
    squares: Fraction
    infinite: float | None

    @property
    def mean(self) -> Fraction | float | None:
        if not self.count:
            return None
        return self.total / self.count if self.infinite is None else self.infinite

    @property
    def variance(self) -> Fraction | None:
        """That of a sample; None for less than two values, or if one is infinite."""
        if self.count < 2 or self.infinite is not None:
            return None
        return (self.squares - self.total**2 / self.count) / (self.count - 1)


def find_moments(column: Column, where: Condition | None) -> Generator[Reduction, Any, Moments]:
    fold = _fold_floats if column.kind is Kind.FLOAT else _fold_exact
    count, total, squares, up, down = yield Reduction((column,), where, fold, _add)
    infinite = None
    if up or down:
        infinite = math.nan if up and down else math.inf if up else -math.inf
    if column.kind is Kind.FLOAT:
        return Moments(count, Fraction(total, 2**SMALLEST), Fraction(squares, 2 ** (2 * SMALLEST)), infinite)
    return Moments(count, Fraction(total), Fraction(squares), infinite)


def square_root(value: Fraction) -> float:
    """Return the nearest float, or nearly so: the same everywhere."""
    return float(EXACT.sqrt(EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))))


def to_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


Sums = tuple[int, Any, Any, int, int]


def _add(a: Sums, b: Sums) -> Sums:
    total, squares = (EXACT.add(x, y) if isinstance(x, Decimal) else x + y for x, y in zip(a[1:3], b[1:3], strict=True))
    return a[0] + b[0], total, squares, a[3] + b[3], a[4] + b[4]


def _fold_exact(arrays: list[pa.Array], length: int) -> Sums:
    values = arrays[0].drop_null().to_pylist()
    if not pa.types.is_decimal(arrays[0].type):
        return len(values), sum(values), sum(value * value for value in values), 0, 0
    total = squares = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
        squares = EXACT.fma(value, value, squares)
    return len(values), total, squares, 0, 0


def _fold_floats(arrays: list[pa.Array], length: int) -> Sums:
    """Sums as integers: of values in 2**-SMALLEST, of squares in its square."""
    values = arrays[0].drop_null().to_numpy(zero_copy_only=False)
    up, down = int(numpy.isposinf(values).sum()), int(numpy.isneginf(values).sum())
    fractions, exponents = numpy.frexp(values[numpy.isfinite(values)])
    mantissas = (fractions * 2.0**53).astype(numpy.int64)
    total = squares = 0
    for exponent in numpy.unique(exponents):
        here = mantissas[exponents == exponent]
        shift = int(exponent) - 53 + SMALLEST
        total += _sum(here) << shift
        squares += _sum_of_squares(here) << (2 * shift)
    return len(values), total, squares, up, down


def _sum(values: Any) -> int:
    """The exact sum of integers below 2**62 in size."""
    high, low = values >> 31, values & (2**31 - 1)
    return (int(high.sum()) << 31) + int(low.sum())


def _sum_of_squares(values: Any) -> int:
    sizes = numpy.abs(values)
    high, low = sizes >> 27, sizes & (2**27 - 1)
    return (_sum(high * high) << 54) + (_sum(high * low) << 28) + _sum(low * low)


# ---- order statistics


def find_by_rank(
    column: Column, where: Condition | None, ranks_of: Callable[[int], Sequence[int]]
) -> Generator[Reduction, Any, list[Any]]:
    """Return the values at some ranks of the sorted column, without nulls.

    Args:
        ranks_of: from 0; of the number of values.
    """
    values = yield from _select(column, where, None, None, ranks_of)
    return values


def _select(
    column: Column, where: Condition | None, low: Any, high: Any, ranks_of: Callable[[int], Sequence[int]]
) -> Generator[Reduction, Any, list[Any]]:
    """As `find_by_rank`, of the values between `low` and `high`, both excluded."""
    fold = _Sample(low, high).fold
    count, is_whole, sample = yield Reduction((column,), where, fold, _merge_samples)
    ranks = ranks_of(count)
    if is_whole:
        return [sample[rank] for rank in ranks]
    pivots = sorted(set(sample))[:: max(1, len(set(sample)) // PIVOTS)]
    slots = yield Reduction((column,), where, _Slots(low, high, pivots).fold, _add_slots)
    values = []
    for rank in ranks:
        slot = 0
        while rank >= slots[slot]:
            rank -= slots[slot]
            slot += 1
        if slot % 2:
            values.append(pivots[slot // 2])
            continue
        after, before = [low, *pivots, high][slot // 2 : slot // 2 + 2]
        found = yield from _select(column, where, after, before, partial(_only, rank))
        values += found
    return values


def _only(rank: int, count: int) -> list[int]:
    return [rank]


Sample = tuple[int, bool, list[Any]]


@dataclass(frozen=True)
class _Sample:
    low: Any
    high: Any

    def fold(self, arrays: list[pa.Array], length: int) -> Sample:
        values = sorted(_between(arrays[0].drop_null().to_pylist(), self.low, self.high))
        return _thin((len(values), True, values))


def _between(values: list[Any], low: Any, high: Any) -> list[Any]:
    return [value for value in values if (low is None or value > low) and (high is None or value < high)]


def _thin(sample: Sample) -> Sample:
    count, _, values = sample
    if len(values) <= KEPT_VALUES:
        return sample
    return count, False, values[:: len(values) // PIVOTS]


def _merge_samples(a: Sample, b: Sample) -> Sample:
    return _thin((a[0] + b[0], a[1] and b[1], sorted(a[2] + b[2])))


@dataclass(frozen=True)
class _Slots:
    """How many values lie before the first pivot, on it, between it and the second one, on that, and so on."""

    low: Any
    high: Any
    pivots: list[Any]

    def fold(self, arrays: list[pa.Array], length: int) -> list[int]:
        slots = [0] * (2 * len(self.pivots) + 1)
        counted = pc.value_counts(arrays[0].drop_null())
        values, counts = (counted.field(number).to_pylist() for number in (0, 1))
        for value, count in zip(values, counts, strict=True):
            if _between([value], self.low, self.high):
                slots[bisect_left(self.pivots, value) + bisect_right(self.pivots, value)] += count
        return slots


def _add_slots(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]
