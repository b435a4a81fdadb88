"""Expectations on each row: how many rows do not meet them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceonly.gate.arguments import Arguments, convert_items
from onceonly.gate.columns import COMPARABLE, NUMBERS, TIMES, Column, Kind, Unjudgeable, WrongKind, literal, number
from onceonly.gate.conditions import are_comparable
from onceonly.gate.reductions import Judgement, Reduction, Tally, limit_samples
from onceonly.json_values.text import parser

Predicate = Callable[[Any], bool]
Start = Callable[[], Judgement]  # starts a judgement, which can be concluded once
TEXT = (Kind.TEXT,)
EVERY = tuple(Kind)


# ---- one column


def values_rule(arguments: Arguments, column: Column, predicate: Predicate) -> Start:
    """Judge each value of a column that is not null."""
    condition, mostly = arguments.condition, arguments.mostly

    def judge() -> Judgement:
        tally = yield Reduction((column,), condition, partial(_tally_values, column, predicate), Tally.plus)
        return tally.to_result(mostly)

    return judge


def _tally_values(column: Column, predicate: Predicate, arrays: list[pa.Array], length: int) -> Tally:
    samples: Counter[str] = Counter()
    unexpected = 0
    for value, times in count_values(arrays[0]):
        if not predicate(value):
            unexpected += times
            samples[column.show(value)] += times
    return Tally(length, arrays[0].null_count, unexpected, limit_samples(samples))


def count_values(values: pa.Array) -> Iterable[tuple[Any, int]]:
    """Return the distinct values that are not null, each with how often it occurs."""
    pairs = pc.value_counts(values.drop_null())
    return zip(pairs.field(0).to_pylist(), pairs.field(1).to_pylist(), strict=True)


def iterate_rows(arrays: Sequence[pa.Array]) -> Iterator[tuple[Any, ...]]:
    """Return the rows of several columns of one length."""
    return zip(*(array.to_pylist() for array in arrays), strict=True)


def nullity(arguments: Arguments, expected: bool) -> Start:
    """Judge whether each value is null, or is not."""
    column, condition, mostly = arguments.column(EVERY), arguments.condition, arguments.mostly

    def fold_part(arrays: list[pa.Array], length: int) -> Tally:
        missing = arrays[0].null_count
        if not expected:
            return Tally(length, 0, missing)
        samples: Counter[str] = Counter()
        for value, times in count_values(arrays[0]):
            samples[column.show(value)] = times
        return Tally(length, 0, length - missing, limit_samples(samples))

    def judge() -> Judgement:
        tally = yield Reduction((column,), condition, fold_part, Tally.plus)
        return tally.to_result(mostly)

    return judge


def values_between(arguments: Arguments) -> Start:
    """Judge whether each value is within bounds."""
    column = arguments.column((*NUMBERS, *TIMES))
    return values_rule(arguments, column, arguments.bounds(column).contains)


def in_set(arguments: Arguments, expected: bool) -> Start:
    """Judge whether each value is in a set, or is not."""
    column = arguments.column(COMPARABLE)
    values = arguments.values(column)
    return values_rule(arguments, column, lambda value: (value in values) == expected)


def length_between(arguments: Arguments) -> Start:
    """Judge the number of characters of each text, by bounds."""
    bounds = arguments.number_bounds()
    return values_rule(arguments, arguments.column(TEXT), lambda text: bounds.contains(len(text)))


def length_equal(arguments: Arguments) -> Start:
    """Judge the number of characters of each text."""
    length = arguments.number("value")
    return values_rule(arguments, arguments.column(TEXT), lambda text: len(text) == length)


def values_unique(arguments: Arguments) -> Start:
    """Judge whether each value of a column occurs once."""
    column, condition, mostly = arguments.column(COMPARABLE), arguments.condition, arguments.mostly

    def fold_part(arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        rows = missing = unexpected = 0
        for value, times in iterate_rows(arrays):
            rows += times
            if value is None:
                missing += times
            elif times > 1:
                unexpected += times
                samples[column.show(value)] += times
                samples = Counter(dict(limit_samples(samples)))
        return Tally(rows, missing, unexpected, tuple(sorted(samples.items())))

    def judge() -> Judgement:
        tally = yield Reduction((column,), condition, fold_part, Tally.plus, by_value=True)
        return tally.to_result(mostly)

    return judge


# ---- text


def regex(arguments: Arguments, expected: bool) -> Start:
    """Judge whether each text matches a regular expression, or does not. The default matches any text."""
    if expected:
        pattern = _compile_regex(arguments.kwargs.get("regex") or "(?s).*")
    else:
        pattern = _compile_regex(arguments.text("regex"))
    return values_rule(arguments, arguments.column(TEXT), lambda text: (pattern.search(text) is not None) == expected)


def regexes(arguments: Arguments, expected: bool) -> Start:
    """Judge each text by several regular expressions."""
    searches = [_compile_regex(pattern).search for pattern in arguments.list("regex_list")]
    return _patterns_rule(arguments, searches, expected)


def like(arguments: Arguments, expected: bool) -> Start:
    """Judge whether each text matches a pattern of SQL's LIKE, or does not."""
    pattern = _compile_like(arguments, arguments.text("like_pattern"))
    column = arguments.column(TEXT)
    return values_rule(arguments, column, lambda text: (pattern.fullmatch(text) is not None) == expected)


