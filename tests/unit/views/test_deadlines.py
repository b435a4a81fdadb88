"""Whoever looks is warned before pending transactions time out."""

from datetime import UTC, datetime, timedelta

import pytest

from onceonly.checkpoint.model import Checkpoint, Event, Row, fold
from onceonly.views import summary

OPENED = datetime(2013, 1, 1, 12, tzinfo=UTC)
RANGES = [{"topic": "flights", "topic_id": "a", "partitions": {"0": [0, 5]}}]
BODIES = {
    Event.PLANNED: {"definition": {}, "ranges": RANGES},
    Event.CLAIMED: {"nonce": "abc", "state_id": "5e1f", "worker": "vm:7"},
    Event.STAGED: {"handles": {"late": {"opened_at": OPENED.isoformat(), "timeout": 900.0}, "lake": {"rows": 5}}},
}


def checkpoint(*events: Event) -> Checkpoint:
    staged = [Event.PLANNED, Event.CLAIMED, Event.STAGED, *events]
    return fold(
        Row("flights", seq, 4, event, 1, owner="run-1", sink="late", decision=1, body=BODIES.get(event, {}))
        for seq, event in enumerate(staged, 1)
    )[4]


@pytest.mark.parametrize(("minutes", "told"), [(0, []), (11, []), (12, ["80%"]), (20, ["133%"])])
def test_a_staged_checkpoint_warns_from_80_percent_on(minutes, told):
    found = list(summary.list_timeout_warnings(checkpoint(), OPENED + timedelta(minutes=minutes)))
    assert [share in line for share, line in zip(told, found, strict=True)] == [True] * len(told)
    assert all("sink 'late'" in line and "onceonly recover flights" in line for line in found)


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ((Event.COMMITTING,), 1),
        ((Event.COMMITTING, Event.PUBLISHED), 0),
        ((Event.COMMITTING, Event.IN_DOUBT), 0),
        ((Event.ABORTING, Event.ABORTED), 0),
    ],
)
def test_only_what_is_still_pending_warns(events, count):
    assert len(list(summary.list_timeout_warnings(checkpoint(*events), OPENED + timedelta(hours=1)))) == count
