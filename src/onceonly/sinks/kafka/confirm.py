"""Which transactions become part of a handle: those that their coordinators report as open, after all was written."""

from __future__ import annotations

from collections.abc import Mapping

from onceonly.errors import NotCommitted
from onceonly.kafka.transactions import Transactions
from onceonly.pipeline.sinks import KafkaSink
from onceonly.sinks.kafka.handle import Tx


def confirm_open(
    config: KafkaSink, known: Transactions, written: Mapping[str, tuple[int, int] | None]
) -> dict[str, Tx]:
    """The transactions, if the coordinator reports each of them as open. Only those become part of a handle.

    The ends of the log are read first. So the marker of a transaction that is open after that has a higher offset.

    Args:
        written: id -> the producer that wrote the rows; None if no other producer can have used the id.
    """
    ends = known.ends(partition for seen in known.describe(written).values() for partition in seen.partitions)
    described = known.describe(written)
    starts = known.all_starts({partition for seen in described.values() for partition in seen.partitions})
    found = {}
    for id, producer in written.items():
        seen = described.get(id)
        others = seen and producer and tuple(producer) != (seen.producer_id, seen.epoch)
        if seen is None or seen.state != "Ongoing" or not seen.partitions or others:
            state = "used by another producer" if others else seen.state if seen else "unknown"
            raise NotCommitted(
                f"sink '{config.name}': transaction '{id}' is {state} right after it was written.",
                f"It has to be open until the commit (transaction_timeout={config.transaction_timeout:g} s).",
                "Nothing of it is published. Retry, with a longer transaction_timeout if writing took that long.",
            )
        begun = starts.get(seen.producer_id, {})
        spans = {partition: (begun.get(partition), ends[partition]) for partition in seen.partitions}
        found[id] = Tx(id, seen.producer_id, seen.epoch, spans)
    return found
