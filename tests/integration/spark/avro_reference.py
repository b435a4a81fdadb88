"""An Avro decoder of a page, by the specification, for comparison.

It takes nothing that was not written, but for two things that Avro's decoder for Java, and so Spark, does not notice.
"""

from __future__ import annotations

import struct
from typing import Any

from onceonly.kafka.registry.avro_schema import Node


class Bad(Exception):
    pass


def decode(tree: Node, data: bytes) -> Any:
    """The value; dates, times and decimals as the numbers that they are. Raises Bad."""
    value, at = _value(tree, data, 0)
    if at != len(data):
        raise Bad("left over")
    return value


def _value(node: Node, data: bytes, at: int) -> tuple[Any, int]:  # noqa: C901
    match node.kind:
        case "null":
            return None, at
        case "boolean":
            flag, at = _take(data, at, 1)
            return {b"\0": False, b"\1": True}.get(flag, _bad), _check(flag in (b"\0", b"\1"), at)
        case "int":
            number, at = _long(data, at)
            return number, _check(-(1 << 31) <= number < 1 << 31, at)
        case "long":
            return _long(data, at)
        case "float" | "double":
            packed, at = _take(data, at, 4 if node.kind == "float" else 8)
            return struct.unpack("<f" if node.kind == "float" else "<d", packed)[0], at
        case "string" | "bytes":
            size, at = _long(data, at)
            found, at = _take(data, at, size)
            return (_text(found) if node.kind == "string" else found), at
        case "fixed":
            return _take(data, at, node.size)
        case "enum":
            index, at = _long(data, at)
            return index, _check(0 <= index < node.size, at)
        case "record":
            row = {}
            for name, part in node.parts:
                row[name], at = _value(part, data, at)
            return row, at
        case "union":
            index, at = _branch(data, at)
            _check(0 <= index < len(node.parts), at)
            return _value(node.parts[index][1], data, at)
        case _:
            return _items(node, data, at)


def _branch(data: bytes, at: int) -> tuple[int, int]:
    """Of five bytes, Avro's decoder for Java takes 32 bits."""
    size = next((n for n in range(5) if data[at + n : at + n + 1] < b"\x80"), 5)
    _check(size < 5 and at + size < len(data), at)
    number = sum((data[at + n] & 0x7F) << 7 * n for n in range(size + 1)) & 0xFFFFFFFF
    return (number >> 1) ^ -(number & 1), at + size + 1


def _items(node: Node, data: bytes, at: int) -> tuple[Any, int]:
    items: list[Any] = []
    while True:
        count, at = _long(data, at)
        if count == 0:
            break
        if count < 0:
            _, at = _long(data, at)
        for _ in range(abs(count)):
            key = None
            if node.kind == "map":
                size, at = _long(data, at)
                found, at = _take(data, at, size)
                key = _text(found)
            value, at = _value(node.item, data, at)
            items.append((key, value) if node.kind == "map" else value)
    if node.kind == "map":
        _check(len({key for key, _ in items}) == len(items), at)
        return dict(items), at
    return items, at


def _long(data: bytes, at: int) -> tuple[int, int]:
    """Of ten bytes, Avro's decoder for Java takes 64 bits."""
    number = 0
    for place in range(10):
        if at + place >= len(data):
            raise Bad("end")
        byte = data[at + place]
        number |= (byte & 0x7F) << 7 * place
        if not byte & 0x80:
            number &= (1 << 64) - 1
            return (number >> 1) ^ -(number & 1), at + place + 1
    raise Bad("a number of more than 64 bits")


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    return data[at : at + size], _check(0 <= size <= len(data) - at, at + size)


def _text(found: bytes) -> str:
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise Bad("no UTF-8") from None


def _check(is_so: bool, at: int) -> int:
    if not is_so:
        raise Bad("no value of its type")
    return at


_bad = object()
