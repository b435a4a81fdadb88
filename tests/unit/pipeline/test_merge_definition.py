"""How changes are merged, as it is declared, stored and read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from codes import raises

from onceonly.errors import InvalidPipeline
from onceonly.pipeline.registry import sink_from_json, sink_json
from onceonly.pipeline.sinks import DeltaSink, Merge

GOOD = Merge(keys=["id"], order_by=["lsn"], deletes="deleted")


@pytest.mark.parametrize(
    ("options", "code", "why"),
    [
        ({"keys": [], "order_by": ["at"]}, "option-missing", "keys=.* names no columns"),
        ({"keys": "id", "order_by": ["at"]}, "option-missing", "keys='id'.* names no columns"),
        ({"keys": ["id"], "order_by": []}, "option-missing", "order_by=.* names no columns"),
        ({"keys": ["id"], "order_by": ["id"]}, "names-not-distinct", "names a column twice"),
        ({"keys": ["id"], "order_by": ["at"], "deletes": "id"}, "names-not-distinct", "names a column twice"),
    ],
)
def test_a_merge_that_cannot_be_is_refused(options: dict[str, Any], code: str, why: str) -> None:
    with raises(InvalidPipeline, code, match=why):
        Merge(**options)


@pytest.mark.parametrize("other", [{"replace": "partitions", "partition_by": ["day"]}, {"widen": True}])
def test_what_does_not_go_with_it_is_refused(other: dict[str, Any]) -> None:
    with raises(InvalidPipeline, "options-conflict"):
        DeltaSink("lake", "lake", merge=GOOD, **other)


def test_it_is_the_same_after_it_was_stored() -> None:
    sink = DeltaSink("lake", "lake", merge=GOOD)
    assert sink_from_json(json.loads(json.dumps(sink_json(sink)))) == sink


@pytest.mark.parametrize("stored", [{"keys": ["id"]}, {"keys": ["id"], "order_by": ["at"], "by": 1}, ["id"], "id"])
def test_what_was_altered_in_the_state_table_is_refused(stored: Any) -> None:
    data = {**sink_json(DeltaSink("lake", "lake", merge=GOOD)), "merge": stored}
    with pytest.raises(TypeError, match="merge"):
        sink_from_json(data)
