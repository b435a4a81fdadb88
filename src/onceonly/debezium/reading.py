"""A record of Debezium as a row, or why it is none. Plain Python: it runs on the workers, a batch at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceonly.debezium.values import UNAVAILABLE, Convert, Kind, Unreadable

OTHERS = {
    "t": "it says that the table was emptied (TRUNCATE), which is not a change of single rows. "
    "Fill another table from a new snapshot",
    "m": "it is a message in PostgreSQL's log, not a change of a row. Leave it out in the transform",
}
APART = (
    "was not sent, because it did not change and PostgreSQL stores it out of line (TOAST). "
    "Use REPLICA IDENTITY FULL, or Debezium's reselect post processor"
)
SHOWN = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
DOUBTFUL = ("decimal", "timestamp", "binary")
WRONG = (ValueError, ArithmeticError, TypeError, LookupError, AttributeError)  # of a value, or of what describes it
Row = dict[str, Any]


@dataclass(frozen=True)
class Reading:
    """How the records of one table are read.

    Args:
        columns: name -> Spark type and converter.
    """

    columns: Mapping[str, tuple[str, Convert]]
    keys: Sequence[str]
    without: Sequence[str]

    def row(self, key: Any, value: Any, offset: int) -> Row:
        """Raises Unreadable with the reason. `key` and `value`: bytes of JSON, or what they were decoded to."""
        kinds, envelope = _envelope(value)
        op = str(envelope.get("op") or "")
        if op in OTHERS:
            raise Unreadable(OTHERS[op])
        if op not in ("c", "u", "r", "d"):
            raise Unreadable(f"its op is not known: {op}" if op else "it is not a Debezium envelope: it has no op")
        found = envelope.get("before" if op == "d" else "after")
        if not isinstance(found, dict):
            raise Unreadable("its row is null (REPLICA IDENTITY NOTHING?)")
        self._check_key(key, op, envelope.get("before"), found)
        self._check_known(found)
        commit, lsn = _position(envelope.get("source"))
        row = {name: self._value(name, found, kinds, op) for name in self.columns}
        return {**row, "_commit": commit, "_lsn": lsn, "_offset": offset, "_deleted": op == "d"}

    def _value(self, name: str, found: Row, kinds: Mapping[str, Kind], op: str) -> Any:
        """Of a deleted row only the key: PostgreSQL says no more of it, and Debezium fills in zeros and empty texts."""
        value = found.get(name)
        if value is None and name in self.keys:
            raise Unreadable(f"its key '{name}' is null or missing")
        if value is None or (op == "d" and name not in self.keys):
            return None
        if value in UNAVAILABLE:
            raise Unreadable(f"column '{name}' {APART}")
        type_, convert = self.columns[name]
        try:
            return convert(value, kinds.get(name, {}))
        except WRONG:
            doubt = ", or is ambiguous: see Changes(encodings=…)" if type_.startswith(DOUBTFUL) else ""
            raise Unreadable(f"column '{name}' is {SHOWN.get(type(value), 'a value')} and not {type_}{doubt}") from None

    def _check_key(self, key: Any, op: str, before: Any, after: Row) -> None:
        names = _key_names(key)
        if names is not None and names != sorted(self.keys):
            raise Unreadable(f"its key is {names} and not that of Changes(keys={list(self.keys)})")
        for name in self.keys:
            if op == "u" and isinstance(before, dict) and before.get(name, after.get(name)) != after.get(name):
                raise Unreadable(f"an update has changed '{name}', so that is not the table's key")

    def _check_known(self, found: Row) -> None:
        if unknown := sorted(set(found) - set(self.columns) - set(self.without)):
            todo = "Add it to Changes(columns), or name it in without=[…]"
            raise Unreadable(f"its column {unknown} is not known. {todo}")


def _envelope(value: Any) -> tuple[Mapping[str, Kind], Row]:
    """What its schema says of the columns, and the envelope."""
    whole = _json(value) if isinstance(value, bytes) else value
    if not isinstance(whole, dict):
        raise Unreadable("it is not a single JSON object")
    if not isinstance(whole.get("payload"), dict):
        return {}, whole
    try:
        parts = (whole.get("schema") or {}).get("fields", [])
        fields: list[Kind] = next((part["fields"] for part in parts if part["field"] == "after"), [])
        return {each["field"]: each for each in fields}, whole["payload"]
    except (TypeError, KeyError, AttributeError):
        raise Unreadable("its schema is not one of Debezium") from None


def _json(value: bytes) -> Any:
    try:
        return json.loads(value.decode(), parse_float=_finite)
    except (ValueError, RecursionError):
        raise Unreadable("it is not a single JSON object") from None


def _finite(text: str) -> float:
    """Raises ValueError for what Python would read as infinity, such as 1e400."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _key_names(key: Any) -> list[str] | None:
    """The columns of the record's key; None: it is neither JSON nor decoded, so it cannot be told."""
    if isinstance(key, bytes):
        try:
            key = json.loads(key)
        except (ValueError, RecursionError):
            return None
    if not isinstance(key, dict):
        return None
    inner = key["payload"] if set(key) == {"schema", "payload"} else key
    return sorted(inner) if isinstance(inner, dict) else None


def _position(source: Any) -> tuple[int, int]:
    """The commit before the change's transaction, and its own place; zeros before the first commit."""
    try:
        lsn, (commit, _) = source["lsn"], json.loads(source["sequence"])
        if source.get("connector", "postgresql") == "postgresql" and type(lsn) is int:
            return (0, 0) if commit is None else (int(commit), lsn)
    except (TypeError, KeyError, ValueError):
        pass
    raise Unreadable("it has no position in a log of PostgreSQL (source.lsn and source.sequence)")
