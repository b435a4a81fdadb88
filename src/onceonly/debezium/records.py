"""A record of Debezium as a row, or why it is none. Plain Python: it runs on the workers, a batch at a time.

Values become Spark's types, as pyarrow takes them: exactly, or they are refused. Nothing is rounded, and what can be
read in two ways is not guessed: the text '1234' may be a decimal, or the base64 of another one. Times are whole
microseconds since 1970, days whole days.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

from onceonly.unix_time import FIRST_DAY, LAST_DAY, MICROSECOND, UNIX_EPOCH

OTHER_OPERATIONS = {
    "t": "it says that the table was emptied (TRUNCATE), which is not a change of single rows. "
    "Fill another table from a new snapshot",
    "m": "it is a message in PostgreSQL's log, not a change of a row. Leave it out in the transform",
}
UNAVAILABLE_REASON = (
    "was not sent, because it did not change and PostgreSQL stores it out of line (TOAST). "
    "Use REPLICA IDENTITY FULL, or Debezium's reselect post processor"
)
TYPE_WORDS = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
AMBIGUOUS_TYPES = ("decimal", "timestamp", "binary")
# Raised for a value, or for what describes it.
VALUE_ERRORS = (ValueError, ArithmeticError, TypeError, LookupError, AttributeError)
Row = dict[str, Any]
PLACEHOLDER = b"__debezium_unavailable_value"
TEXT = PLACEHOLDER.decode()
AS_UUID = str(uuid.UUID(bytes=hashlib.md5(PLACEHOLDER, usedforsecurity=False).digest(), version=3))
BYTES: list[Any] = [PLACEHOLDER, base64.b64encode(PLACEHOLDER).decode(), PLACEHOLDER.hex()]
# How Debezium writes it in columns of texts, bytes, hstore (a map, or the text of one) and arrays.
UNAVAILABLE: list[Any] = [
    *(TEXT, *BYTES),
    *({TEXT: TEXT}, [(TEXT, TEXT)], f'{{"{TEXT}":"{TEXT}"}}'),
    *([TEXT], [AS_UUID], list(PLACEHOLDER), *([value] for value in BYTES)),
]
MAX_SINGLE, MAX_DOUBLE = 3.4028234663852886e38, 1.7976931348623157e308
DAYS = (FIRST_DAY, LAST_DAY)
MICROSECOND_RANGE = (FIRST_DAY * 86_400_000_000, (LAST_DAY + 1) * 86_400_000_000 - 1)
BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}
PER_MICRO = {  # what a number counts, by Debezium's name of it
    "io.debezium.time.Timestamp": "millis",
    "org.apache.kafka.connect.data.Timestamp": "millis",
    "io.debezium.time.MicroTimestamp": "micros",
    "io.debezium.time.NanoTimestamp": "nanos",
}
PRECISE = "org.apache.kafka.connect.data.Decimal"
DIGITS = Context(prec=80)
FINER_THAN_MICROS = re.compile(r"[.,]\d{6}\d*[1-9]")
Kind = Mapping[str, Any]  # of a column in Debezium's schema; empty: there is none
Convert = Callable[[Any, Kind], Any]


@dataclass(frozen=True)
class RecordReader:
    """How the records of one table are read.

    Args:
        columns: name -> Spark type and converter.
        keys: the columns of the primary key.
        without: columns that are left out.
    """

    columns: Mapping[str, tuple[str, Convert]]
    keys: Sequence[str]
    without: Sequence[str]

    def read_row(self, key: Any, value: Any, offset: int) -> Row:
        """Return the row of a record.

        Args:
            key: bytes of JSON, or what they were decoded to.
            value: the same.
        Raises:
            Unreadable: with the reason.
        """
        kinds, envelope = _envelope(value)
        op = str(envelope.get("op") or "")
        if op in OTHER_OPERATIONS:
            raise Unreadable(OTHER_OPERATIONS[op])
        if not op:
            raise Unreadable("it is not a Debezium envelope: it has no op")
        if op not in ("c", "u", "r", "d"):
            raise Unreadable(f"its op is not known: {op}")
        is_deleted = op == "d"
        values = envelope.get("before") if is_deleted else envelope.get("after")
        if not isinstance(values, dict):
            raise Unreadable("its row is null (REPLICA IDENTITY NOTHING?)")
        self._check_key(key, op, envelope.get("before"), values)
        self._check_columns(values)
        commit, lsn = _position(envelope.get("source"))
        row = {name: self._value(name, values, kinds, op) for name in self.columns}
        return {**row, "_commit": commit, "_lsn": lsn, "_offset": offset, "_deleted": is_deleted}

    def _value(self, name: str, values: Row, kinds: Mapping[str, Kind], op: str) -> Any:
        """Return the value of a column; of a deleted row only of the key.

        PostgreSQL says no more of a deleted row, and Debezium fills in zeros and empty texts.
        """
        value = values.get(name)
        if value is None and name in self.keys:
            raise Unreadable(f"its key '{name}' is null or missing")
        if value is None or (op == "d" and name not in self.keys):
            return None
        if value in UNAVAILABLE:
            raise Unreadable(f"column '{name}' {UNAVAILABLE_REASON}")
        type_, convert = self.columns[name]
        try:
            return convert(value, kinds.get(name, {}))
        except VALUE_ERRORS:
            problem = f"column '{name}' is {TYPE_WORDS.get(type(value), 'a value')} and not {type_}"
            if type_.startswith(AMBIGUOUS_TYPES):
                problem += ", or is ambiguous: see Changes(encodings=…)"
            raise Unreadable(problem) from None

    def _check_key(self, key: Any, op: str, before: Any, after: Row) -> None:
        names = _key_names(key)
        if names is not None and names != sorted(self.keys):
            raise Unreadable(f"its key is {names} and not that of Changes(keys={list(self.keys)})")
        for name in self.keys:
            if op == "u" and isinstance(before, dict) and before.get(name, after.get(name)) != after.get(name):
                raise Unreadable(f"an update has changed '{name}', so that is not the table's key")

    def _check_columns(self, values: Row) -> None:
        unknown = sorted(set(values) - set(self.columns) - set(self.without))
        if unknown:
            todo = "Add it to Changes(columns), or name it in without=[…]"
            raise Unreadable(f"its column {unknown} is not known. {todo}")


def _envelope(value: Any) -> tuple[Mapping[str, Kind], Row]:
    """Return what the record's schema says of the columns, by name, and the envelope."""
    document = value
    if isinstance(value, bytes):
        document = _parse_json(value)
    if not isinstance(document, dict):
        raise Unreadable("it is not a single JSON object")
    if not isinstance(document.get("payload"), dict):
        return {}, document
    try:
        fields: list[Kind] = []
        for part in (document.get("schema") or {}).get("fields", []):
            if part["field"] == "after":
                fields = part["fields"]
                break
        return {field["field"]: field for field in fields}, document["payload"]
    except (TypeError, KeyError, AttributeError):
        raise Unreadable("its schema is not one of Debezium") from None


