"""Bytes of a Protobuf message, looked at as they are: whether a parser has kept all that they say of known fields.

A parser cuts a number that is too large for its field, takes any number but zero for true, keeps the last of several
values of one field, and passes over a field that was written as another type. Each of them is refused here. Fields
whose numbers the schema does not have are left alone: a newer writer may have them.

Source: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
WIRE_TYPES = {  # by the type of a field in descriptor.proto
    1: FIXED64, 2: FIXED32, 3: VARINT, 4: VARINT, 5: VARINT, 6: FIXED64, 7: FIXED32, 8: VARINT, 9: BYTES, 10: GROUP,
    11: BYTES, 12: BYTES, 13: VARINT, 14: VARINT, 15: FIXED32, 16: FIXED64, 17: VARINT, 18: VARINT,
}  # fmt: skip
INT32, BOOL, UINT32, ENUM, SINT32 = 5, 8, 13, 14, 17
MOST_VARINT_BYTES = 10
MOST_DEPTH = 100  # of messages in messages, as in Google's parsers


class Altered(ValueError):
    """Why a parser would make something else of the bytes: names fields, and no values."""


def check(data: bytes, message: Any) -> None:
    """Raise Altered unless a parser keeps all that the bytes say of the message's fields."""
    _check_message(memoryview(data), message, 0)


def _check_message(data: memoryview, message: Any, depth: int) -> None:
    if depth > MOST_DEPTH:
        raise Altered(f"'{message.name}' is nested too deeply")
    written: set[str] = set()  # fields, and oneofs as 'name()'
    keys: dict[int, set[bytes]] = {}  # of maps, by the field's number
    for number, wire, value in _fields(data, depth):
        field = message.fields_by_number.get(number)
        if field is None:
            continue
        if field.is_repeated:
            _check_repeated(field, wire, value, depth, keys.setdefault(number, set()))
            continue
        _check_value(field, wire, value, depth)
        name = field.name
        if field.containing_oneof:
            name = field.containing_oneof.name + "()"
        if name in written:
            raise Altered(f"field '{field.name}' was written more than once")
        written.add(name)


def _check_repeated(field: Any, wire: int, value: Any, depth: int, keys: set[bytes]) -> None:
    is_packed = wire == BYTES and WIRE_TYPES[field.type] in (VARINT, FIXED32, FIXED64)
    if not is_packed:
        _check_value(field, wire, value, depth)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _check_key(field, value, depth, keys)
        return
    at = 0
    while at < len(value):
        item, at = _read_value(value, at, WIRE_TYPES[field.type])
        _check_value(field, WIRE_TYPES[field.type], item, depth)


def _check_key(field: Any, entry: memoryview, depth: int, keys: set[bytes]) -> None:
    """Refuse a key that is in `keys` already, and add it. An entry without a key has the zero of its type."""
    key = _key_of(entry, depth)
    if key in (b"0", b"b''"):
        key = b""
    if key in keys:
        raise Altered(f"field '{field.name}' has a key twice")
    keys.add(key)


def _key_of(entry: memoryview, depth: int) -> bytes:
    """Return the first key of a map's entry, as bytes that differ for different keys; b"" if there is none."""
    for number, wire, value in _fields(entry, depth):
        if number == 1:
            return repr(bytes(value) if wire == BYTES else value).encode()
    return b""


def _check_value(field: Any, wire: int, value: Any, depth: int) -> None:
    if wire != WIRE_TYPES[field.type]:
        raise Altered(f"field '{field.name}' was written as another type")
    if wire == VARINT and not _can_hold(field.type, value):
        raise Altered(f"field '{field.name}' has a number that does not fit")
    if field.type == ENUM and field.enum_type.is_closed and _to_signed(value) not in field.enum_type.values_by_number:
        raise Altered(f"field '{field.name}' has a value that its enum does not have")  # a parser leaves it out
    if field.message_type is not None:
        _check_message(value, field.message_type, depth + 1)


def _to_signed(number: int) -> int:
    """Return the signed number that an unsigned one of 64 bits stands for."""
    if number >= 1 << 63:
        return number - (1 << 64)
    return number


def _can_hold(kind: int, number: int) -> bool:
    """Return whether an unsigned number of 64 bits is one of that type."""
    if kind in (INT32, ENUM):
        return number < 1 << 31 or number >= (1 << 64) - (1 << 31)
    if kind in (UINT32, SINT32):
        return number < 1 << 32
    return kind != BOOL or number < 2


def _fields(data: memoryview, depth: int) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of each field; of a group, its bytes. Raises Altered."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == GROUP:
            start, (end, at) = at, _end_of_group(data, at, number, depth)
            yield number, wire, data[start:end]
        else:
            value, at = _read_value(data, at, wire)
            yield number, wire, value


def _end_of_group(data: memoryview, at: int, number: int, depth: int) -> tuple[int, int]:
    """Return where the group's fields end, and where what follows it begins."""
    if depth > MOST_DEPTH:
        raise Altered("a group is nested too deeply")
    while True:
        end = at
        tag, at = varint(data, at)
        wire = tag & 7
        if wire == GROUP_END:
            if tag >> 3 != number:
                raise Altered("a group ends that has not begun")
            return end, at
        if wire == GROUP:
            _, at = _end_of_group(data, at, tag >> 3, depth + 1)
        else:
            _, at = _read_value(data, at, wire)


def _read_value(data: memoryview, at: int, wire: int) -> tuple[Any, int]:
    """Return a value of that wire type, and where what follows it begins. Raises Altered."""
    if wire == VARINT:
        return varint(data, at)
    if wire == BYTES:
        size, at = varint(data, at)
    else:
        size = {FIXED64: 8, FIXED32: 4}.get(wire, -1)
    if size < 0 or at + size > len(data):
        raise Altered("its bytes end before the message does")
    return data[at : at + size], at + size


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number, and where what follows it begins. Raises Altered."""
    number = 0
    for place in range(MOST_VARINT_BYTES):
        if at + place >= len(data):
            raise Altered("its bytes end before the message does")
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            if number >= 1 << 64:
                break
            return number, at + place + 1
    raise Altered("a number has more than 64 bits")
