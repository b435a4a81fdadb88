"""Transactional ids: unique, with the name of the transaction in it; or of a pool, with a slot that is leased.

A pooled id is used by one attempt after the other, and by task attempts side by side: each takes it from the one
before. What belongs to whom is told by producer id and epoch, and by who holds the slot.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from onceonly.checkpoint.model import Transaction

PLACE = re.compile(r"[^-]+-[^-]+-[^-]+-[^-]+-pool-(\d+)-\d+")


@dataclass(frozen=True)
class Ids:
    """The ids of one transaction of a sink.

    Args:
        prefix: the sink's id_prefix.
        slot: of the pool; None: there is no pool.
    """

    prefix: str
    txn: Transaction
    slot: int | None

    def first(self, part: str | int) -> str:
        """For the rows of one Spark partition."""
        if self.slot is None:
            return self.unique(part)
        return f"{self.prefix}-{self.txn.prefix}-pool-{self.slot}-{part}"

    def unique(self, part: str | int) -> str:
        """For rows whose transaction was lost. Never from the pool: rivals would end each other's forever."""
        return f"{self.prefix}-{self.txn.name}-{part}-{uuid.uuid4().hex[:8]}"


def owner(id: str) -> Transaction | None:
    """The transaction that a unique id belongs to."""
    parts = id.split("-")
    return Transaction.parse("-".join(parts[-8:-2])) if len(parts) >= 9 else None


def of(name: str) -> str:
    """Pattern of the unique ids that carry this name or prefix."""
    return f".+-{re.escape(name)}-.+"


def pool_of(prefix: str) -> str:
    """Pattern of the pooled ids of one sink, whatever its id_prefix."""
    return f".+-{re.escape(prefix)}-pool-[0-9]+-[0-9]+"


def slot_of(id: str) -> int | None:
    """The slot that a pooled id belongs to; None for a unique one."""
    found = PLACE.fullmatch(id)
    return int(found[1]) if found else None
