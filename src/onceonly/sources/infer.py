"""The columns of JSON values, as Spark's DDL, inferred from a sample."""

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
    """The columns that a sample shows.

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
        return ", ".join(f"{_quote_name(name)} {_format_ddl(kind)}" for name, kind in self.fields.items())


def infer(values: Iterable[bytes | None]) -> Inferred:
    """Infer the columns that take every value, or most of them: a note says so. Tombstones say nothing."""
    inferred = Inferred()
    objects = []
    for value in values:
        if value is None:
            continue
        inferred.values += 1
        parsed = _parse_object(value)
        if parsed is None:
            inferred.broken += 1
        else:
            objects.append(value)
            inferred.fields = _merge_kinds(inferred.fields, _kind_of(parsed), "value", inferred.notes)
    for path in _list_null_paths(inferred.fields, "value"):
        inferred.notes.append(f"{path}: only nulls were seen, taken for STRING")
    inferred.notes = [*dict.fromkeys(inferred.notes), *_note_bad_values(inferred, objects)]
    return inferred


def _note_bad_values(inferred: Inferred, objects: list[bytes]) -> list[str]:
    """Return a note of the values that the columns do not take: values of different types have none that fits all."""
    if not inferred.fields:
        return []
    read = reader(columns(inferred.ddl), "value")
    reasons = [why for _, why in map(read, objects) if why]
    if not reasons:
        return []
    return [f"{count(len(reasons), 'value')} of {inferred.values} would be a bad record. The first: {reasons[0]}"]


def _parse_object(value: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(value.decode(), parse_constant=_refuse_constant)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _kind_of(value: Any) -> Any:
    match value:
        case None:
            return NOTHING
        case bool():
            return "BOOLEAN"
        case int():
            return _kind_of_integer(value)
        case float():
            return "DOUBLE"
        case dict():
            return {name: _kind_of(field_value) for name, field_value in value.items()}
        case list():
            kind: Any = NOTHING
            for element in value:
                kind = _merge_kinds(kind, _kind_of(element), "", [])
            return [kind]
        case _:
            return TEXT


def _kind_of_integer(value: int) -> str:
    if -LARGE <= value < LARGE:
        return "BIGINT"
    return "DECIMAL(38,0)" if abs(value) < LARGEST else TEXT


def _merge_kinds(one: Any, other: Any, at: str, notes: list[str]) -> Any:
    """Return a kind that takes the values of both; STRING and a note where none does."""
    if one in (NOTHING, other) or other == NOTHING:
        return one or other
    if isinstance(one, dict) and isinstance(other, dict):
        fields = {}
        for name in dict.fromkeys([*one, *other]):  # in the order in which they were first seen
            fields[name] = _merge_kinds(one.get(name, NOTHING), other.get(name, NOTHING), f"{at}.{name}", notes)
        return fields
    if isinstance(one, list) and isinstance(other, list):
        return [_merge_kinds(one[0], other[0], f"{at}[]", notes)]
    if isinstance(one, str) and isinstance(other, str):
        wider = WIDER.get(frozenset({one, other}))
        if wider:
            return wider
    notes.append(f"{at}: values of different types, taken for STRING")
    return TEXT


def _list_null_paths(kind: Any, at: str) -> list[str]:
    """Return the places of which only nulls were seen."""
    if isinstance(kind, list):
        return _list_null_paths(kind[0], f"{at}[]")
    if isinstance(kind, dict):
        paths = []
        for name, field_kind in kind.items():
            paths += _list_null_paths(field_kind, f"{at}.{name}")
        return paths
    return [] if kind else [at]


def _format_ddl(kind: Any) -> str:
    if isinstance(kind, list):
        return f"ARRAY<{_format_ddl(kind[0])}>"
    if isinstance(kind, Mapping) and kind:
        fields = [f"{_quote_name(name)}: {_format_ddl(field_kind)}" for name, field_kind in kind.items()]
        return f"STRUCT<{', '.join(fields)}>"
    return str(kind or TEXT)


def _quote_name(name: str) -> str:
    return name if PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def alike(fields: Mapping[str, Any], at: str = "value") -> list[str]:
    """Return the names that differ in case alone, which are one column for Spark."""
    lower_names = [name.lower() for name in fields]
    paths = [f"{at}.{name}" for name in fields if lower_names.count(name.lower()) > 1]
    for name, kind in fields.items():
        inner = kind[0] if isinstance(kind, list) else kind
        if isinstance(inner, dict):
            paths += alike(inner, f"{at}.{name}")
    return paths
