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

from onceonly.gate.columns import Column, Kind, signed_infinity
from onceonly.gate.conditions import Condition
from onceonly.gate.reductions import Reduction

EXACT = Context(prec=400)  # digits; a sum of squares of decimals has less than 100
FLOAT_SCALE_BITS = 1_126  # 2**-1126 divides every product of a double's 53-bit mantissa with a power of two
MAX_SAMPLE_VALUES = 20_000  # of which order statistics are taken at once
MAX_PIVOTS = 1_000


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
        if self.infinite is not None:
            return self.infinite
        return self.total / self.count

    @property
    def variance(self) -> Fraction | None:
        """The variance of a sample; None for less than two values, or if one is infinite."""
        if self.count < 2 or self.infinite is not None:
            return None
        return (self.squares - self.total**2 / self.count) / (self.count - 1)


def find_moments(column: Column, condition: Condition | None) -> Generator[Reduction, Any, Moments]:
    """Return the moments of a column of numbers, in one pass."""
    fold_part = _sum_floats if column.kind is Kind.FLOAT else _sum_exactly
    count, total, squares, plus_infinities, minus_infinities = yield Reduction(
        (column,), condition, fold_part, _add_sums
    )
    infinite = None
    if plus_infinities and minus_infinities:
        infinite = math.nan
    elif plus_infinities:
        infinite = math.inf
    elif minus_infinities:
        infinite = -math.inf
    if column.kind is Kind.FLOAT:
        scale = 2**FLOAT_SCALE_BITS
        return Moments(count, Fraction(total, scale), Fraction(squares, scale**2), infinite)
    return Moments(count, Fraction(total), Fraction(squares), infinite)


def square_root(value: Fraction) -> float:
    """Return the nearest float, or nearly so: the same everywhere."""
    return float(EXACT.sqrt(EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))))


def to_float(value: Fraction) -> float:
    """Return the nearest float, infinite where there is none so large."""
    try:
        return float(value)
    except OverflowError:
        return signed_infinity(value)


Sums = tuple[
    int, Any, Any, int, int
]  # values, their sum, that of their squares; how often infinity, and minus infinity


def _add_sums(a: Sums, b: Sums) -> Sums:
    total, squares = _add_exactly(a[1], b[1]), _add_exactly(a[2], b[2])
    return a[0] + b[0], total, squares, a[3] + b[3], a[4] + b[4]


def _add_exactly(x: Any, y: Any) -> Any:
    if isinstance(x, Decimal):
        return EXACT.add(x, y)
    return x + y


def _sum_exactly(arrays: list[pa.Array], length: int) -> Sums:
    values = arrays[0].drop_null().to_pylist()
    if not pa.types.is_decimal(arrays[0].type):
        return len(values), sum(values), sum(value * value for value in values), 0, 0
    total = squares = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
        squares = EXACT.fma(value, value, squares)
    return len(values), total, squares, 0, 0


def _sum_floats(arrays: list[pa.Array], length: int) -> Sums:
    """Return the sums as integers: of values in units of 2**-FLOAT_SCALE_BITS, of squares in the square of that."""
    values = arrays[0].drop_null().to_numpy(zero_copy_only=False)
    plus_infinities, minus_infinities = int(numpy.isposinf(values).sum()), int(numpy.isneginf(values).sum())
    fractions, exponents = numpy.frexp(values[numpy.isfinite(values)])
    mantissas = (fractions * 2.0**53).astype(numpy.int64)
    total = squares = 0
    for exponent in numpy.unique(exponents):
        group = mantissas[exponents == exponent]
        shift = int(exponent) - 53 + FLOAT_SCALE_BITS
        total += _sum_integers(group) << shift
        squares += _sum_of_squares(group) << (2 * shift)
    return len(values), total, squares, plus_infinities, minus_infinities


def _sum_integers(values: Any) -> int:
    """Return the exact sum of integers below 2**62 in size. In halves, no sum overflows 64 bits."""
    high, low = values >> 31, values & (2**31 - 1)
    return (int(high.sum()) << 31) + int(low.sum())


