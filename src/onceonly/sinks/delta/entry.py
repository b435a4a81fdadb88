"""The log entry by which rows become visible: with the number that is the evidence of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deltalake import CommitProperties, DeltaTable
from deltalake import Transaction as DeltaTxn

from onceonly.sinks.delta import lock


def commit(
    target: DeltaTable,
    adds: Sequence[Any],
    removes: Sequence[Any],
    app_id: str,
    version: int,
    exactly_next: bool = False,
) -> None:
    """Write the log entry. Another commit since that snapshot may come between only if nothing is removed.

    Args:
        version: the evidence.
        exactly_next: no other commit may come between, in any case.
    Raises:
        CommitFailedError: another one did, or it has published the same.
    """
    # delta-rs allows a removal in parallel to an OPTIMIZE of the same rows: so only commit the very next version
    retries = 0 if removes or exactly_next else None
    stamp = CommitProperties(app_transactions=[DeltaTxn(app_id, version)], max_commit_retries=retries)
    columns = target.metadata().partition_columns
    with lock.hold_shared(target.table_uri):
        target.create_write_transaction(
            [*adds, *removes], "append", target.schema(), partition_by=columns, commit_properties=stamp
        )
