"""The columns of JSON values, as DDL of Spark, inferred from the last records of a topic."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from onceonly.counts import count
from onceonly.errors import NotCommitted
from onceonly.json_values.columns import parse_columns
from onceonly.json_values.reader import reader
from onceonly.kafka.connection import KafkaConnection
from onceonly.kafka.topic import EARLIEST, LATEST, REQUEST_SECONDS, PatientConsumer, TopicClient

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
BIGINT_LIMIT, DECIMAL_LIMIT = 2**63, 10**38
WIDER_TYPES = {
    frozenset({"BIGINT", "DOUBLE"}): "DOUBLE",
    frozenset({"BIGINT", "DECIMAL(38,0)"}): "DECIMAL(38,0)",
    frozenset({"DECIMAL(38,0)", "DOUBLE"}): "DOUBLE",
}
NULL_KIND, TEXT_KIND = "", "STRING"  # NULL_KIND: only nulls were seen
Kind = str | list[Any] | dict[str, Any]  # a type's name; the kind of an array's elements; kinds by field


@dataclass
class InferredColumns:
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


def infer_columns(values: Iterable[bytes | None]) -> InferredColumns:
    """Infer the columns that take every value, or most of them: a note says so. Tombstones say nothing."""
    inferred = InferredColumns()
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


def _note_bad_values(inferred: InferredColumns, objects: list[bytes]) -> list[str]:
    """Return a note of the values that the columns do not take: values of different types have none that fits all."""
    if not inferred.fields:
        return []
    read = reader(parse_columns(inferred.ddl), "value")
    reasons = []
    for value in objects:
        why = read(value)[1]
        if why:
            reasons.append(why)
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
            return NULL_KIND
        case bool():
            return "BOOLEAN"
        case int():
            return _kind_of_integer(value)
        case float():
            return "DOUBLE"
        case dict():
            return {name: _kind_of(field_value) for name, field_value in value.items()}
        case list():
            kind: Any = NULL_KIND
            for element in value:
                kind = _merge_kinds(kind, _kind_of(element), "", [])
            return [kind]
        case _:
            return TEXT_KIND


def _kind_of_integer(value: int) -> str:
    if -BIGINT_LIMIT <= value < BIGINT_LIMIT:
        return "BIGINT"
    if abs(value) < DECIMAL_LIMIT:
        return "DECIMAL(38,0)"
    return TEXT_KIND


def _merge_kinds(one: Any, other: Any, at: str, notes: list[str]) -> Any:
    """Return a kind that takes the values of both; STRING and a note where none does."""
    if one in (NULL_KIND, other) or other == NULL_KIND:
        return one or other
    if isinstance(one, dict) and isinstance(other, dict):
        fields = {}
        for name in dict.fromkeys([*one, *other]):  # in the order in which they were first seen
            fields[name] = _merge_kinds(one.get(name, NULL_KIND), other.get(name, NULL_KIND), f"{at}.{name}", notes)
        return fields
    if isinstance(one, list) and isinstance(other, list):
        return [_merge_kinds(one[0], other[0], f"{at}[]", notes)]
    if isinstance(one, str) and isinstance(other, str):
        wider = WIDER_TYPES.get(frozenset({one, other}))
        if wider:
            return wider
    notes.append(f"{at}: values of different types, taken for STRING")
    return TEXT_KIND


def _list_null_paths(kind: Any, at: str) -> list[str]:
    """Return the places of which only nulls were seen."""
    if isinstance(kind, list):
        return _list_null_paths(kind[0], f"{at}[]")
    if isinstance(kind, dict):
        paths = []
        for name, field_kind in kind.items():
            paths += _list_null_paths(field_kind, f"{at}.{name}")
        return paths
    if kind:
        return []
    return [at]


def _format_ddl(kind: Any) -> str:
    if isinstance(kind, list):
        return f"ARRAY<{_format_ddl(kind[0])}>"
    if isinstance(kind, Mapping) and kind:
        fields = [f"{_quote_name(name)}: {_format_ddl(field_kind)}" for name, field_kind in kind.items()]
        return f"STRUCT<{', '.join(fields)}>"
    return str(kind or TEXT_KIND)


def _quote_name(name: str) -> str:
    if PLAIN_NAME.fullmatch(name):
        return name
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def list_case_clashes(fields: Mapping[str, Any], at: str = "value") -> list[str]:
    """Return the names that differ in case alone, which are one column for Spark."""
    name_counts = Counter(map(str.lower, fields))
    paths = [f"{at}.{name}" for name in fields if name_counts[name.lower()] > 1]
    for name, kind in fields.items():
        inner = kind[0] if isinstance(kind, list) else kind
        if isinstance(inner, dict):
            paths += list_case_clashes(inner, f"{at}.{name}")
    return paths


def read_last_values(topic: str, kafka: KafkaConnection, most: int) -> Iterator[bytes | None]:
    """Yield the values of at most about `most` committed records, the last ones of each partition.

    Raises:
        InvalidPipeline: no such topic, or the brokers refuse the credentials.
        NotCommitted: the brokers do not answer.
    """
    from confluent_kafka import KafkaError, TopicPartition

    client = TopicClient(topic, kafka)
    _, partitions = client.describe()
    starts, ends = client.list_offsets(partitions, EARLIEST), client.list_offsets(partitions, LATEST)
    share = -(-most // len(partitions))  # rounded up
    first_offsets: dict[int, int] = {}
    for partition in partitions:
        start, end = starts[partition].offset, ends[partition].offset
        if start < end:
            first_offsets[partition] = max(start, end - share)
    unfinished = set(first_offsets)
    settings = {"group.id": "onceonly", "enable.auto.commit": False, "enable.partition.eof": True}  # never joined
    settings = {**client.make_config(), **settings, "isolation.level": "read_committed"}
    with closing(PatientConsumer(settings, REQUEST_SECONDS)) as reader:
        reader.consumer.assign([TopicPartition(topic, *position) for position in first_offsets.items()])
        while unfinished:
            message = reader.poll()
            if message is None:
                raise NotCommitted(
                    f"topic '{topic}': no record, no progress and no end of the log within {REQUEST_SECONDS:.0f} s.",
                    f"The Kafka broker at {kafka.describe()} did not answer.",
                    "This is safe to retry. Nothing was written.",
                    code="no-answer",
                )
            partition = int(message.partition() or 0)
            error = message.error()
            if error and error.code() != KafkaError._PARTITION_EOF:
                raise NotCommitted(
                    f"topic '{topic}': {error.str()}.",
                    "",
                    "This is safe to retry. Nothing was written.",
                    code="no-answer",
                )
            offset = ends[partition].offset if error else int(message.offset() or 0)
            if offset < ends[partition].offset:
                yield message.value()
            if offset >= ends[partition].offset - 1:
                unfinished.discard(partition)