def likes(arguments: Arguments, expected: bool) -> Start:
    """Judge each text by several patterns of SQL's LIKE."""
    matches = [_compile_like(arguments, pattern).fullmatch for pattern in arguments.list("like_pattern_list")]
    return _patterns_rule(arguments, matches, expected)


def _patterns_rule(arguments: Arguments, matches: Sequence[Callable[[str], Any]], expected: bool) -> Start:
    """Judge by several patterns: any of them or all have to match; or, if no match is expected, none may."""
    decide: Callable[[Iterable[bool]], bool] = any
    if expected and arguments.choice("match_on", ("any", "all"), "any") == "all":
        decide = all
    column = arguments.column(TEXT)
    return values_rule(arguments, column, lambda text: decide(bool(match(text)) for match in matches) == expected)


def _compile_regex(pattern: Any) -> re.Pattern[str]:
    """Return a regular expression. Raises Unjudgeable if it is not one of Python."""
    try:
        return re.compile(pattern)
    except (re.error, TypeError) as error:
        raise Unjudgeable(f"its pattern {pattern!r} is no regular expression of Python: {error}") from error


def _compile_like(arguments: Arguments, pattern: Any) -> re.Pattern[str]:
    """Return a pattern of SQL's LIKE as a regular expression."""
    escape = arguments.kwargs.get("escape")
    parts = []
    characters = iter(str(pattern))
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, "")))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return re.compile("".join(parts), re.DOTALL)


def strftime(arguments: Arguments) -> Start:
    """Judge whether each text is a time in a format."""
    form = arguments.text("strftime_format")
    try:
        datetime.strptime(datetime.now(UTC).strftime(form), form)
    except ValueError as error:
        raise Unjudgeable(f"its strftime_format {form!r} cannot be read back: {error}") from error
    return values_rule(
        arguments, arguments.column(TEXT), _make_read_predicate(ValueError, lambda text: datetime.strptime(text, form))
    )


def json_parseable(arguments: Arguments) -> Start:
    """Judge whether each text is JSON to Python's own parser."""
    return values_rule(
        arguments, arguments.column(TEXT), _make_read_predicate((ValueError, RecursionError), json.loads)
    )


class _SchemaPredicate:
    """Tells whether a text follows a JSON Schema, in exact arithmetic: 19.99 is a multiple of 0.01.

    Raises:
        ValueError, ReferencingError: that is no JSON Schema, or it refers to what is not in it.
    """

    def __init__(self, schema: Any) -> None:
        from jsonschema_rs import validator_for

        self._schema, self._parse = schema, parser()
        self._validator = validator_for(schema, validate_formats=False, offline=True)

    def __reduce__(self) -> tuple[type[_SchemaPredicate], tuple[Any]]:
        """Pickle the schema alone: each of Spark's workers compiles it for itself."""
        return type(self), (self._schema,)

    def __call__(self, text: str) -> bool:
        try:
            return bool(self._validator.is_valid(self._parse(text.encode())))
        except ValueError:  # it is not JSON, or not Unicode
            return False


