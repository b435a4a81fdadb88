"""Expectations on each row: how many rows do not meet them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.arguments import Arguments
from onceonly.gate.columns import COMPARABLE, NUMBERS, TIMES, Column, Kind
from onceonly.gate.conditions import comparable
from onceonly.gate.errors import Unjudgeable, WrongKind
from onceonly.gate.literals import literal, number
from onceonly.gate.reductions import Judgement, Reduction
from onceonly.gate.results import Tally, chosen
from onceonly.json_values.text import parser

Predicate = Callable[[Any], bool]
Start = Callable[[], Judgement]
TEXT = (Kind.TEXT,)
EVERY = tuple(Kind)


# ---- one column


def values_rule(arguments: Arguments, column: Column, predicate: Predicate) -> Start:
    """Judge each value of a column that is not null."""
    where, mostly = arguments.where, arguments.mostly

    def judge() -> Judgement:
        tally = yield Reduction((column,), where, partial(_tally_values, column, predicate), Tally.plus)
        return tally.judged(mostly)

    return judge


def _tally_values(column: Column, predicate: Predicate, arrays: list[pa.Array], length: int) -> Tally:
    samples: Counter[str] = Counter()
    unexpected = 0
    for value, times in counted(arrays[0]):
        if not predicate(value):
            unexpected += times
            samples[column.show(value)] += times
    return Tally(length, arrays[0].null_count, unexpected, chosen(samples))


def counted(values: pa.Array) -> Iterable[tuple[Any, int]]:
    """Return the distinct values that are not null, and how often each occurs."""
    pairs = pc.value_counts(values.drop_null())
    return zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)


def null(arguments: Arguments, expected: bool) -> Start:
    """Judge whether each value is null, or is not."""
    column, where, mostly = arguments.column(EVERY), arguments.where, arguments.mostly

    def fold(arrays: list[pa.Array], length: int) -> Tally:
        missing = arrays[0].null_count
        if not expected:
            return Tally(length, 0, missing)
        there = Counter({column.show(value): times for value, times in counted(arrays[0])})
        return Tally(length, 0, length - missing, chosen(there))

    def judge() -> Judgement:
        tally = yield Reduction((column,), where, fold, Tally.plus)
        return tally.judged(mostly)

    return judge


def between(arguments: Arguments) -> Start:
    column = arguments.column((*NUMBERS, *TIMES))
    return values_rule(arguments, column, arguments.bounds(column).hold)


def in_set(arguments: Arguments, expected: bool) -> Start:
    column = arguments.column(COMPARABLE)
    values = arguments.values(column)
    return values_rule(arguments, column, lambda value: (value in values) == expected)


def length_between(arguments: Arguments) -> Start:
    bounds = arguments.number_bounds()
    return values_rule(arguments, arguments.column(TEXT), lambda text: bounds.hold(len(text)))


def length_equal(arguments: Arguments) -> Start:
    length = arguments.number("value")
    return values_rule(arguments, arguments.column(TEXT), lambda text: len(text) == length)


def unique(arguments: Arguments) -> Start:
    """Judge whether each value of a column occurs once."""
    column, where, mostly = arguments.column(COMPARABLE), arguments.where, arguments.mostly

    def fold(arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        rows = missing = unexpected = 0
        for value, times in zip(*(array.to_pylist() for array in arrays), strict=True):
            rows += times
            if value is None:
                missing += times
            elif times > 1:
                unexpected += times
                samples[column.show(value)] += times
                samples = Counter(dict(chosen(samples)))
        return Tally(rows, missing, unexpected, tuple(sorted(samples.items())))

    def judge() -> Judgement:
        tally = yield Reduction((column,), where, fold, Tally.plus, by_value=True)
        return tally.judged(mostly)

    return judge


# ---- text


def regex(arguments: Arguments, expected: bool) -> Start:
    pattern = _compiled(arguments.kwargs.get("regex") or "(?s).*" if expected else arguments.text("regex"))
    return values_rule(arguments, arguments.column(TEXT), lambda text: (pattern.search(text) is not None) == expected)


def regexes(arguments: Arguments, expected: bool) -> Start:
    patterns = [_compiled(pattern) for pattern in arguments.list("regex_list")]
    return _patterns(arguments, [pattern.search for pattern in patterns], expected)


def like(arguments: Arguments, expected: bool) -> Start:
    pattern = _like(arguments, arguments.text("like_pattern"))
    column = arguments.column(TEXT)
    return values_rule(arguments, column, lambda text: (pattern.fullmatch(text) is not None) == expected)


def likes(arguments: Arguments, expected: bool) -> Start:
    patterns = [_like(arguments, pattern) for pattern in arguments.list("like_pattern_list")]
    return _patterns(arguments, [pattern.fullmatch for pattern in patterns], expected)


def _patterns(arguments: Arguments, matches: Sequence[Callable[[str], Any]], expected: bool) -> Start:
    """Judge by several patterns: any of them or all have to match; or, if no match is expected, none may."""
    decide = all if expected and arguments.choice("match_on", ("any", "all"), "any") == "all" else any
    column = arguments.column(TEXT)
    return values_rule(arguments, column, lambda text: decide(bool(match(text)) for match in matches) == expected)


def _compiled(pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise Unjudgeable(f"its pattern {pattern!r} is no regular expression of Python: {error}") from error


def _like(arguments: Arguments, pattern: Any) -> re.Pattern[str]:
    """Return a pattern of SQL's LIKE as a regular expression."""
    escape, parts, characters = arguments.kwargs.get("escape"), [], iter(str(pattern))
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, "")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)


