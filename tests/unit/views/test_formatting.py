"""Values as people read them."""

from datetime import UTC, datetime

import pytest

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.offsets import TopicRange
from onceonly.views import descriptions, formatting

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


def checkpoint(**columns) -> Checkpoint:
    given = {
        "pipeline": "p",
        "epoch": 4,
        "state": State.STAGED,
        "definition": Definition({"sinks": [{"name": "out"}], "gate": {"on_fail": "hold", "keep_failed": False}}),
        "ranges": (TopicRange("t", "id", {0: (0, 1)}),),
        "interval": None,
        "owners": ("o",),
        "first_seq": 1,
        "last_seq": 1,
        "planned_at": NOON,
        "updated_at": NOON,
    }
    return Checkpoint(**(given | columns))


@pytest.mark.parametrize(
    ("handles", "words"),
    [
        ({}, "-"),
        ({"out": {"rows": 4_200}}, "4,200"),
        ({"out": {"rows": 200}, "late": {"rows": 23}}, "out 200, late 23"),
        ({"out": {"rows": 0}, "late": {"rows": 0}}, "0"),
        ({"out": {"rows": 7}, "late": {}}, "out 7, late -"),
    ],
)
def test_rows_are_told_by_sink(handles, words):
    assert formatting.rows(checkpoint(handles=handles)) == words


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "staged"),
        ({"failed_attempts": frozenset({1}), "attempt": 1, "verdict": {"outcome": "failed"}}, "held"),
        ({"failed_attempts": frozenset({1}), "attempt": 2}, "staged"),
        ({"failed_attempts": frozenset({1}), "attempt": 1, "approved": {"who": "ann"}}, "staged"),
        ({"failed_attempts": frozenset({1}), "attempt": 1, "state": State.ABORTED}, "aborted"),
    ],
)
def test_held_is_what_waits_for_somebody_to_decide(columns, words):
    assert formatting.state(checkpoint(**columns)) == words


def test_a_pipelines_state_is_no_unknown_place():
    handle = {"kind": "state", "unit": "changed key", "target": "the pipeline's state", "rows": 12, "runs": []}
    assert descriptions.describe_target(handle) == "the pipeline's state"
    assert descriptions.describe_staged_rows(handle) == "12 changed keys"


def test_a_sink_of_another_package_names_its_own_unit_and_target():
    handle = {"kind": "redis", "unit": "key", "target": "redis db 3", "rows": 1}
    assert (descriptions.describe_staged_rows(handle), descriptions.describe_target(handle)) == ("1 key", "redis db 3")
    assert descriptions.describe_staged_rows({"kind": "redis", "rows": 2}) == "2 rows"


@pytest.mark.parametrize(
    ("by_sink", "words"),
    [
        ({"lake": 1}, "1 row"),
        ({"lake": 0}, "0 rows"),
        ({"lake": 6_000}, "6,000 rows"),
        ({"lake": None}, "- rows"),
        ({"lake": 1, "late": 1}, "lake 1, late 1 rows"),
    ],
)
def test_one_row_is_no_rows(by_sink, words):
    assert formatting.count_rows(by_sink) == words


def test_one_offset_in_one_partition():
    range_ = TopicRange("flights", "id", {0: (4, 5), 1: (7, 7)})
    assert descriptions.describe_range(range_) == "1 offset of 'flights' in 1 partition"


def test_unsettled_is_a_count_and_the_oldest_epoch():
    one, two = checkpoint(epoch=4), checkpoint(epoch=6)
    assert descriptions.describe_unsettled([]) == ""
    assert descriptions.describe_unsettled([one]) == "epoch 4"
    assert descriptions.describe_unsettled([one, two]) == "2, the oldest is epoch 4"


def test_by_which_schemas_the_records_are_decoded():
    reader = {"subject": "orders-value", "version": 3, "id": 5, "sha256": "ab"}
    value = {"writers": {"12": "cd", "5": "ab"}, "reader": reader}
    pins = {"orders": {"value": value, "key": {"writers": {"7": "ef"}}}}
    told = "orders key: id 7; orders value: ids 5, 12, read as orders-value 3 (id 5)"
    assert descriptions.describe_schemas(checkpoint(schemas=pins)) == told
    assert descriptions.describe_schemas(checkpoint()) == ""


def test_many_topics_are_counted():
    ranges = tuple(TopicRange(f"t{n}", "id", {0: (0, 100)}) for n in range(5))
    assert descriptions.describe_coverage(checkpoint(ranges=ranges)) == "500 offsets of 5 topics"
    assert descriptions.describe_coverage(checkpoint(ranges=ranges[:2])).endswith("100 offsets of 't1' in 1 partition")