def _parse_json(value: bytes) -> Any:
    try:
        return json.loads(value.decode(), parse_float=_parse_finite)
    except (ValueError, RecursionError):
        raise Unreadable("it is not a single JSON object") from None


def _parse_finite(text: str) -> float:
    """Parse a number. Raises ValueError for what Python would read as infinity, such as 1e400."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _key_names(key: Any) -> list[str] | None:
    """Return the columns of the record's key; None: it is neither JSON nor decoded, so they are not known."""
    if isinstance(key, bytes):
        try:
            key = json.loads(key)
        except (ValueError, RecursionError):
            return None
    if not isinstance(key, dict):
        return None
    if set(key) == {"schema", "payload"}:
        key = key["payload"]
    return sorted(key) if isinstance(key, dict) else None


def _position(source: Any) -> tuple[int, int]:
    """Return the commit before the change's transaction, and its own place; zeros before the first commit."""
    try:
        lsn, (commit, _) = source["lsn"], json.loads(source["sequence"])
        if source.get("connector", "postgresql") == "postgresql" and type(lsn) is int:
            return (0, 0) if commit is None else (int(commit), lsn)
    except (TypeError, KeyError, ValueError):
        pass
    raise Unreadable("it has no position in a log of PostgreSQL (source.lsn and source.sequence)")


# ---- values


class Unreadable(ValueError):
    """Why a record or a value cannot be believed."""


def converter(type_: str, encoding: str | None) -> Convert | None:
    """Return a converter for columns of that Spark type; None: Debezium's values cannot have it.

    Args:
        type_: as `simpleString` says it.
        encoding: what the user has said; a schema in the record counts more.
    """
    if bits := BITS.get(type_):
        return partial(_integer, 1 << bits)
    if decimal := re.fullmatch(r"decimal\((\d+),(\d+)\)", type_):
        return partial(_decimal, int(decimal[1]), int(decimal[2]), encoding)
    if array := re.fullmatch(r"array<(\w+)>", type_):
        element = converter(array[1], None)
        return element and partial(_array, element)
    plain: dict[str, Convert] = {
        "string": _text,
        "boolean": _boolean,
        "float": partial(_real, MAX_SINGLE),
        "double": partial(_real, MAX_DOUBLE),
        "date": _date,
        "timestamp": partial(_time, encoding, True),
        "timestamp_ntz": partial(_time, encoding, False),
        "binary": partial(_binary, encoding),
    }
    return plain.get(type_)


