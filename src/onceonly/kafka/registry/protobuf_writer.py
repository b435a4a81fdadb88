"""Rows as Protobuf messages: the inverse of `onceonly.kafka.registry.protobuf.reader`, for the same types.

What a message cannot hold is refused, where a plain serializer would write something else: a null as zero, or one of
two members of a `oneof`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from onceonly.kafka.registry import protobuf
from onceonly.unix_time import MICROSECOND, UNIX_EPOCH

Fill = Callable[[Any, Any], None]  # (message, value that is not null)
WIDER_SPARK_TYPES = [
    ["byte", "integer"],
    ["short", "integer"],
    ["byte", "long"],
    ["short", "long"],
    ["integer", "long"],
]


class Unwritable(Exception):
    """Why a row is no message; names fields, and no values."""


@lru_cache(16)
def writer(files: bytes, name: str) -> Callable[[Mapping[str, Any]], bytes]:
    """Return a function of a row, as PyArrow gives it: the message's bytes. It raises Unwritable."""
    message_type, fill = protobuf.message_class(files, name), _filler(protobuf.descriptor(files, name))

    def write(row: Mapping[str, Any]) -> bytes:
        message = message_type()
        fill(message, row)
        try:
            return bytes(message.SerializeToString(deterministic=True))
        except Exception as error:  # of proto2: required fields that are missing
            raise Unwritable(f"{type(error).__name__}: a required field is missing") from None

    return write


def find_misfit(have: Any, want: Any, at: str = "value") -> str | None:
    """Return why rows of the one type (Spark's, as JSON) cannot become messages of the other; None if they can."""
    if isinstance(have, str) or isinstance(want, str):
        if have == want or [have, want] in WIDER_SPARK_TYPES:
            return None
        return f"{at} is {_type_name(have)}, and the message has {_type_name(want)}"
    if have["type"] != want["type"]:
        return f"{at} is {have['type']}, and the message has {want['type']}"
    if have["type"] == "struct":
        return _misfit_of_fields(have, want, at)
    for part in {"array": ("elementType",), "map": ("keyType", "valueType")}[have["type"]]:
        if why := find_misfit(have[part], want[part], f"{at}.{part}"):
            return why
    return None


def _misfit_of_fields(have: Any, want: Any, at: str) -> str | None:
    message_types = {field["name"]: field["type"] for field in want["fields"]}
    for field in have["fields"]:
        name = field["name"]
        if name not in message_types:
            return f"{at}.{name} is not a field of the message"
        if why := find_misfit(field["type"], message_types[name], f"{at}.{name}"):
            return why
    return None


def _type_name(type_: Any) -> str:
    if isinstance(type_, str):
        return type_
    return str(type_["type"])


def _filler(descriptor: Any) -> Fill:
    """Return a function that sets the fields of such a message from a row."""
    fillers = {field.name: _field_filler(field) for field in descriptor.fields}
    members_by_oneof = {}
    for oneof in descriptor.oneofs:
        members_by_oneof[oneof.name] = [field.name for field in oneof.fields]

    def fill(message: Any, row: Mapping[str, Any]) -> None:
        for oneof, members in members_by_oneof.items():
            if sum(row.get(member) is not None for member in members) > 1:
                raise Unwritable(f"oneof '{oneof}' has several values")
        for name, value in row.items():
            fillers[name](message, value)

    return fill


def _field_filler(field: Any) -> Fill:
    """Return a function that sets the field of a message, unless the value is null. It raises Unwritable."""
    set_field = _setter(field)

    def fill(message: Any, value: Any) -> None:
        if value is None:
            if not (field.has_presence or field.is_repeated):
                raise Unwritable(f"field '{field.name}' is null, and has no presence: declare it optional")
            return
        try:
            set_field(message, value)
        except (TypeError, ValueError, AttributeError, KeyError) as error:  # whose text may show the value
            raise Unwritable(f"field '{field.name}' does not take its value ({type(error).__name__})") from None

    return fill


def _setter(field: Any) -> Fill:
    """Return a function that sets the field of a message to a value that is not null."""
    name = field.name
    if protobuf.is_map(field):
        return _map_filler(field)
    if field.message_type is None:
        convert = _converter(field)
        if field.is_repeated:
            return lambda message, values: getattr(message, name).extend([convert(value) for value in values])
        return lambda message, value: setattr(message, name, convert(value))
    fill = _part_filler(field.message_type)
    if field.is_repeated:
        return lambda message, rows: _add_all(getattr(message, name), fill, rows)
    return lambda message, row: fill(getattr(message, name), row)


def _add_all(messages: Any, fill: Fill, rows: Any) -> None:
    for row in rows:
        fill(messages.add(), _require_value(row))


def _map_filler(field: Any) -> Fill:
    value_field = field.message_type.fields_by_name["value"]
    convert = _converter(value_field)
    fill_value = value_field.message_type and _part_filler(value_field.message_type)

    def fill(message: Any, pairs: Any) -> None:
        entries = getattr(message, field.name)
        for key, value in pairs:
            if fill_value:
                fill_value(entries[key], _require_value(value))
            else:
                entries[key] = convert(value)

    return fill


def _part_filler(descriptor: Any) -> Fill:
    """Return a function that fills a message which is part of another one. It is there even if it is empty."""
    if descriptor.full_name == protobuf.TIMESTAMP:
        return _fill_timestamp
    make_filler = _filler
    if descriptor.full_name in protobuf.WRAPPERS:
        make_filler = _wrapper_filler
    fill_part = make_filler(descriptor)

    def fill(part: Any, value: Any) -> None:
        part.SetInParent()
        fill_part(part, value)

    return fill


def _wrapper_filler(descriptor: Any) -> Fill:
    convert = _converter(descriptor.fields_by_name["value"])
    return lambda wrapper, value: setattr(wrapper, "value", convert(value))


def _fill_timestamp(timestamp: Any, time: Any) -> None:
    micros = (time - UNIX_EPOCH) // MICROSECOND
    timestamp.SetInParent()
    timestamp.seconds, timestamp.nanos = micros // 1_000_000, micros % 1_000_000 * 1000


def _converter(field: Any) -> Callable[[Any], Any]:
    """Return a function of one value, as PyArrow gives it: what protobuf takes.

    It raises ValueError or TypeError for what is no such value, such as a null.
    """
    if field.type == protobuf.ENUM:
        numbers = {value.name: value.number for value in field.enum_type.values}
        return lambda name: numbers[name] if name in numbers else int(name)
    if protobuf.TYPES.get(field.type) == "decimal(20,0)":
        return int
    return _require_value


def _require_value(value: Any) -> Any:
    if value is None:
        raise ValueError
    return value
