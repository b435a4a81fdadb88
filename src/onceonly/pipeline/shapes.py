"""Validation of plain data from JSON against a type.

Supported are classes, None, unions, `Literal`, `Any`, sequences, mappings, tuples (`tuple[str, int]`), `TypedDict`
(which allows more keys), dataclasses (which do not), and checks by `Annotated`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict


@dataclass(frozen=True)
class Like:
    """A check: the text matches the pattern."""

    pattern: str

    def __call__(self, value: str) -> bool:
        return re.fullmatch(self.pattern, value) is not None


def _is_below(path: str) -> bool:
    """Return whether a relative path does not leave its folder."""
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


Count = Annotated[int, lambda number: number >= 0]
Below = Annotated[str, _is_below]  # a relative path that does not leave its folder


def problem(value: Any, shape: Any, at: str = "") -> str | None:
    """Return the first problem, such as "files[3].rows is -1"; None if there is none.

    Args:
        value: from JSON.
        shape: the type that it should have.
        at: the place of the value within the whole, in messages.
    """
    if shape is Any:
        return None
    origin = get_origin(shape)
    if origin:
        check = _PROBLEM_BY_ORIGIN.get(origin, _problem_of_items)
    elif _has_fields(shape):
        check = _problem_of_fields
    else:
        check = _problem_of_class
    return check(value, shape, at)


def _problem_of_class(value: Any, shape: Any, at: str) -> str | None:
    kinds: Any = {float: (int, float), None: NoneType}.get(shape, shape)
    fits = isinstance(value, kinds) and (shape is bool or not isinstance(value, bool))  # in Python True is an int
    if fits:
        return None
    return _describe_misfit(value, at)


def _problem_of_literal(value: Any, shape: Any, at: str) -> str | None:
    if value in get_args(shape):
        return None
    return _describe_misfit(value, at)


def _problem_of_union(value: Any, shape: Any, at: str) -> str | None:
    """Return the problem of the only alternative to None, or of the value as a whole."""
    alternatives = get_args(shape)
    if value is None and NoneType in alternatives:
        return None
    problems = []
    for alternative in alternatives:
        if alternative is not NoneType:
            problems.append(problem(value, alternative, at))
    if None in problems:
        return None
    if len(problems) == 1:
        return problems[0]
    return _describe_misfit(value, at)


def _problem_of_annotated(value: Any, shape: Any, at: str) -> str | None:
    plain, *checks = get_args(shape)
    if type_problem := problem(value, plain, at):
        return type_problem
    for check in checks:
        if not check(value):
            return _describe_misfit(value, at)
    return None


def _problem_of_tuple(value: Any, shape: Any, at: str) -> str | None:
    parts = get_args(shape)
    if Ellipsis in parts:
        return _problem_of_items(value, list[parts[0]], at)  # type: ignore[valid-type]
    if not isinstance(value, (list, tuple)) or len(value) != len(parts):
        return _describe_misfit(value, at)
    for index, (item, part) in enumerate(zip(value, parts, strict=True)):
        if item_problem := problem(item, part, f"{at}[{index}]"):
            return item_problem
    return None


def _problem_of_items(value: Any, shape: Any, at: str) -> str | None:
    """Return the first problem of an item of a sequence, or of a value of a mapping."""
    origin, parts = get_origin(shape), get_args(shape)
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _describe_misfit(value, at)
        for key, item in value.items():
            if item_problem := problem(item, parts[1], _place_within(at, key)):
                return item_problem
        return None
    if not isinstance(value, (list, tuple)):
        return _describe_misfit(value, at)
    for index, item in enumerate(value):
        if item_problem := problem(item, parts[0], f"{at}[{index}]"):
            return item_problem
    return None


def _problem_of_fields(value: Any, shape: Any, at: str) -> str | None:
    """Return the first problem of a TypedDict or a dataclass, as a mapping by field."""
    if not isinstance(value, Mapping):
        return _describe_misfit(value, at)
    hints, required, is_closed = _fields(shape)
    if missing := sorted(required - value.keys()):
        return f"{_place_within(at, missing[0])} is missing"
    if is_closed and (unknown := sorted(value.keys() - hints.keys())):
        return f"{_place_within(at, unknown[0])} is not known"
    for name in hints:
        if name in value and (field_problem := problem(value[name], hints[name], _place_within(at, name))):
            return field_problem
    return None


@cache
def _fields(shape: Any) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """Return the types of the fields; the required ones; and whether others are refused."""
    hints = get_type_hints(shape, include_extras=True)
    if is_typeddict(shape):
        return hints, frozenset(shape.__required_keys__), False
    required = set()
    for field in fields(shape):
        if field.default is MISSING and field.default_factory is MISSING:
            required.add(field.name)
    return hints, frozenset(required), True


def _has_fields(shape: Any) -> bool:
    return is_typeddict(shape) or hasattr(shape, "__dataclass_fields__")


def _place_within(at: str, name: object) -> str:
    if not at:
        return str(name)
    return f"{at}.{name}"


def _describe_misfit(value: Any, at: str) -> str:
    text = repr(value)
    if len(text) > 80:
        text = text[:80] + "…"
    return f"{at or 'it'} is {text}"


_PROBLEM_BY_ORIGIN: Mapping[Any, Callable[[Any, Any, str], str | None]] = {
    Annotated: _problem_of_annotated,
    Literal: _problem_of_literal,
    Union: _problem_of_union,
    UnionType: _problem_of_union,
    tuple: _problem_of_tuple,
    NotRequired: lambda value, shape, at: problem(value, get_args(shape)[0], at),
}
