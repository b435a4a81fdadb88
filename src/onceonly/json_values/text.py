"""Texts of JSON: parsing by RFC 8259, with every digit of every number, and writing equal data as equal text.

Python's own parser takes more than JSON, and some texts on one machine only. What is bad here is bad everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

MAX_DEPTH = 500  # objects and arrays within one another
MAX_DIGITS = 1_000  # of a number, and its largest exponent: arithmetic with more takes minutes
MAX_SHOWN_CHARACTERS = 40  # characters of a value or name in a message
ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))


class NotJson(ValueError):
    """Why a text is not JSON, or which limit it exceeds, as a sentence."""


def parser() -> Callable[[bytes], Any]:
    """Return a function that parses one text. Numbers become `int` and `Decimal`.

    Raises, that function:
        NotJson: the text is not one JSON value, has a name twice in an object, or exceeds a limit above.
    """
    decoder = json.JSONDecoder(
        object_pairs_hook=_unique_object,
        parse_float=_parse_fraction,
        parse_int=_parse_integer,
        parse_constant=_refuse_constant,
    )

    def parse(data: bytes) -> Any:
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise NotJson(f"It is not JSON: byte {error.start} is not UTF-8.") from None
        if _is_too_deep(data):
            raise NotJson(f"It has objects or arrays nested more than {MAX_DEPTH} levels deep.")
        try:
            return decoder.decode(text)
        except json.JSONDecodeError as error:
            raise NotJson(f"It is not JSON: {error.msg[:1].lower()}{error.msg[1:]} at character {error.pos}.") from None

    return parse


def show_value(value: Any) -> str:
    """Return a parsed value on one line of ASCII, cut after a few characters."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        value = value[:MAX_SHOWN_CHARACTERS]  # before it is escaped: it may have megabytes
    text = str(value) if isinstance(value, Decimal) else json.dumps(value)
    if len(text) > MAX_SHOWN_CHARACTERS:
        return f"{text[:MAX_SHOWN_CHARACTERS]}..."
    return text


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these names and values. Raises NotJson if a name is there twice."""
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise NotJson(f"The name {show_value(name)} is there twice in one object.")
        names.add(name)
    raise AssertionError


def _parse_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise _long_number_error()
    return int(text)


def _parse_fraction(text: str) -> Decimal:
    if len(text) > MAX_DIGITS:
        raise _long_number_error()
    return parse_decimal(text)


def parse_decimal(text: str) -> Decimal:
    """Return the number exactly.

    Raises:
        NotJson: its exponent is too large.
    """
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise _long_number_error() from None
    if abs(number.adjusted()) > MAX_DIGITS:
        raise _long_number_error()
    return number


def _long_number_error() -> NotJson:
    return NotJson(f"It has a number of more than {MAX_DIGITS:,} digits.")


def _refuse_constant(word: str) -> None:
    raise NotJson(f"It is not JSON: {word} is no JSON number.")


def _is_too_deep(data: bytes) -> bool:
    """Return whether objects and arrays are nested too deep. Python's own limit depends on the caller's stack.

    Each round takes away the innermost level.
    """
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    brackets = _brackets_outside_texts(data)
    for _ in range(MAX_DEPTH):
        fewer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(fewer) == len(brackets):  # none is left, or they don't match, which the parser will say
            return len(brackets) - len(brackets.lstrip(b"[{")) > MAX_DEPTH
        brackets = fewer
    return bool(brackets)


def _brackets_outside_texts(data: bytes) -> bytes:
    """Return the brackets that are not in texts."""
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    return re.sub(rb'"[^"]*"?', b"", data.translate(None, ALL_BUT_BRACKETS))


def canonical(data: Any) -> str:
    """Write JSON with sorted keys: equal data has equal text."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))
