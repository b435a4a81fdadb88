"""Transactions by the names of their folders, and the names that a FileSink derives from a transaction."""

from __future__ import annotations

from collections.abc import Iterable

from onceonly.checkpoint.model import Transaction
from onceonly.storage.own_paths import MANIFESTS, has_transaction_name


def parse_transaction(name: object) -> Transaction | None:
    """Return the transaction of that name; None unless Onceonly could have given every part of the name."""
    return Transaction.parse(name) if isinstance(name, str) and has_transaction_name(name) else None


def list_transactions(folders: Iterable[str], prefix: str) -> list[Transaction]:
    """Return the transactions with that `Transaction.prefix` among the names of folders, in order."""
    transactions = []
    for name in sorted(folders):
        txn = Transaction.parse(name) if name.startswith(f"{prefix}-") else None
        if txn:
            transactions.append(txn)
    return transactions


def file_stem(txn: Transaction) -> str:
    """Return the first part of every name that a FileSink gives: pipeline, sink, epoch and state table."""
    return f"{txn.pipeline}-{txn.sink}-{txn.epoch:06d}-{txn.state_id[:8]}"


def manifest_path(txn: Transaction) -> str:
    """Return the path of the manifest of a transaction's files, relative to the target."""
    return f"{MANIFESTS}/{file_stem(txn)}.manifest"