def strftime(arguments: Arguments) -> Start:
    form = arguments.text("strftime_format")
    try:
        datetime.strptime(datetime.now(UTC).strftime(form), form)
    except ValueError as error:
        raise Unjudgeable(f"its strftime_format {form!r} cannot be read back: {error}") from error
    return values_rule(
        arguments, arguments.column(TEXT), _without(ValueError, lambda text: datetime.strptime(text, form))
    )


def json_parseable(arguments: Arguments) -> Start:
    return values_rule(arguments, arguments.column(TEXT), _without((ValueError, RecursionError), json.loads))


class _FollowsSchema:
    """Whether a text follows a JSON Schema, in exact arithmetic: 19.99 is a multiple of 0.01.

    Raises:
        ValueError, ReferencingError: that is no JSON Schema, or it refers to what is not in it.
    """

    def __init__(self, schema: Any) -> None:
        from jsonschema_rs import validator_for

        self._schema, self._parse = schema, parser()
        self._validator = validator_for(schema, validate_formats=False, offline=True)

    def __reduce__(self) -> tuple[type[_FollowsSchema], tuple[Any]]:
        """Each of Spark's workers compiles it for itself."""
        return type(self), (self._schema,)

    def __call__(self, text: str) -> bool:
        try:
            return bool(self._validator.is_valid(self._parse(text.encode())))
        except ValueError:  # it is not JSON, or not Unicode
            return False


def json_schema(arguments: Arguments) -> Start:
    from jsonschema_rs import ReferencingError

    try:
        follows = _FollowsSchema(_exact(arguments.kwargs.get("json_schema")))
    except (ValueError, ReferencingError) as error:
        raise Unjudgeable(f"its json_schema is not one: {str(error).partition(chr(10))[0]}") from error
    return values_rule(arguments, arguments.column(TEXT), follows)


