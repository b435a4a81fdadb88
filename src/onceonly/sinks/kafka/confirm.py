"""Which transactions become part of a handle: those that their coordinators report as open, after all was written."""

from __future__ import annotations

from collections.abc import Mapping

from onceonly.errors import NotCommitted
from onceonly.kafka.transactions import Described, Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.handle import Partition, Tx


def confirm_open(
    config: KafkaSink, transactions: Transactions, written: Mapping[str, tuple[int, int] | None]
) -> dict[str, Tx]:
    """Return the transactions by id, if the coordinator reports each of them as open. Only those join a handle.

    The ends of the log are read first. So the marker of a transaction that is open after that has a higher offset.

    Args:
        written: id -> the producer that wrote the rows; None if no other producer can have used the id.
    """
    ends = transactions.read_ends(_partitions_of(transactions.describe(written)))
    descriptions = transactions.describe(written)
    starts = transactions.read_all_starts(_partitions_of(descriptions))
    confirmed: dict[str, Tx] = {}
    for id, producer in written.items():
        description = _require_open(config, id, producer, descriptions.get(id))
        producer_starts = starts.get(description.producer_id, {})
        spans = {partition: (producer_starts.get(partition), ends[partition]) for partition in description.partitions}
        confirmed[id] = Tx(id, description.producer_id, description.epoch, spans)
    return confirmed


def _partitions_of(descriptions: Mapping[str, Described]) -> set[Partition]:
    """Return the partitions to which any of these transactions has written."""
    partitions: set[Partition] = set()
    for description in descriptions.values():
        partitions |= description.partitions
    return partitions


def _require_open(
    config: KafkaSink, id: str, producer: tuple[int, int] | None, description: Described | None
) -> Described:
    """Return the description of a transaction that is open, and of that producer if one is given."""
    if description is None:
        state = "unknown"
    elif producer and tuple(producer) != (description.producer_id, description.epoch):
        state = "used by another producer"
    elif description.state == "Ongoing" and description.partitions:
        return description
    else:
        state = description.state
    raise NotCommitted(
        f"sink '{config.name}': transaction '{id}' is {state} right after it was written.",
        f"It has to be open until the commit (transaction_timeout={config.transaction_timeout:g} s).",
        "Nothing of it is published. Retry, with a longer transaction_timeout if writing took that long.",
        code="transaction-not-open",
    )
