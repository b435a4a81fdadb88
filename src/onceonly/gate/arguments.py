"""The arguments of an expectation, as the values by which rows of given columns are judged."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from onceonly.gate.columns import NUMBERS, Column, Kind
from onceonly.gate.conditions import Condition, condition_of
from onceonly.gate.errors import Unjudgeable, WrongKind
from onceonly.gate.literals import literal, number, shown


@dataclass(frozen=True)
class Bounds:
    """A range of values; None: without end."""

    low: Any
    high: Any
    excludes_low: bool = False
    excludes_high: bool = False

    def hold(self, value: Any) -> bool:
        if self.low is not None and not (value > self.low if self.excludes_low else value >= self.low):
            return False
        return self.high is None or bool(value < self.high if self.excludes_high else value <= self.high)

    @property
    def are_open(self) -> bool:
        return self.low is None and self.high is None


@dataclass(frozen=True)
class Arguments:
    """The arguments of one expectation.

    Args:
        columns: those of the rows, by name.
    """

    kwargs: Mapping[str, Any]
    columns: Mapping[str, Column]

    @property
    def where(self) -> Condition | None:
        return condition_of(self.kwargs, self._named)

    def column(self, kinds: Collection[Kind], key: str = "column") -> Column:
        """Return the column that the expectation is about. Raises Unjudgeable for one of another kind."""
        return self._of_kind(self.text(key), kinds)

    def column_list(self, kinds: Collection[Kind]) -> tuple[Column, ...]:
        return tuple(self._of_kind(name, kinds) for name in self.list("column_list"))

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value, str):
            raise Unjudgeable(f"its {key} is {shown(value)}, not text")
        return value

    def list(self, key: str) -> list[Any]:
        value = self._required(key)
        if not isinstance(value, list | tuple):
            raise Unjudgeable(f"its {key} is {shown(value)}, not a list")
        return list(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.kwargs.get(key)
        if value is not None and not isinstance(value, bool):
            raise Unjudgeable(f"its {key} is {shown(value)}, not true or false")
        return default if value is None else value

    def choice(self, key: str, known: Collection[str], default: str) -> str:
        value = self.kwargs.get(key, default)
        if value not in known:
            raise Unjudgeable(f"its {key} is {shown(value)}; known are {', '.join(map(repr, known))}")
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
        return self._bounds(lambda value: literal(value, column))

    def number_bounds(self) -> Bounds:
        """Return the bounds of a figure, as fractions."""
        return self._bounds(lambda value: Fraction(number(value)))

    def values(self, column: Column, key: str = "value_set") -> frozenset[Any]:
        """Return a set of values of a column."""
        return frozenset(literal(_not_null(value), column) for value in self.list(key))

    def _bounds(self, read: Any) -> Bounds:
        low, high = (
            None if (value := self.kwargs.get(key)) is None else read(value) for key in ("min_value", "max_value")
        )
        if low is None and high is None:
            raise Unjudgeable("it has neither min_value nor max_value")
        return Bounds(low, high, self.flag("strict_min"), self.flag("strict_max"))

    def _required(self, key: str) -> Any:
        if self.kwargs.get(key) is None:
            raise Unjudgeable(f"it has no {key}")
        return self.kwargs[key]

    def _named(self, name: str) -> Column:
        if name not in self.columns:
            raise Unjudgeable(f"there is no column '{name}'")
        return self.columns[name]

    def _of_kind(self, name: str, kinds: Collection[Kind]) -> Column:
        column = self._named(name)
        if column.kind not in kinds:
            raise WrongKind(f"column '{name}' has {column.kind} ({column.spark_type}), and it judges {_listed(kinds)}")
        return column


def _not_null(value: Any) -> Any:
    if value is None:
        raise Unjudgeable("null is in its set of values, and rows with null are not compared: expect null by itself")
    return value


def _listed(kinds: Collection[Kind]) -> str:
    if set(kinds) >= set(NUMBERS) and len(kinds) == len(NUMBERS):
        return "numbers"
    return ", ".join(kinds)


def plain(value: Any) -> Any:
    """Return a suite's value without Decimals, as Great Expectations takes it."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