def _sum_of_squares(values: Any) -> int:
    """Return the exact sum of squares of integers of 53 bits. In halves, no product overflows 64 bits."""
    sizes = numpy.abs(values)
    high, low = sizes >> 27, sizes & (2**27 - 1)
    return (_sum_integers(high * high) << 54) + (_sum_integers(high * low) << 28) + _sum_integers(low * low)


# ---- order statistics


def find_by_rank(
    column: Column, condition: Condition | None, ranks_of: Callable[[int], Sequence[int]]
) -> Generator[Reduction, Any, list[Any]]:
    """Return the values at some ranks of the sorted column, without nulls.

    Args:
        ranks_of: from 0; of the number of values.
    """
    values = yield from _select(column, condition, None, None, ranks_of)
    return values


def _select(
    column: Column, condition: Condition | None, low: Any, high: Any, ranks_of: Callable[[int], Sequence[int]]
) -> Generator[Reduction, Any, list[Any]]:
    """Return the values at some ranks of those between `low` and `high`, both excluded; None: no bound.

    A first pass samples the values, or gets all if they are few. A second one counts how many lie between and on the
    values of the sample, the pivots. A rank on a pivot is found then, and any other one by the same on its slot.
    """
    fold_part = _SampleFold(low, high).fold_part
    count, is_whole, sample = yield Reduction((column,), condition, fold_part, _merge_samples)
    ranks = ranks_of(count)
    if is_whole:
        return [sample[rank] for rank in ranks]
    distinct = sorted(set(sample))
    pivots = distinct[:: max(1, len(distinct) // MAX_PIVOTS)]
    slots = yield Reduction((column,), condition, _SlotFold(low, high, pivots).fold_part, _add_slots)
    values = []
    for rank in ranks:
        slot = 0
        while rank >= slots[slot]:
            rank -= slots[slot]
            slot += 1
        if slot % 2:
            values.append(pivots[slot // 2])
            continue
        above, below = [low, *pivots, high][slot // 2 : slot // 2 + 2]
        value = yield from _select(column, condition, above, below, partial(_ranks_of_one, rank))
        values += value
    return values


def _ranks_of_one(rank: int, count: int) -> list[int]:
    return [rank]


Sample = tuple[int, bool, list[Any]]  # how many values there are, whether these are all of them, and these, sorted


@dataclass(frozen=True)
class _SampleFold:
    low: Any
    high: Any

    def fold_part(self, arrays: list[pa.Array], length: int) -> Sample:
        values = sorted(_keep_between(arrays[0].drop_null().to_pylist(), self.low, self.high))
        return _thin((len(values), True, values))


def _keep_between(values: list[Any], low: Any, high: Any) -> list[Any]:
    if low is not None:
        values = [value for value in values if value > low]
    if high is not None:
        values = [value for value in values if value < high]
    return values


def _thin(sample: Sample) -> Sample:
    """Keep about MAX_PIVOTS of the values, if they are too many."""
    count, _, values = sample
    if len(values) <= MAX_SAMPLE_VALUES:
        return sample
    return count, False, values[:: len(values) // MAX_PIVOTS]


def _merge_samples(a: Sample, b: Sample) -> Sample:
    return _thin((a[0] + b[0], a[1] and b[1], sorted(a[2] + b[2])))


@dataclass(frozen=True)
class _SlotFold:
    """Counts the values before the first pivot, on it, between it and the second one, on that, and so on."""

    low: Any
    high: Any
    pivots: list[Any]

    def fold_part(self, arrays: list[pa.Array], length: int) -> list[int]:
        slots = [0] * (2 * len(self.pivots) + 1)
        pairs = pc.value_counts(arrays[0].drop_null())
        values, counts = pairs.field(0).to_pylist(), pairs.field(1).to_pylist()
        for value, count in zip(values, counts, strict=True):
            if _keep_between([value], self.low, self.high):
                slots[bisect_left(self.pivots, value) + bisect_right(self.pivots, value)] += count
        return slots


def _add_slots(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip(a, b, strict=True)]