def json_schema(arguments: Arguments) -> Start:
    """Judge whether each text is JSON that follows a JSON Schema."""
    from jsonschema_rs import ReferencingError

    try:
        follows_schema = _SchemaPredicate(convert_items(arguments.kwargs.get("json_schema"), _make_exact))
    except (ValueError, ReferencingError) as error:
        raise Unjudgeable(f"its json_schema is not one: {str(error).partition(chr(10))[0]}") from error
    return values_rule(arguments, arguments.column(TEXT), follows_schema)


def _make_exact(value: Any) -> Any:
    """Return a float of a suite exactly as it is written, and anything else as it is."""
    if isinstance(value, float):
        return number(value)
    return value


def dateutil_parseable(arguments: Arguments) -> Start:
    """Judge whether `dateutil` can read each text as a time."""
    from dateutil import parser

    default = datetime(2000, 1, 1)  # for parts that the text does not have: no verdict depends on the day of the check
    return values_rule(
        arguments,
        arguments.column(TEXT),
        _make_read_predicate((ValueError, OverflowError, TypeError), lambda text: parser.parse(text, default=default)),
    )


def _make_read_predicate(
    errors: type[Exception] | tuple[type[Exception], ...], read: Callable[[str], Any]
) -> Predicate:
    """Return a predicate: whether a text can be read, which means that `read` raises none of these errors."""

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
    """Judges each row by the values of several columns, of which any may be null."""

    columns: tuple[Column, ...]
    is_ignored: Callable[[Sequence[Any]], bool]
    predicate: Callable[[Sequence[Any]], bool]

    def fold_part(self, arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        missing = unexpected = 0
        for row in iterate_rows(arrays):
            if self.is_ignored(row):
                missing += 1
            elif not self.predicate(row):
                unexpected += 1
                samples[show_row(self.columns, row)] += 1
                if len(samples) > 1_000:
                    samples = Counter(dict(limit_samples(samples)))
        return Tally(length, missing, unexpected, limit_samples(samples))


def show_row(columns: Sequence[Column], row: Sequence[Any]) -> str:
    """Return the values of several columns as a person reads them."""
    texts = []
    for column, value in zip(columns, row, strict=True):
        if value is None:
            texts.append("null")
        else:
            texts.append(column.show(value))
    return f"({', '.join(texts)})"


def _is_all_missing(row: Sequence[Any]) -> bool:
    return all(value is None for value in row)


def _is_any_missing(row: Sequence[Any]) -> bool:
    return None in row


def _ignore_no_row(row: Sequence[Any]) -> bool:
    return False


IGNORE_PREDICATES: dict[str, Callable[[Sequence[Any]], bool]] = {
    "both_values_are_missing": _is_all_missing,
    "all_values_are_missing": _is_all_missing,
    "either_value_is_missing": _is_any_missing,
    "any_value_is_missing": _is_any_missing,
    "neither": _ignore_no_row,
    "never": _ignore_no_row,
}
PAIR_CHOICES = ("both_values_are_missing", "either_value_is_missing", "neither")
LIST_CHOICES = ("all_values_are_missing", "any_value_is_missing", "never")


def _rows_rule(
    arguments: Arguments,
    columns: tuple[Column, ...],
    choices: Sequence[str],
    predicate: Callable[[Sequence[Any]], bool],
) -> Start:
    """Judge each row by the values of several columns.

    Args:
        choices: the possible values of `ignore_row_if`; the first one is its default.
    """
    condition, mostly = arguments.condition, arguments.mostly
    is_ignored = IGNORE_PREDICATES[arguments.choice("ignore_row_if", choices, choices[0])]
    rule = _RowsOfColumns(columns, is_ignored, predicate)

    def judge() -> Judgement:
        tally = yield Reduction(columns, condition, rule.fold_part, Tally.plus)
        return tally.to_result(mostly)

    return judge


def _get_pair(arguments: Arguments) -> tuple[Column, Column]:
    return arguments.column(COMPARABLE, "column_A"), arguments.column(COMPARABLE, "column_B")


def _get_comparable_pair(arguments: Arguments) -> tuple[Column, Column]:
    left, right = _get_pair(arguments)
    if not are_comparable(left, right):
        raise WrongKind(f"columns '{left.name}' ({left.kind}) and '{right.name}' ({right.kind}) cannot be compared")
    return left, right


def pair_equal(arguments: Arguments) -> Start:
    """Judge whether both values are equal. Null equals nothing."""
    columns = _get_comparable_pair(arguments)
    return _rows_rule(arguments, columns, PAIR_CHOICES, lambda row: row[0] is not None and row[0] == row[1])


def pair_greater(arguments: Arguments) -> Start:
    """Judge whether the first value is greater than the second one. Null is neither greater nor less."""
    columns, or_equal = _get_comparable_pair(arguments), arguments.flag("or_equal")

    def is_greater(row: Sequence[Any]) -> bool:
        a, b = row
        if a is None or b is None:
            return False
        if or_equal:
            return bool(a >= b)
        return bool(a > b)

    return _rows_rule(arguments, columns, PAIR_CHOICES, is_greater)


def pair_in_set(arguments: Arguments) -> Start:
    """Judge whether each pair of values is in a set of pairs, in which null is a value."""
    columns = _get_pair(arguments)
    pairs = set()
    for pair in arguments.list("value_pairs_set"):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise Unjudgeable(f"its value_pairs_set has {pair!r}, which is no pair")
        left, right = pair
        pairs.add((_literal_or_null(left, columns[0]), _literal_or_null(right, columns[1])))
    return _rows_rule(arguments, columns, PAIR_CHOICES, lambda row: tuple(row) in pairs)


def _literal_or_null(value: Any, column: Column) -> Any:
    if value is None:
        return None
    return literal(value, column)


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
        if has_floats:
            return float(exact) == float(total)
        return exact == Fraction(total)

    return _rows_rule(arguments, columns, LIST_CHOICES, is_equal)


def all_equal(arguments: Arguments) -> Start:
    """Judge whether the values of each row are equal. Null equals nothing."""
    columns = arguments.column_list(COMPARABLE)
    _check_comparable(columns)
    return _rows_rule(arguments, columns, LIST_CHOICES, lambda row: None not in row and len(set(row)) == 1)


def unique_within_row(arguments: Arguments) -> Start:
    """Judge whether the values of each row differ. Two nulls do not."""
    columns = arguments.column_list(COMPARABLE)
    _check_comparable(columns)
    return _rows_rule(arguments, columns, LIST_CHOICES, lambda row: len(set(row)) == len(row))


def _check_comparable(columns: Sequence[Column]) -> None:
    """Raise WrongKind unless the columns can be compared."""
    for column in columns[1:]:
        if not are_comparable(columns[0], column):
            raise WrongKind(f"columns '{columns[0].name}' and '{column.name}' cannot be compared")


def compound_unique(arguments: Arguments) -> Start:
    """Judge whether each combination of values occurs once. Null is a value of its own."""
    columns, condition, mostly = arguments.column_list(COMPARABLE), arguments.condition, arguments.mostly
    is_ignored = IGNORE_PREDICATES[arguments.choice("ignore_row_if", LIST_CHOICES, LIST_CHOICES[0])]

    def fold_part(arrays: list[pa.Array], length: int) -> Tally:
        samples: Counter[str] = Counter()
        rows = missing = unexpected = 0
        for *row, times in iterate_rows(arrays):
            rows += times
            if is_ignored(row):
                missing += times
            elif times > 1:
                unexpected += times
                samples[show_row(columns, row)] += times
                samples = Counter(dict(limit_samples(samples)))
        return Tally(rows, missing, unexpected, tuple(sorted(samples.items())))

    def judge() -> Judgement:
        tally = yield Reduction(columns, condition, fold_part, Tally.plus, by_value=True)
        return tally.to_result(mostly)

    return judge
