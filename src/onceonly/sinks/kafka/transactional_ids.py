"""Transactional ids: unique ones, which contain the transaction's name, and pooled ones, which contain a leased slot.

A pooled id is reused by later attempts, and by parallel attempts of a task: each fences the one before. The owner is
identified by producer id and epoch, and by the lease of the slot.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from onceonly.checkpoint.model import Transaction

POOLED_ID = re.compile(r"[^-]+-[^-]+-[^-]+-[^-]+-pool-(\d+)-\d+")


@dataclass(frozen=True)
class Ids:
    """The ids of one transaction of a sink.

    Args:
        prefix: the sink's id_prefix.
        slot: of the pool; None if there is no pool.
    """

    prefix: str
    txn: Transaction
    slot: int | None

    def first(self, part: str | int) -> str:
        """Return the id for the rows of one Spark partition."""
        if self.slot is None:
            return self.unique(part)
        return f"{self.prefix}-{self.txn.prefix}-pool-{self.slot}-{part}"

    def unique(self, part: str | int) -> str:
        """Return a new id for rows whose transaction was lost.

        With a pooled id, processes could fence each other forever.
        """
        return f"{self.prefix}-{self.txn.name}-{part}-{uuid.uuid4().hex[:8]}"


def owner(id: str) -> Transaction | None:
    """Return the transaction to which a unique id belongs; None for any other id."""
    words = id.split("-")
    if len(words) < 9:
        return None
    return Transaction.parse("-".join(words[-8:-2]))


def unique_ids_pattern(name: str) -> str:
    """Return a pattern of the unique ids that contain this name or prefix."""
    return f".+-{re.escape(name)}-.+"


def pooled_ids_pattern(prefix: str) -> str:
    """Return a pattern of the pooled ids of one sink, with any id_prefix."""
    return f".+-{re.escape(prefix)}-pool-[0-9]+-[0-9]+"


def slot_of(id: str) -> int | None:
    """Return the slot of a pooled id; None for a unique one."""
    match = POOLED_ID.fullmatch(id)
    return int(match[1]) if match else None
