"""The arguments of an expectation, as the values by which rows of given columns are judged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from onceonly.gate.columns import NUMBERS, Column, Kind, Unjudgeable, WrongKind, literal, number, show_literal
from onceonly.gate.conditions import Condition, condition_of


@dataclass(frozen=True)
class Bounds:
    """A range of values. None: it has no end on that side."""

    low: Any
    high: Any
    excludes_low: bool = False
    excludes_high: bool = False

    def contains(self, value: Any) -> bool:
        return self._is_above_low(value) and self._is_below_high(value)

    def _is_above_low(self, value: Any) -> bool:
        if self.low is None:
            return True
        if self.excludes_low:
            return bool(value > self.low)
        return bool(value >= self.low)

    def _is_below_high(self, value: Any) -> bool:
        if self.high is None:
            return True
        if self.excludes_high:
            return bool(value < self.high)
        return bool(value <= self.high)


@dataclass(frozen=True)
class Arguments:
    """The arguments of one expectation.

    Args:
        columns: those of the rows, by name.
    """

    kwargs: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def condition(self) -> Condition | None:
        return condition_of(self.kwargs, self._get_column)

    def column(self, kinds: Collection[Kind], key: str = "column") -> Column:
        """Return the column that the expectation is about. Raises Unjudgeable for one of another kind."""
        return self._require_kind(self.text(key), kinds)

    def column_list(self, kinds: Collection[Kind]) -> tuple[Column, ...]:
        return tuple(self._require_kind(name, kinds) for name in self.list("column_list"))

    def text(self, key: str) -> str:
        value = self._require(key)
        if not isinstance(value, str):
            raise Unjudgeable(f"its {key} is {show_literal(value)}, not text")
        return value

    def list(self, key: str) -> list[Any]:
        value = self._require(key)
        if not isinstance(value, list | tuple):
            raise Unjudgeable(f"its {key} is {show_literal(value)}, not a list")
        return list(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.kwargs.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Unjudgeable(f"its {key} is {show_literal(value)}, not true or false")
        return value

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        value = self.kwargs.get(key, default)
        if value not in choices:
            raise Unjudgeable(f"its {key} is {show_literal(value)}; known are {', '.join(map(repr, choices))}")
        return str(value)

    def number(self, key: str, default: int | None = None) -> Fraction:
        value = self.kwargs.get(key, default)
        if value is None:
            raise Unjudgeable(f"it has no {key}")
        return Fraction(number(value))

    @property
    def mostly(self) -> Fraction:
        return self.number("mostly", 1)

    def bounds(self, column: Column) -> Bounds:
        """Return the bounds of values of a column."""
        return self._read_bounds(lambda value: literal(value, column))

    def number_bounds(self) -> Bounds:
        """Return the bounds of a figure, as fractions."""
        return self._read_bounds(lambda value: Fraction(number(value)))

    def values(self, column: Column, key: str = "value_set") -> frozenset[Any]:
        """Return a set of values of a column."""
        return frozenset(literal(_require_value(value), column) for value in self.list(key))

    def _read_bounds(self, read: Callable[[Any], Any]) -> Bounds:
        low, high = self._read_bound("min_value", read), self._read_bound("max_value", read)
        if low is None and high is None:
            raise Unjudgeable("it has neither min_value nor max_value")
        return Bounds(low, high, self.flag("strict_min"), self.flag("strict_max"))

    def _read_bound(self, key: str, read: Callable[[Any], Any]) -> Any:
        value = self.kwargs.get(key)
        if value is None:
            return None
        return read(value)

    def _require(self, key: str) -> Any:
        if self.kwargs.get(key) is None:
            raise Unjudgeable(f"it has no {key}")
        return self.kwargs[key]

    def _get_column(self, name: str) -> Column:
        if name not in self.columns:
            raise Unjudgeable(f"there is no column '{name}'")
        return self.columns[name]

    def _require_kind(self, name: str, kinds: Collection[Kind]) -> Column:
        column = self._get_column(name)
        if column.kind not in kinds:
            expected = _describe_kinds(kinds)
            raise WrongKind(f"column '{name}' has {column.kind} ({column.spark_type}), and it judges {expected}")
        return column


def _require_value(value: Any) -> Any:
    """Return the value. Raises Unjudgeable for null."""
    if value is None:
        raise Unjudgeable("null is in its set of values, and rows with null are not compared: expect null by itself")
    return value


def _describe_kinds(kinds: Collection[Kind]) -> str:
    if set(kinds) >= set(NUMBERS) and len(kinds) == len(NUMBERS):
        return "numbers"
    return ", ".join(kinds)


def replace_decimals(value: Any) -> Any:
    """Return a suite's value with floats in place of Decimals, as Great Expectations takes it."""
    return convert_items(value, _decimal_to_float)


def _decimal_to_float(item: Any) -> Any:
    if isinstance(item, Decimal):
        return float(item)
    return item


def convert_items(value: Any, convert: Callable[[Any], Any]) -> Any:
    """Return a value of JSON with everything converted that is neither an object nor a list, at any depth."""
    if isinstance(value, Mapping):
        return {key: convert_items(item, convert) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [convert_items(item, convert) for item in value]
    return convert(value)
