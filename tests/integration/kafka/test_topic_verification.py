"""What a verification of topics finds, on a real broker: every damage by its code, and nothing where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from integration.projects.kafka_shelf import KafkaShelf, abort, delete_records, delete_topic, produce, recreate_topic

from onceonly.checkpoint.verification import Judgement
from onceonly.testing.ledger import list_codes

pytestmark = pytest.mark.integration

ALL_RIGHT = [(1, "right"), (2, "right"), (3, "right")]


@pytest.fixture
def shelf(tmp_path: Path, broker: str) -> KafkaShelf:
    shelf = KafkaShelf(tmp_path, broker)
    shelf.publish(1, 1, 2, 3)
    shelf.publish(2, 4, 5, 6, 7)
    shelf.publish(3, 8, 9)
    return shelf


@pytest.mark.parametrize("deep", [False, True])
def test_published_records_are_right(shelf: KafkaShelf, deep: bool) -> None:
    assert shelf.right(deep) == ALL_RIGHT
    assert shelf.wrong(deep) == []


def test_healthy_topic_is_not_accused(shelf: KafkaShelf) -> None:
    """Empty checkpoints, what was given up or aborted, rows that came once more, and records of others."""
    shelf.publish(4)
    shelf.sink().fence(shelf.stage(5, 10, 11), 5)
    shelf.sink().discard(shelf.txn(6), shelf.stage(6, 12, 13))
    shelf.publish(7, 4, 5, 6, 7)  # the rows of epoch 2, as --again writes them
    produce(shelf, [(0, b"100"), (1, b"101")], "theirs")
    produce(shelf, [(0, b"102")])
    abort(shelf, shelf.records_of(2))
    findings = shelf.ledger.verify(True)
    assert [finding for finding in findings if finding.judgement is not Judgement.RIGHT] == []
    assert list_codes(findings, Judgement.RIGHT) == [*ALL_RIGHT, (4, "right"), (7, "right")]


def test_pooled_ids_are_told_apart_by_their_epochs(tmp_path: Path, broker: str) -> None:
    shelf = KafkaShelf(tmp_path, broker, ids="pool")
    for epoch in (1, 2, 3):
        txn = shelf.txn(epoch)
        object.__setattr__(txn, "slot", 0)
        handle = json.loads(json.dumps(shelf.sink().stage(txn, [{"value": epoch}, {"value": 10 * epoch + 1}])))
        shelf.ledger.publish(epoch, handle)
    assert shelf.right(True) == ALL_RIGHT


def test_records_without_transactions_leave_no_evidence(tmp_path: Path, broker: str) -> None:
    shelf = KafkaShelf(tmp_path, broker, guarantee="at-least-once")
    shelf.publish(1, 1, 2)
    assert shelf.unknown(True) == [(1, "no-evidence")]


def add_in_a_transaction(shelf: KafkaShelf) -> None:
    produce(shelf, shelf.records_of(2), "copy")


def add_without_a_transaction(shelf: KafkaShelf) -> None:
    produce(shelf, shelf.records_of(2))


def add_to_another_partition(shelf: KafkaShelf) -> None:
    produce(shelf, [(0, value) for _, value in shelf.records_of(2)], "moved")


def edit_rows(shelf: KafkaShelf) -> None:
    handle = shelf.handle_of(2)
    handle["parts"][0]["rows"] += 1
    shelf.ledger.change(2, handle=handle)


def edit_digest(shelf: KafkaShelf) -> None:
    shelf.ledger.change(2, handle={**shelf.handle_of(2), "digest": "0123456789abcdef"})


def edit_producer(shelf: KafkaShelf) -> None:
    handle = shelf.handle_of(2)
    handle["parts"][0]["tx"]["producer_id"] += 100_000
    shelf.ledger.change(2, handle=handle)


def edit_offsets(shelf: KafkaShelf) -> None:
    handle = shelf.handle_of(2)
    handle["parts"][0]["tx"]["partitions"][0][3] += 100_000
    shelf.ledger.change(2, handle=handle)


def remove_from_state(shelf: KafkaShelf) -> None:
    shelf.remove_from_state(2)


def edit_cluster(shelf: KafkaShelf) -> None:
    shelf.ledger.change(2, handle={**shelf.handle_of(2), "cluster": "another"})


DAMAGES: list[tuple[Callable[[KafkaShelf], None], bool, set[str]]] = [  # damage, whether rows are read, codes
    (add_in_a_transaction, True, {"rows-twice"}),
    (add_without_a_transaction, True, {"rows-twice"}),
    (add_to_another_partition, True, {"rows-twice"}),
    (delete_topic, False, {"target-missing"}),
    (recreate_topic, False, {"target-replaced"}),
    (edit_rows, True, {"row-count"}),
    (edit_digest, True, {"records-differ"}),
    (edit_producer, True, {"row-count"}),
    (edit_offsets, False, {"target-went-back"}),
    (edit_cluster, False, {"target-replaced"}),
    (remove_from_state, False, {"commit-unrecorded"}),
]


@pytest.mark.parametrize(("damage", "deep", "codes"), DAMAGES, ids=[damage.__name__ for damage, _, _ in DAMAGES])
def test_damage_is_named(shelf: KafkaShelf, damage: Callable[[KafkaShelf], None], deep: bool, codes: set[str]) -> None:
    damage(shelf)
    wrong = shelf.wrong(True)
    assert {code for _, code in wrong} == codes
    assert ({epoch for epoch, _ in wrong} & {2, None}) != set()
    assert bool(shelf.wrong()) is not deep


def test_deleted_records_are_no_longer_known(shelf: KafkaShelf) -> None:
    delete_records(shelf, 2)
    for deep in (False, True):
        assert shelf.unknown(deep) == [(1, "history-gone"), (2, "history-gone")]
        assert shelf.right(deep) == [(3, "right")]
        assert shelf.wrong(deep) == []


def test_publication_that_is_not_recorded_yet_is_unknown(shelf: KafkaShelf) -> None:
    shelf.remove_from_state(3)
    for deep in (False, True):
        assert (shelf.unknown(deep), shelf.wrong(deep)) == ([(None, "not-recorded-yet")], [])


def test_open_transaction_is_named(shelf: KafkaShelf) -> None:
    """As if the state table recorded a publication that never ended."""
    handle = shelf.stage(4, 20, 21)
    last = shelf.ledger.published[-1]
    shelf.ledger.published.append(
        type(last)(4, 4, handle, last.publication, last.at),
    )
    assert [code for epoch, code in shelf.wrong(True) if epoch == 4][:1] in (["transaction-open"], ["target-went-back"])
    shelf.sink().discard(shelf.txn(4), handle)
    assert [code for epoch, code in shelf.wrong(True) if epoch == 4] == ["transaction-aborted"]
