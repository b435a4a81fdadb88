"""The condition of an expectation on the rows that it judges (`row_condition`).

Written as Great Expectations' condition objects, or as the text of one: `carrier == 'AA' and not delay < 0`,
`col("carrier").notNull()`. As in SQL, what is compared with null is unknown, and a row of which it is unknown whether
it meets the condition is not judged.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.columns import NUMBERS, Column, Kind
from onceonly.gate.errors import Unjudgeable
from onceonly.gate.literals import literal

Arrays = Mapping[str, pa.Array]  # normalized values by column
OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
SYMBOLS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "in",
    ast.NotIn: "not in",
}
NULL_TESTS = {"notNull": False, "notnull": False, "isNotNull": False, "isNull": True, "isnull": True, "isna": True}
QUOTED = re.compile(r"`([^`]+)`")
ColumnOf = Callable[[str], Column]


def matching(values: pa.Array, predicate: Callable[[Any], bool]) -> pa.Array:
    """Return for each value whether the predicate holds; null for null."""
    encoded = values.dictionary_encode()
    holds = [predicate(value) for value in encoded.dictionary.to_pylist()]
    return pa.array(holds, pa.bool_()).take(encoded.indices)


@dataclass(frozen=True)
class Comparison:
    """A column compared with a value, or with each of several."""

    column: Column
    symbol: str
    value: Any

    @property
    def columns(self) -> set[Column]:
        return {self.column}

    def select(self, arrays: Arrays) -> pa.Array:
        if self.symbol in ("in", "not in"):
            chosen = self.symbol == "in"
            return matching(arrays[self.column.name], lambda value: (value in self.value) == chosen)
        compare = OPERATORS[self.symbol]
        return matching(arrays[self.column.name], lambda value: compare(value, self.value))


@dataclass(frozen=True)
class ColumnComparison:
    """A column compared with another column."""

    left: Column
    symbol: str
    right: Column

    @property
    def columns(self) -> set[Column]:
        return {self.left, self.right}

    def select(self, arrays: Arrays) -> pa.Array:
        compare = OPERATORS[self.symbol]
        pairs = zip(arrays[self.left.name].to_pylist(), arrays[self.right.name].to_pylist(), strict=True)
        return pa.array([None if a is None or b is None else compare(a, b) for a, b in pairs], pa.bool_())


@dataclass(frozen=True)
class Nullity:
    """Whether a column is null."""

    column: Column
    is_null: bool

    @property
    def columns(self) -> set[Column]:
        return {self.column}

    def select(self, arrays: Arrays) -> pa.Array:
        return pc.is_null(arrays[self.column.name]) if self.is_null else pc.is_valid(arrays[self.column.name])


@dataclass(frozen=True)
class Combination:
    """Conditions joined by "and", "or" or, for a single one, "not"."""

    joined_by: str
    parts: tuple[Condition, ...]

    @property
    def columns(self) -> set[Column]:
        return set[Column]().union(*(part.columns for part in self.parts))

    def select(self, arrays: Arrays) -> pa.Array:
        first, *others = (part.select(arrays) for part in self.parts)
        if self.joined_by == "not":
            return pc.invert(first)
        join = pc.and_kleene if self.joined_by == "and" else pc.or_kleene
        for other in others:
            first = join(first, other)
        return first


Condition = Comparison | ColumnComparison | Nullity | Combination


def condition_of(kwargs: Mapping[str, Any], column_of: ColumnOf) -> Condition | None:
    """Return the condition of an expectation's arguments.

    Raises:
        Unjudgeable: it is written in a way in which it has no meaning that is the same everywhere.
    """
    given = kwargs.get("row_condition")
    if not given:
        return None
    if isinstance(given, Mapping):
        return _from_object(given, column_of)
    if not isinstance(given, str):
        raise Unjudgeable(f"its row_condition is {given!r}")
    return _from_text(given, column_of)


def columns_named_in(given: Any) -> list[str]:
    """Return the columns that a `row_condition` names; none if it cannot be read."""
    try:
        condition = condition_of({"row_condition": given}, lambda name: Column(name, ANY))
    except Unjudgeable:
        return []
    return sorted(column.name for column in condition.columns) if condition else []


ANY = "any"  # a type whose values compare with every literal, where only the names of columns matter


def _literal(value: Any, column: Column) -> Any:
    return value if column.spark_type == ANY else literal(value, column)


def _compare(column: Column, symbol: str, value: Any) -> Comparison:
    if symbol in ("in", "not in"):
        if not isinstance(value, list):
            raise Unjudgeable("its row_condition compares with something that is no list of values")
        return Comparison(column, symbol, tuple(_literal(item, column) for item in value))
    return Comparison(column, symbol, _literal(value, column))


# ---- condition objects


def _from_object(given: Mapping[str, Any], column_of: ColumnOf) -> Condition:
    kind = given.get("type")
    try:
        if kind in ("and", "or"):
            return Combination(kind, tuple(_from_object(part, column_of) for part in given["conditions"]))
        if kind == "pass_through":
            return _from_text(given["pass_through_filter"], column_of)
        column = column_of(given["column"]["name"] if isinstance(given["column"], Mapping) else given["column"])
        if kind == "nullity":
            return Nullity(column, bool(given["is_null"]))
        symbol = str(given["operator"]).lower().replace("_", " ")
        if kind == "comparison" and (symbol in OPERATORS or symbol in ("in", "not in")):
            return _compare(column, symbol, given["parameter"])
    except (KeyError, TypeError, ValueError) as error:
        raise Unjudgeable(f"its row_condition lacks {error}") from error
    raise Unjudgeable(f"its row_condition has the type {kind!r}")


# ---- text


def _from_text(text: str, column_of: ColumnOf) -> Condition:
    expression = QUOTED.sub(lambda quoted: f"col({quoted[1]!r})", text)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise Unjudgeable(
            f"its row_condition {text!r} cannot be read: write it as in Python (`a == 1 and b in ['x']`), or as a "
            "condition object of Great Expectations"
        ) from error
    return _Text(text, column_of).condition(tree)


@dataclass(frozen=True)
class _Text:
    text: str
    column_of: ColumnOf

    def condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp():
                joined_by = "and" if isinstance(node.op, ast.And) else "or"
                return Combination(joined_by, tuple(map(self.condition, node.values)))
            case ast.BinOp(op=ast.BitAnd() | ast.BitOr()):  # pandas' `&` and `|`
                joined_by = "and" if isinstance(node.op, ast.BitAnd) else "or"
                return Combination(joined_by, (self.condition(node.left), self.condition(node.right)))
            case ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return Combination("not", (self.condition(node.operand),))
            case ast.Call(func=ast.Attribute(attr=test), args=[]) if test in NULL_TESTS:
                assert isinstance(node.func, ast.Attribute)
                return Nullity(self.column(node.func.value), NULL_TESTS[test])
            case ast.Compare():
                parts = tuple(self.comparisons(node))
                return parts[0] if len(parts) == 1 else Combination("and", parts)
        raise self.unreadable()

    def comparisons(self, node: ast.Compare) -> Iterator[Condition]:
        operands = [node.left, *node.comparators]
        for left, kind, right in zip(operands, node.ops, operands[1:], strict=False):
            symbol = SYMBOLS.get(type(kind))
            if symbol is None:
                raise self.unreadable()
            yield self.comparison(left, symbol, right)

    def comparison(self, left: ast.expr, symbol: str, right: ast.expr) -> Condition:
        if not _is_column(left):
            mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(symbol, symbol)
            if symbol in ("in", "not in") or not _is_column(right):
                raise self.unreadable()
            left, symbol, right = right, mirrored, left
        column = self.column(left)
        if not _is_column(right):
            return _compare(column, symbol, self.value(right))
        other = self.column(right)
        if symbol not in OPERATORS or not _are_comparable(column, other):
            raise Unjudgeable(f"its row_condition compares columns '{column.name}' and '{other.name}'")
        return ColumnComparison(column, symbol, other)

    def column(self, node: ast.expr) -> Column:
        if isinstance(node, ast.Name):
            return self.column_of(node.id)
        if _is_column(node) and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
            return self.column_of(str(node.args[0].value))
        raise self.unreadable()

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=float()):
                return Decimal(repr(node.value))
            case ast.Constant(value=str() | bool() | int()):
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as positive)):
                return -positive if isinstance(positive, int) else -Decimal(repr(positive))
            case ast.List() | ast.Tuple() | ast.Set():
                return [self.value(item) for item in node.elts]
        raise self.unreadable()

    def unreadable(self) -> Unjudgeable:
        return Unjudgeable(
            f"its row_condition {self.text!r} is more than comparisons, 'and', 'or', 'not' and tests for null"
        )


def _is_column(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col"
    return isinstance(node, ast.Name) or (is_call and isinstance(node, ast.Call) and len(node.args) == 1)


def _are_comparable(left: Column, right: Column) -> bool:
    if ANY in (left.spark_type, right.spark_type):
        return True
    return comparable(left, right)


def comparable(left: Column, right: Column) -> bool:
    """Return whether values of both columns can be compared with each other."""
    both = {left.kind, right.kind}
    return both <= set(NUMBERS) or (len(both) == 1 and Kind.OPAQUE not in both)
