"""Rows as Protobuf messages: the inverse of `onceonly.registry.protobuf.reader`, for the same types.

What a message cannot hold is refused, where a plain serializer would write something else: a null as zero, or one of
two members of a `oneof`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from onceonly.registry import protobuf

Fill = Callable[[Any, Any], None]  # (message, value that is not null)
WIDER = [["byte", "integer"], ["short", "integer"], ["byte", "long"], ["short", "long"], ["integer", "long"]]


class Unwritable(Exception):
    """Why a row is no message; names fields, and no values."""


@lru_cache(16)
def writer(files: bytes, name: str) -> Callable[[Mapping[str, Any]], bytes]:
    """A function of a row, as PyArrow gives it. Raises Unwritable."""
    made, fill = protobuf.message_class(files, name), _filler(protobuf.descriptor(files, name))

    def write(row: Mapping[str, Any]) -> bytes:
        message = made()
        fill(message, row)
        try:
            return bytes(message.SerializeToString(deterministic=True))
        except Exception as error:  # of proto2: required fields that are missing
            raise Unwritable(f"{type(error).__name__}: a required field is missing") from None

    return write


def misfit(have: Any, want: Any, at: str = "value") -> str | None:
    """Why rows of the one type (Spark's, as JSON) cannot become messages of the other; None if they can."""
    if isinstance(have, str) or isinstance(want, str):
        fits = have == want or [have, want] in WIDER
        return None if fits else f"{at} is {_shown(have)}, and the message has {_shown(want)}"
    if have["type"] != want["type"]:
        return f"{at} is {have['type']}, and the message has {want['type']}"
    if have["type"] == "struct":
        return _misfit_of_fields(have, want, at)
    parts = ("elementType",) if have["type"] == "array" else ("keyType", "valueType")
    return next((why for part in parts if (why := misfit(have[part], want[part], f"{at}.{part}"))), None)


def _misfit_of_fields(have: Any, want: Any, at: str) -> str | None:
    wanted = {field["name"]: field["type"] for field in want["fields"]}
    for field in have["fields"]:
        if field["name"] not in wanted:
            return f"{at}.{field['name']} is not a field of the message"
        if why := misfit(field["type"], wanted[field["name"]], f"{at}.{field['name']}"):
            return why
    return None


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def _filler(message: Any) -> Fill:
    fields = {field.name: _field(field) for field in message.fields}
    oneofs = [(each.name, [field.name for field in each.fields]) for each in message.oneofs]

    def fill(made: Any, row: Mapping[str, Any]) -> None:
        for name, members in oneofs:
            if sum(row.get(member) is not None for member in members) > 1:
                raise Unwritable(f"oneof '{name}' has several values")
        for name, value in row.items():
            fields[name](made, value)

    return fill


def _field(field: Any) -> Fill:
    one = _setter(field)

    def fill(made: Any, value: Any) -> None:
        if value is None:
            if not (field.has_presence or field.is_repeated):
                raise Unwritable(f"field '{field.name}' is null, and has no presence: declare it optional")
            return
        try:
            one(made, value)
        except (TypeError, ValueError, AttributeError, KeyError) as error:  # whose text may show the value
            raise Unwritable(f"field '{field.name}' does not take its value ({type(error).__name__})") from None

    return fill


def _setter(field: Any) -> Fill:
    if protobuf.is_map(field):
        return _map(field)
    if field.message_type is None:
        of = _plain(field)
        if field.is_repeated:
            return lambda made, values: getattr(made, field.name).extend([of(each) for each in values])
        return lambda made, value: setattr(made, field.name, of(value))
    put = _message(field.message_type)
    if field.is_repeated:
        return lambda made, values: _add(getattr(made, field.name), put, values)
    return lambda made, value: put(getattr(made, field.name), value)


def _add(target: Any, put: Fill, values: Any) -> None:
    for value in values:
        put(target.add(), _there(value))


def _map(field: Any) -> Fill:
    kind = field.message_type.fields_by_name["value"]
    of, put = _plain(kind), kind.message_type and _message(kind.message_type)

    def fill(made: Any, pairs: Any) -> None:
        target = getattr(made, field.name)
        for key, value in pairs:
            if put:
                put(target[key], _there(value))
            else:
                target[key] = of(value)

    return fill


def _message(kind: Any) -> Fill:
    """Of a message that is part of another one. It is there even if it is empty."""
    if kind.full_name == protobuf.TIMESTAMP:
        return _timestamp
    inner = _wrapped(kind) if kind.full_name in protobuf.WRAPPERS else _filler(kind)

    def fill(made: Any, value: Any) -> None:
        made.SetInParent()
        inner(made, value)

    return fill


def _wrapped(kind: Any) -> Fill:
    of = _plain(kind.fields_by_name["value"])
    return lambda made, value: setattr(made, "value", of(value))


def _timestamp(made: Any, time: Any) -> None:
    micros = (time - protobuf.EPOCH) // protobuf.MICROSECOND
    made.SetInParent()
    made.seconds, made.nanos = micros // 1_000_000, micros % 1_000_000 * 1000


def _plain(field: Any) -> Callable[[Any], Any]:
    if field.type == protobuf.ENUM:
        numbers = {each.name: each.number for each in field.enum_type.values}
        return lambda name: numbers[name] if name in numbers else int(name)
    return int if protobuf.TYPES.get(field.type) == "decimal(20,0)" else _there


def _there(value: Any) -> Any:
    if value is None:
        raise ValueError
    return value
