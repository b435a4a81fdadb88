"""The condition of an expectation on the rows that it judges (`row_condition`).

Written as Great Expectations' condition objects, or as the text of one: `carrier == 'AA' and not delay < 0`,
`col("carrier").notNull()`. As in SQL, what is compared with null is unknown, and a row of which it is unknown whether
it meets the condition is not judged.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.columns import NUMBERS, Column, Kind, Unjudgeable, literal

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
QUOTED_COLUMN = re.compile(r"`([^`]+)`")
ColumnOf = Callable[[str], Column]


def apply_predicate(values: pa.Array, predicate: Callable[[Any], bool]) -> pa.Array:
    """Return for each value whether the predicate holds; null for null."""
    encoded = values.dictionary_encode()
    holds = list(map(predicate, encoded.dictionary.to_pylist()))
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
            is_member_expected = self.symbol == "in"
            return apply_predicate(arrays[self.column.name], lambda value: (value in self.value) == is_member_expected)
        compare = OPERATORS[self.symbol]
        return apply_predicate(arrays[self.column.name], lambda value: compare(value, self.value))


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
        results: list[bool | None] = []
        for left, right in zip(arrays[self.left.name].to_pylist(), arrays[self.right.name].to_pylist(), strict=True):
            if left is None or right is None:
                results.append(None)
            else:
                results.append(compare(left, right))
        return pa.array(results, pa.bool_())


@dataclass(frozen=True)
class Nullity:
    """Whether a column is null."""

    column: Column
    is_null: bool

    @property
    def columns(self) -> set[Column]:
        return {self.column}

    def select(self, arrays: Arrays) -> pa.Array:
        values = arrays[self.column.name]
        if self.is_null:
            return pc.is_null(values)
        return pc.is_valid(values)


@dataclass(frozen=True)
class Combination:
    """Conditions joined by "and", "or" or, for a single one, "not"."""

    joined_by: str
    parts: tuple[Condition, ...]

    @property
    def columns(self) -> set[Column]:
        columns: set[Column] = set()
        for part in self.parts:
            columns |= part.columns
        return columns

    def select(self, arrays: Arrays) -> pa.Array:
        first_part, *further_parts = self.parts
        selected = first_part.select(arrays)
        if self.joined_by == "not":
            return pc.invert(selected)
        join = pc.or_kleene
        if self.joined_by == "and":
            join = pc.and_kleene
        for part in further_parts:
            selected = join(selected, part.select(arrays))
        return selected


Condition = Comparison | ColumnComparison | Nullity | Combination


def condition_of(kwargs: Mapping[str, Any], column_of: ColumnOf) -> Condition | None:
    """Return the condition of an expectation's arguments.

    Raises:
        Unjudgeable: it is written in a way in which it has no meaning that is the same everywhere.
    """
    row_condition = kwargs.get("row_condition")
    if not row_condition:
        return None
    if isinstance(row_condition, Mapping):
        return _parse_object(row_condition, column_of)
    if not isinstance(row_condition, str):
        raise Unjudgeable(f"its row_condition is {row_condition!r}")
    return _parse_text(row_condition, column_of)


def list_columns(row_condition: Any) -> list[str]:
    """Return the columns that a `row_condition` names; none if it cannot be read."""
    try:
        condition = condition_of({"row_condition": row_condition}, lambda name: Column(name, ANY))
    except Unjudgeable:
        return []
    if condition is None:
        return []
    return sorted(column.name for column in condition.columns)


ANY = "any"  # a type whose values compare with every literal, where only the names of columns matter


def _literal_or_any(value: Any, column: Column) -> Any:
    """Return a value in the column's form, or as it is where the column's type does not matter."""
    if column.spark_type == ANY:
        return value
    return literal(value, column)


def _compare(column: Column, symbol: str, value: Any) -> Comparison:
    """Return the comparison of a column with a value of a suite. Raises Unjudgeable."""
    if symbol in ("in", "not in"):
        if not isinstance(value, list):
            raise Unjudgeable("its row_condition compares with something that is no list of values")
        return Comparison(column, symbol, tuple(_literal_or_any(item, column) for item in value))
    return Comparison(column, symbol, _literal_or_any(value, column))


# ---- condition objects


def _parse_object(condition_json: Mapping[str, Any], column_of: ColumnOf) -> Condition:
    """Parse a condition object of Great Expectations. Raises Unjudgeable."""
    kind = condition_json.get("type")
    try:
        if kind in ("and", "or"):
            return Combination(kind, tuple(_parse_object(part, column_of) for part in condition_json["conditions"]))
        if kind == "pass_through":
            return _parse_text(condition_json["pass_through_filter"], column_of)
        column_name = condition_json["column"]
        if isinstance(column_name, Mapping):
            column_name = column_name["name"]
        column = column_of(column_name)
        if kind == "nullity":
            return Nullity(column, bool(condition_json["is_null"]))
        symbol = str(condition_json["operator"]).lower().replace("_", " ")
        if kind == "comparison" and (symbol in OPERATORS or symbol in ("in", "not in")):
            return _compare(column, symbol, condition_json["parameter"])
    except (KeyError, TypeError, ValueError) as error:
        raise Unjudgeable(f"its row_condition lacks {error}") from error
    raise Unjudgeable(f"its row_condition has the type {kind!r}")


# ---- text


def _parse_text(text: str, column_of: ColumnOf) -> Condition:
    """Parse a condition that is written as in Python. Raises Unjudgeable."""
    expression = QUOTED_COLUMN.sub(lambda quoted: f"col({quoted[1]!r})", text)
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise Unjudgeable(
            f"its row_condition {text!r} cannot be read: write it as in Python (`a == 1 and b in ['x']`), or as a "
            "condition object of Great Expectations"
        ) from error
    return _TextParser(text, column_of).parse_condition(tree)


@dataclass(frozen=True)
class _TextParser:
    """Makes conditions of the syntax tree of a text. Its methods raise Unjudgeable."""

    text: str
    column_of: ColumnOf

    def parse_condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp(op=ast.And()):
                return self.combine("and", node.values)
            case ast.BoolOp(op=ast.Or()):
                return self.combine("or", node.values)
            case ast.BinOp(op=ast.BitAnd()):  # pandas' `&`
                return self.combine("and", [node.left, node.right])
            case ast.BinOp(op=ast.BitOr()):  # pandas' `|`
                return self.combine("or", [node.left, node.right])
            case ast.UnaryOp(op=ast.Not() | ast.Invert()):
                return Combination("not", (self.parse_condition(node.operand),))
            case ast.Call(func=ast.Attribute(attr=test), args=[]) if test in NULL_TESTS:
                assert isinstance(node.func, ast.Attribute)
                return Nullity(self.parse_column(node.func.value), NULL_TESTS[test])
            case ast.Compare():
                parts = tuple(self.parse_comparisons(node))
                if len(parts) == 1:
                    return parts[0]
                return Combination("and", parts)
        raise self._condition_error()

    def combine(self, joined_by: str, operands: Sequence[ast.expr]) -> Combination:
        return Combination(joined_by, tuple(map(self.parse_condition, operands)))

    def parse_comparisons(self, node: ast.Compare) -> Iterator[Condition]:
        """Yield the comparisons of a chain: `1 < a < b` has two."""
        operands = [node.left, *node.comparators]
        for left, kind, right in zip(operands, node.ops, operands[1:], strict=False):
            symbol = SYMBOLS.get(type(kind))
            if symbol is None:
                raise self._condition_error()
            yield self.parse_comparison(left, symbol, right)

    def parse_comparison(self, left: ast.expr, symbol: str, right: ast.expr) -> Condition:
        """Return the comparison of two operands, of which at least one is a column, with the column first."""
        if not _is_column(left):
            mirrored = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(symbol, symbol)
            if symbol in ("in", "not in") or not _is_column(right):
                raise self._condition_error()
            left, symbol, right = right, mirrored, left
        column = self.parse_column(left)
        if not _is_column(right):
            return _compare(column, symbol, self.parse_value(right))
        other = self.parse_column(right)
        if symbol not in OPERATORS or not _can_be_compared(column, other):
            raise Unjudgeable(f"its row_condition compares columns '{column.name}' and '{other.name}'")
        return ColumnComparison(column, symbol, other)

    def parse_column(self, node: ast.expr) -> Column:
        if isinstance(node, ast.Name):
            return self.column_of(node.id)
        if _is_column(node) and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
            return self.column_of(str(node.args[0].value))
        raise self._condition_error()

    def parse_value(self, node: ast.expr) -> Any:
        """Return the value of a literal, a float as the decimal that is written."""
        match node:
            case ast.Constant(value=float()):
                return Decimal(repr(node.value))
            case ast.Constant(value=str() | bool() | int()):
                return node.value
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as positive)):
                return -positive
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float() as positive)):
                return -Decimal(repr(positive))
            case ast.List() | ast.Tuple() | ast.Set():
                return list(map(self.parse_value, node.elts))
        raise self._condition_error()

    def _condition_error(self) -> Unjudgeable:
        return Unjudgeable(
            f"its row_condition {self.text!r} is more than comparisons, 'and', 'or', 'not' and tests for null"
        )


def _is_column(node: ast.expr) -> bool:
    """Return whether a node is the name of a column, or `col(…)`."""
    if isinstance(node, ast.Name):
        return True
    if not isinstance(node, ast.Call) or len(node.args) != 1:
        return False
    return isinstance(node.func, ast.Name) and node.func.id == "col"


def _can_be_compared(left: Column, right: Column) -> bool:
    if ANY in (left.spark_type, right.spark_type):
        return True
    return are_comparable(left, right)


def are_comparable(left: Column, right: Column) -> bool:
    """Return whether values of both columns can be compared with each other."""
    kinds = {left.kind, right.kind}
    return kinds <= set(NUMBERS) or (len(kinds) == 1 and Kind.OPAQUE not in kinds)
