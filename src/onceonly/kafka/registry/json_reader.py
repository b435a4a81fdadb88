"""Records of JSON that begin with the id of a registered schema, as rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from onceonly.json_values.reader import Read, ReadOne, reader
from onceonly.kafka.registry.json_schema import checker
from onceonly.kafka.registry.wire import HEAD, UNFRAMED, UNKNOWN, head_of, id_of

_cached_checker = lru_cache(1_000)(checker)  # of ids in one checkpoint


def framed_reader(type_: Any, part: str, rules: Mapping[int, str | None]) -> ReadOne:
    """Return a function that reads one record.

    Args:
        rules: by schema id: what its values have to follow, from `json_schema.rules`; None: the columns alone.
    """
    readers = {}
    for id, text in rules.items():
        check = _cached_checker(text) if text else None
        readers[head_of(id)] = reader(type_, part, check)

    def read(data: bytes | None) -> Read:
        if data is None:
            return None, None
        if read_payload := readers.get(data[:HEAD]):
            return read_payload(data[HEAD:])
        id = id_of(data)
        return None, UNFRAMED if id is None else UNKNOWN % id

    return read
