"""Validation of plain data from JSON against a type.

Supported are classes, None, unions, `Literal`, `Any`, sequences, mappings, tuples (`tuple[str, int]`), `TypedDict`
(which allows more keys), dataclasses (which do not), and checks by `Annotated`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
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
    return "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


Count = Annotated[int, lambda number: number >= 0]
Below = Annotated[str, _is_below]  # a relative path that does not leave its folder


def problem(value: Any, shape: Any, at: str = "") -> str | None:
    """The first problem, such as "files[3].rows is -1"; None if there is none."""
    if shape is Any:
        return None
    origin = get_origin(shape)
    check = _CHECKS.get(origin) if origin else _of_fields if _has_fields(shape) else _of_class
    return (check or _of_items)(value, shape, at)


def _of_class(value: Any, shape: Any, at: str) -> str | None:
    kinds: Any = {float: (int, float), None: NoneType}.get(shape, shape)
    fits = isinstance(value, kinds) and (shape is bool or not isinstance(value, bool))  # in Python True is an int
    return None if fits else _unfit(value, at)


def _of_literal(value: Any, shape: Any, at: str) -> str | None:
    return None if value in get_args(shape) else _unfit(value, at)


def _of_union(value: Any, shape: Any, at: str) -> str | None:
    """The problem of the only alternative to None, or of the value as a whole."""
    found = [problem(value, part, at) for part in get_args(shape) if value is None or part is not NoneType]
    if None in found:
        return None
    return found[0] if len(found) == 1 else _unfit(value, at)


def _of_annotated(value: Any, shape: Any, at: str) -> str | None:
    plain, *checks = get_args(shape)
    return problem(value, plain, at) or (None if all(check(value) for check in checks) else _unfit(value, at))


def _of_tuple(value: Any, shape: Any, at: str) -> str | None:
    parts = get_args(shape)
    if Ellipsis in parts:
        return _of_items(value, list[parts[0]], at)  # type: ignore[valid-type]
    if not isinstance(value, (list, tuple)) or len(value) != len(parts):
        return _unfit(value, at)
    return _first(problem(each, part, f"{at}[{n}]") for n, (each, part) in enumerate(zip(value, parts, strict=True)))


def _of_items(value: Any, shape: Any, at: str) -> str | None:
    origin, parts = get_origin(shape), get_args(shape)
    if issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            return _unfit(value, at)
        return _first(problem(each, parts[1], _within(at, key)) for key, each in value.items())
    if not isinstance(value, (list, tuple)):
        return _unfit(value, at)
    return _first(problem(each, parts[0], f"{at}[{n}]") for n, each in enumerate(value))


def _of_fields(value: Any, shape: Any, at: str) -> str | None:
    if not isinstance(value, Mapping):
        return _unfit(value, at)
    hints, required, closed = _fields(shape)
    if missing := sorted(required - value.keys()):
        return f"{_within(at, missing[0])} is missing"
    if closed and (more := sorted(value.keys() - hints.keys())):
        return f"{_within(at, more[0])} is not known"
    return _first(problem(value[name], hints[name], _within(at, name)) for name in hints if name in value)


@cache
def _fields(shape: Any) -> tuple[Mapping[str, Any], frozenset[str], bool]:
    """The types of the fields; the required ones; whether others are refused."""
    hints = get_type_hints(shape, include_extras=True)
    if is_typeddict(shape):
        return hints, frozenset(shape.__required_keys__), False
    required = (field.name for field in fields(shape) if field.default is MISSING is field.default_factory)
    return hints, frozenset(required), True


def _has_fields(shape: Any) -> bool:
    return is_typeddict(shape) or hasattr(shape, "__dataclass_fields__")


def _first(found: Iterable[str | None]) -> str | None:
    return next((wrong for wrong in found if wrong), None)


def _within(at: str, name: object) -> str:
    return f"{at}.{name}" if at else str(name)


def _unfit(value: Any, at: str) -> str:
    shown = repr(value)
    return f"{at or 'it'} is {shown if len(shown) <= 80 else shown[:80] + '…'}"


_CHECKS: Mapping[Any, Callable[[Any, Any, str], str | None]] = {
    Annotated: _of_annotated,
    Literal: _of_literal,
    Union: _of_union,
    UnionType: _of_union,
    tuple: _of_tuple,
    NotRequired: lambda value, shape, at: problem(value, get_args(shape)[0], at),
}