def _integer(limit: int, value: Any, kind: Kind) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise Unreadable
    return value


def _boolean(value: Any, kind: Kind) -> bool:
    if type(value) is not bool:
        raise Unreadable
    return value


def _real(largest: float, value: Any, kind: Kind) -> float:
    """Return the nearest float to a decimal fraction; a whole number has to be one of them."""
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if type(value) is float:
        if math.isfinite(value) and abs(value) > largest:
            raise Unreadable
        return value
    if type(value) is not int or not abs(value) <= largest:
        raise Unreadable
    real = float(value)
    if largest == MAX_SINGLE:
        real = _round_to_single(value)
    if real != value:
        raise Unreadable
    return real


def _round_to_single(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _text(value: Any, kind: Kind) -> str:
    if kind.get("name") == PRECISE or isinstance(value, bytes):
        raise Unreadable
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _array(element: Convert, value: Any, kind: Kind) -> list[Any]:
    if not isinstance(value, list):
        raise Unreadable
    return [None if item is None else element(item, {}) for item in value]


# ---- bytes and decimals


def _binary(encoding: str | None, value: Any, kind: Kind) -> bytes:
    if isinstance(value, bytes):
        return value
    if kind.get("type") == "bytes":
        encoding = "base64"
    if not isinstance(value, str) or encoding not in ("base64", "hex"):
        raise Unreadable
    if encoding == "base64":
        return base64.b64decode(value, validate=True)
    return bytes.fromhex(value)


def _decimal(precision: int, scale: int, encoding: str | None, value: Any, kind: Kind) -> Decimal:
    decimal = _any_decimal(encoding, value, kind)
    fitting = decimal.quantize(Decimal(1).scaleb(-scale), context=DIGITS)
    if fitting != decimal or len(fitting.as_tuple().digits) > precision:
        raise Unreadable
    return fitting


def _any_decimal(encoding: str | None, value: Any, kind: Kind) -> Decimal:
    if isinstance(value, Decimal):
        return value
    if isinstance(value, dict) and set(value) == {"scale", "value"}:
        return _decode_unscaled(value["value"], int(value["scale"]))
    if isinstance(value, str) and kind.get("name") == PRECISE:
        return _decode_unscaled(value, int(kind["parameters"]["scale"]))
    if isinstance(value, str) and (encoding == "string" or kind.get("type") == "string"):
        try:
            return Decimal(value)
        except InvalidOperation:
            raise Unreadable from None
    raise Unreadable


def _decode_unscaled(value: str | bytes, scale: int) -> Decimal:
    """Decode a decimal without its scale: two's complement, most significant byte first."""
    if isinstance(value, str):
        value = base64.b64decode(value, validate=True)
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, DIGITS)


# ---- times


def _date(value: Any, kind: Kind) -> int:
    """Return whole days since 1970."""
    if type(value) is int:
        return _require_within(DAYS, value)
    if isinstance(value, str):
        value = date.fromisoformat(value.removesuffix("Z"))
    if not isinstance(value, date) or isinstance(value, datetime):
        raise Unreadable
    return (value - date(1970, 1, 1)).days


def _time(encoding: str | None, zoned: bool, value: Any, kind: Kind) -> int:
    """Return whole microseconds since 1970."""
    if type(value) is int:
        return _micros(value, PER_MICRO.get(kind.get("name", ""), encoding))
    if isinstance(value, str):
        if FINER_THAN_MICROS.search(value):  # Python would cut it off
            raise Unreadable
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise Unreadable
    if not zoned and value.utcoffset():
        raise Unreadable
    return (value.replace(tzinfo=value.tzinfo or UTC) - UNIX_EPOCH) // MICROSECOND


def _micros(number: int, unit: str | None) -> int:
    if unit == "nanos" and number % 1000 == 0:
        return _require_within(MICROSECOND_RANGE, number // 1000)
    if unit == "millis":
        return _require_within(MICROSECOND_RANGE, number * 1000)
    if unit == "micros":
        return _require_within(MICROSECOND_RANGE, number)
    raise Unreadable


def _require_within(limits: tuple[int, int], number: int) -> int:
    """Return days or microseconds of the years 1 to 9999.

    Raises:
        Unreadable: PostgreSQL's 'infinity', for one, is written as a number far outside.
    """
    if not limits[0] <= number <= limits[1]:
        raise Unreadable
    return number
