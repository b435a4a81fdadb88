"""Expectations on the table as a whole: its columns, their types, and how many rows there are."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from onceonly.counts import count
from onceonly.documentation import name_page
from onceonly.gate.arguments import Arguments
from onceonly.gate.columns import DECIMAL, KINDS, Column, Kind, Unjudgeable, show_literal
from onceonly.gate.reductions import ExpectationResult, Judgement, Reduction, figure_result
from onceonly.gate.row_rules import EVERY, Start

SQL_NAMES: Mapping[str, str] = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "real": "float",
    "varchar": "string",
    "char": "string",
    "numeric": "decimal",
    "timestampntz": "timestamp_ntz",
}
NESTED = ("array", "map", "struct", "decimal", "void", "variant")


def row_count(arguments: Arguments, is_exact: bool) -> Start:
    """Judge the number of rows."""
    condition = arguments.condition
    if is_exact:
        expected = arguments.number("value")
        holds: Callable[[Any], bool] = lambda rows: bool(rows == expected)  # noqa: E731
    else:
        holds = arguments.number_bounds().contains

    def judge() -> Judgement:
        rows = yield Reduction((), condition, lambda arrays, length: length, lambda a, b: a + b)
        return figure_result(holds(rows), rows)

    return judge


def column_count(arguments: Arguments, is_exact: bool) -> Start:
    """Judge the number of columns."""
    number = len(arguments.columns)
    if is_exact:
        return _start_without_rows(figure_result(number == arguments.number("value"), number))
    return _start_without_rows(figure_result(arguments.number_bounds().contains(number), number))


def column_exists(arguments: Arguments) -> Start:
    """Judge whether there is a column, which is checked before any row is staged, and where."""
    name, names = arguments.text("column"), list(arguments.columns)
    index = arguments.kwargs.get("column_index")
    if index is None:
        ok = name in names
    else:
        ok = isinstance(index, int) and name in names and names[index : index + 1] == [name]
    return _start_without_rows(ExpectationResult(ok, "there" if name in names else "missing"))


def column_names(arguments: Arguments, is_ordered: bool) -> Start:
    """Judge the names of the columns, with or without their order."""
    names = list(arguments.columns)
    expected = arguments.list("column_list" if is_ordered else "column_set")
    if is_ordered:
        ok = names == expected
    elif arguments.flag("exact_match", True):
        ok = set(names) == set(expected)
    else:
        ok = set(names) >= set(expected)
    return _start_without_rows(ExpectationResult(ok, count(len(names), "column"), {"observed_value": names}))


def column_type(arguments: Arguments, key: str) -> Start:
    """Judge the type of a column by Spark's names, such as LongType, bigint or decimal(10,2)."""
    column = arguments.column(EVERY)
    names = arguments.list(key) if key == "type_list" else [arguments.text(key)]
    ok = any(_has_type(column, _spark_type(name)) for name in names)
    return _start_without_rows(ExpectationResult(ok, column.spark_type, {"observed_value": column.spark_type}))


def _spark_type(name: Any) -> str:
    """Return Spark's name in JSON for any of its names. Raises Unjudgeable."""
    bare_name = re.sub(r"type\b|\s", "", str(name).lower().removesuffix("()"))
    base, bracket, parameters = bare_name.partition("(")
    base = SQL_NAMES.get(base, base)
    if bracket and base == "decimal":
        return f"{base}({parameters}"
    if base in KINDS or base in NESTED:
        return base
    raise Unjudgeable(
        f"it names the type {show_literal(name)}, and Spark has none of that name ({name_page('gate', 'suites')})"
    )


def _has_type(column: Column, name: str) -> bool:
    if name == "decimal" and DECIMAL.fullmatch(column.spark_type):
        return True
    if name == "string":
        return column.kind is Kind.TEXT
    return column.spark_type.replace(" ", "") == name


def _start_without_rows(result: ExpectationResult) -> Start:
    """Return a judgement that asks for no reduction, as its result is known from the columns alone."""

    def judge() -> Judgement:
        return result
        yield  # no row is needed

    return judge
