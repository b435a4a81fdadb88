"""The columns of JSON values, as Spark's DDL: found in a sample."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceonly.counts import count
from onceonly.json_values.columns import columns
from onceonly.json_values.reader import reader

PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LARGE, LARGEST = 2**63, 10**38
WIDER = {
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", "DECIMAL(38,0)"}): "DECIMAL(38,0)",
    frozenset({"DECIMAL(38,0)", "DOUBLE"}): "DOUBLE",
}
NOTHING, TEXT = "", "STRING"  # NOTHING: only nulls were seen
Kind = str | list[Any] | dict[str, Any]  # a type's name; the kind of an array's elements; kinds by field


@dataclass
class Inferred:
    """What a sample shows.

    Args:
        notes: places where its values leave a choice, for people.
        broken: how many values are no JSON object.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    values: int = 0
    broken: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def ddl(self) -> str:
        return ", ".join(f"{_name(name)} {_ddl(kind)}" for name, kind in self.fields.items())


def infer(values: Iterable[bytes | None]) -> Inferred:
    """The columns that take every value, or most of them: a note says so. Tombstones say nothing."""
    found, objects = Inferred(), []
    for value in values:
        if value is None:
            continue
        found.values += 1
        parsed = _object(value)
        if parsed is None:
            found.broken += 1
        else:
            objects.append(value)
            found.fields = _merged(found.fields, _kind(parsed), "value", found.notes)
    found.notes += [f"{at}: only nulls were seen, taken for STRING" for at in _unknown(found.fields, "value")]
    found.notes = [*dict.fromkeys(found.notes), *_unread(found, objects)]
    return found


def _unread(found: Inferred, objects: list[bytes]) -> list[str]:
    """What the columns do not take: values of different types have none that fits all."""
    if not found.fields:
        return []
    read = reader(columns(found.ddl), "value")
    reasons = [why for _, why in map(read, objects) if why]
    if not reasons:
        return []
    return [f"{count(len(reasons), 'value')} of {found.values} would be a bad record. The first: {reasons[0]}"]


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(value.decode(), parse_constant=_refuse)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _kind(value: Any) -> Any:
    match value:
        case None:
            return NOTHING
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -LARGE <= value < LARGE else "DECIMAL(38,0)" if abs(value) < LARGEST else TEXT
        case float():
            return "DOUBLE"
        case dict():
            return {name: _kind(each) for name, each in value.items()}
        case list():
            kind: Any = NOTHING
            for each in value:
                kind = _merged(kind, _kind(each), "", [])
            return [kind]
        case _:
            return TEXT


def _merged(one: Any, other: Any, at: str, notes: list[str]) -> Any:
    if one in (NOTHING, other) or other == NOTHING:
        return one or other
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merged(one.get(name, NOTHING), other.get(name, NOTHING), f"{at}.{name}", notes)
                for name in dict.fromkeys([*one, *other])}  # fmt: skip
    if isinstance(one, list) and isinstance(other, list):
        return [_merged(one[0], other[0], f"{at}[]", notes)]
    if isinstance(one, str) and isinstance(other, str) and (wider := WIDER.get(frozenset({one, other}))):
        return wider
    notes.append(f"{at}: values of different types, taken for STRING")
    return TEXT


def _unknown(kind: Any, at: str) -> list[str]:
    if isinstance(kind, list):
        return _unknown(kind[0], f"{at}[]")
    if isinstance(kind, dict):
        return [each for name, part in kind.items() for each in _unknown(part, f"{at}.{name}")]
    return [] if kind else [at]


def _ddl(kind: Any) -> str:
    if isinstance(kind, list):
        return f"ARRAY<{_ddl(kind[0])}>"
    if isinstance(kind, Mapping) and kind:
        return f"STRUCT<{', '.join(f'{_name(name)}: {_ddl(part)}' for name, part in kind.items())}>"
    return str(kind or TEXT)


def _name(name: str) -> str:
    return name if PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def alike(fields: Mapping[str, Any], at: str = "value") -> list[str]:
    """Names that differ in case alone, which are one column for Spark."""
    lower = [name.lower() for name in fields]
    found = [f"{at}.{name}" for name in fields if lower.count(name.lower()) > 1]
    for name, kind in fields.items():
        inner = kind[0] if isinstance(kind, list) else kind
        found += alike(inner, f"{at}.{name}") if isinstance(inner, dict) else []
    return found
