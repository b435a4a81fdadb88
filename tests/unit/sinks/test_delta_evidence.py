"""The one number in a Delta log that says which decision of a sink was published, and by which transaction."""

from __future__ import annotations

import pytest
from codes import raises

from onceonly.checkpoint.model import Transaction
from onceonly.delta import txn_identifiers
from onceonly.errors import CannotPublish, Fenced, StateBehind
from onceonly.sinks.delta import evidence
from onceonly.sinks.delta.handle import DeltaHandle


def folder(nonce: str) -> str:
    return "staged-" + Transaction("5e1f" * 8, "flights", "lake", 7, 2, nonce).name


def handle(nonce: str) -> DeltaHandle:
    table = {"uri": "/lake", "table_id": "1a", "fingerprint": "2b", "added": [], "publish": "delta-rs"}
    txn = {"app_id": "onceonly/5e1f/flights/lake", "folder": folder(nonce), "files": 1, "rows": 3, "bytes": 100}
    return DeltaHandle.parse("lake", {"kind": "delta", **table, **txn})


OURS = txn_identifiers.txn_version(7, folder("a1b2c3d4e5f6"))
OTHER = txn_identifiers.txn_version(7, folder("0a0b0c0d0e0f"))


def test_it_reads_as_the_decision_and_the_beginning_of_the_nonce() -> None:
    assert f"{OURS:x}" == "7a1b2c3d4"
    assert txn_identifiers.decision_of(OURS) == 7


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (None, txn_identifiers.TxnMeaning.EARLIER),
        (txn_identifiers.txn_version(6, folder("f" * 12)), txn_identifiers.TxnMeaning.EARLIER),
        (txn_identifiers.closing_version(6), txn_identifiers.TxnMeaning.EARLIER),
        (OURS, txn_identifiers.TxnMeaning.OURS),
        (OTHER, txn_identifiers.TxnMeaning.ANOTHER),
        (txn_identifiers.txn_version(7, folder("f" * 12)), txn_identifiers.TxnMeaning.ANOTHER),
        (txn_identifiers.closing_version(7), txn_identifiers.TxnMeaning.GIVEN_UP),
        (txn_identifiers.txn_version(8, folder("a1b2c3d4e5f6")), txn_identifiers.TxnMeaning.LATER),
        (txn_identifiers.closing_version(8), txn_identifiers.TxnMeaning.LATER),
    ],
)
def test_what_a_version_says_to_decision_seven(seen: int | None, says: txn_identifiers.TxnMeaning) -> None:
    assert txn_identifiers.interpret(seen, OURS) is says


def test_whatever_the_nonce_a_transaction_is_below_the_end_of_its_decision_and_above_the_one_before() -> None:
    for nonce in ("0" * 12, "f" * 12, "ffffffff0000"):
        assert (
            txn_identifiers.closing_version(6)
            < txn_identifiers.txn_version(7, folder(nonce))
            < txn_identifiers.closing_version(7)
            < 2**63
        )


def test_what_may_be_published_and_what_is_published_already() -> None:
    assert evidence.find_outcome("lake", handle("a1b2c3d4e5f6"), None, OURS) is None
    done = evidence.find_outcome("lake", handle("a1b2c3d4e5f6"), OURS, OURS)
    assert done is not None and done.already and done.detail == {"rows": 3}


@pytest.mark.parametrize("seen", [OTHER, txn_identifiers.txn_version(9, folder("a1b2c3d4e5f6"))])
def test_what_the_state_table_does_not_know_is_refused_with_the_command_to_give(seen: int) -> None:
    with raises(StateBehind, "state-behind") as error:
        evidence.find_outcome("lake", handle("a1b2c3d4e5f6"), seen, OURS)
    assert f"({seen:x})" in error.value.why
    assert "onceonly state forward FILE.py:NAME --decision" in error.value.todo


def test_what_was_given_up_is_fenced() -> None:
    with raises(Fenced, "sink-given-up"):
        evidence.find_outcome("lake", handle("a1b2c3d4e5f6"), txn_identifiers.closing_version(7), OURS)


@pytest.mark.parametrize("name", ["", "staged-x", "../staged-s-p-l-1-1-a1b2c3d4e5f6", "staged-s-p/../l-1-1-a1b2c3d4"])
def test_a_folder_that_is_no_transactions_is_refused(name: str) -> None:
    with raises(CannotPublish, "handle-damaged"):
        txn_identifiers.txn_version(1, name)
