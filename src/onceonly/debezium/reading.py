"""A record of Debezium as a row, or why it is none. Plain Python: it runs on the workers, a batch at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.debezium.values import UNAVAILABLE, Convert, Kind, Unreadable

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


@dataclass(frozen=True)
class Reading:
    """How the records of one table are read.

    Args:
        columns: name -> Spark type and converter.
        keys: the columns of the primary key.
        without: columns that are left out.
    """

    columns: Mapping[str, tuple[str, Convert]]
    keys: Sequence[str]
    without: Sequence[str]

    def row(self, key: Any, value: Any, offset: int) -> Row:
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
        values = envelope.get("before" if op == "d" else "after")
        if not isinstance(values, dict):
            raise Unreadable("its row is null (REPLICA IDENTITY NOTHING?)")
        self._check_key(key, op, envelope.get("before"), values)
        self._check_columns(values)
        commit, lsn = _position(envelope.get("source"))
        row = {name: self._value(name, values, kinds, op) for name in self.columns}
        return {**row, "_commit": commit, "_lsn": lsn, "_offset": offset, "_deleted": op == "d"}

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
    document = _parse_json(value) if isinstance(value, bytes) else value
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