def _exact(value: Any) -> Any:
    """Return a value of a suite with each float as it is written."""
    if isinstance(value, dict):
        return {name: _exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    return number(value) if isinstance(value, float) else value


def dateutil_parseable(arguments: Arguments) -> Start:
    from dateutil import parser

    default = datetime(2000, 1, 1)  # for parts that the text does not have: no verdict depends on the day of the check
    return values_rule(
        arguments,
        arguments.column(TEXT),
        _without((ValueError, OverflowError, TypeError), lambda text: parser.parse(text, default=default)),
    )


def _without(errors: type[Exception] | tuple[type[Exception], ...], read: Callable[[str], Any]) -> Predicate:
    """Return whether a text can be read."""

    def can_read(text: str) -> bool:
        try:
            read(text)
        except errors:
            return False
        return True

    return can_read


# ---- several columns


@dataclass(frozen=True)
class _RowsOfColumns:
    """Judge each row by the values of several columns, of which any may be null."""

    columns: tuple[Column, ...]
    is_left_out: Callable[[Sequence[Any]], bool]
    predicate: Callable[[Sequence[Any]], bool]

    def fold(self, arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        missing = unexpected = 0
        for row in zip(*(array.to_pylist() for array in arrays), strict=True):
            if self.is_left_out(row):
                missing += 1
            elif not self.predicate(row):
                unexpected += 1
                samples[show_row(self.columns, row)] += 1
                if len(samples) > 1_000:
                    samples = Counter(dict(chosen(samples)))
        return Tally(length, missing, unexpected, chosen(samples))


def show_row(columns: Sequence[Column], row: Sequence[Any]) -> str:
    shown = ("null" if value is None else column.show(value) for column, value in zip(columns, row, strict=True))
    return f"({', '.join(shown)})"


LEFT_OUT: dict[str, Callable[[Sequence[Any]], bool]] = {
    "both_values_are_missing": lambda row: all(value is None for value in row),
    "all_values_are_missing": lambda row: all(value is None for value in row),
    "either_value_is_missing": lambda row: any(value is None for value in row),
    "any_value_is_missing": lambda row: any(value is None for value in row),
    "neither": lambda row: False,
    "never": lambda row: False,
}
OF_PAIRS = ("both_values_are_missing", "either_value_is_missing", "neither")
OF_LISTS = ("all_values_are_missing", "any_value_is_missing", "never")


def _rows_rule(
    arguments: Arguments, columns: tuple[Column, ...], known: Sequence[str], predicate: Callable[[Sequence[Any]], bool]
) -> Start:
    where, mostly = arguments.where, arguments.mostly
    rule = _RowsOfColumns(columns, LEFT_OUT[arguments.choice("ignore_row_if", known, known[0])], predicate)

    def judge() -> Judgement:
        tally = yield Reduction(columns, where, rule.fold, Tally.plus)
        return tally.judged(mostly)

    return judge


def _pair(arguments: Arguments) -> tuple[Column, Column]:
    left, right = (arguments.column(COMPARABLE, key) for key in ("column_A", "column_B"))
    return left, right


def _comparable_pair(arguments: Arguments) -> tuple[Column, Column]:
    left, right = _pair(arguments)
    if not comparable(left, right):
        raise WrongKind(f"columns '{left.name}' ({left.kind}) and '{right.name}' ({right.kind}) cannot be compared")
    return left, right


def pair_equal(arguments: Arguments) -> Start:
    """Judge whether both values are equal. Null equals nothing."""
    columns = _comparable_pair(arguments)
    return _rows_rule(arguments, columns, OF_PAIRS, lambda row: row[0] is not None and row[0] == row[1])


def pair_greater(arguments: Arguments) -> Start:
    columns, or_equal = _comparable_pair(arguments), arguments.flag("or_equal")

    def is_greater(row: Sequence[Any]) -> bool:
        a, b = row
        return a is not None and b is not None and bool(a >= b if or_equal else a > b)

    return _rows_rule(arguments, columns, OF_PAIRS, is_greater)


def pair_in_set(arguments: Arguments) -> Start:
    columns = _pair(arguments)
    pairs = set()
    for pair in arguments.list("value_pairs_set"):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Unjudgeable(f"its value_pairs_set has {pair!r}, which is no pair")
        pairs.add(
            tuple(
                None if value is None else literal(value, column) for value, column in zip(pair, columns, strict=True)
            )
        )
    return _rows_rule(arguments, columns, OF_PAIRS, lambda row: tuple(row) in pairs)


def sum_equal(arguments: Arguments) -> Start:
    """Judge the sum of each row: exactly, or as the nearest float if one of the columns has floats."""
    columns = arguments.column_list(NUMBERS)
    total = number(arguments.kwargs.get("sum_total"))
    has_floats = any(column.kind is Kind.FLOAT for column in columns)

    def is_equal(row: Sequence[Any]) -> bool:
        if None in row:
            return False
        try:
            exact = sum(map(Fraction, row), Fraction())
        except OverflowError:  # infinite
            return False
        return float(exact) == float(total) if has_floats else exact == Fraction(total)

    return _rows_rule(arguments, columns, OF_LISTS, is_equal)


def all_equal(arguments: Arguments) -> Start:
    columns = arguments.column_list(COMPARABLE)
    _check_comparable(columns)
    return _rows_rule(arguments, columns, OF_LISTS, lambda row: None not in row and len(set(row)) == 1)


def unique_within_row(arguments: Arguments) -> Start:
    """Judge whether the values of each row differ. Two nulls do not."""
    columns = arguments.column_list(COMPARABLE)
    _check_comparable(columns)
    return _rows_rule(arguments, columns, OF_LISTS, lambda row: len(set(row)) == len(row))


def _check_comparable(columns: Sequence[Column]) -> None:
    for column in columns[1:]:
        if not comparable(columns[0], column):
            raise WrongKind(f"columns '{columns[0].name}' and '{column.name}' cannot be compared")


def compound_unique(arguments: Arguments) -> Start:
    """Judge whether each combination of values occurs once. Null is a value of its own."""
    columns, where, mostly = arguments.column_list(COMPARABLE), arguments.where, arguments.mostly
    is_left_out = LEFT_OUT[arguments.choice("ignore_row_if", OF_LISTS, OF_LISTS[0])]

    def fold(arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        rows = missing = unexpected = 0
        for *row, times in zip(*(array.to_pylist() for array in arrays), strict=True):
            rows += times
            if is_left_out(row):
                missing += times
            elif times > 1:
                unexpected += times
                samples[show_row(columns, row)] += times
                samples = Counter(dict(chosen(samples)))
        return Tally(rows, missing, unexpected, tuple(sorted(samples.items())))

    def judge() -> Judgement:
        tally = yield Reduction(columns, where, fold, Tally.plus, by_value=True)
        return tally.judged(mostly)

    return judge
