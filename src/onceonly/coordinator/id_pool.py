"""The pool of transactional ids: slots leased to attempts by the state table, and what is open without a lease."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.checkpoint.sink import PooledTransaction, PoolsIds, Sink
from onceonly.errors import NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

Attempt = tuple[int, int]  # epoch, attempt


def free_slot(view: View, checkpoint: Checkpoint) -> int | None:
    """Find a slot for the checkpoint's next attempt; None: its pipeline has no pool.

    One that no unsettled checkpoint holds; else one of its own earlier attempts, which will surely not be recorded.

    Raises:
        NotCommitted: all are leased.
    """
    pipeline = Pipeline.from_json(checkpoint.definition)
    if pipeline.pool_size is None:
        return None
    own_slots = _leased_slots([checkpoint])
    leased_slots = _leased_slots([other for other in view.open if other.epoch != checkpoint.epoch])
    free_slots = [slot for slot in range(pipeline.pool_size) if slot not in leased_slots]
    if free_slots:
        return min(free_slots, key=lambda slot: (slot in own_slots, slot))
    raise NotCommitted(
        f"{pipeline.name} epoch {checkpoint.epoch}: every slot of the pool of transactional ids is leased.",
        f"pool_size={pipeline.pool_size}, and that many attempts wait for their outcome to be recorded.",
        f"Settle them: onceonly recover {pipeline.name}. Or raise KafkaSink(pool_size=…). Nothing was staged.",
    )


def discard_idle(
    state: StateTable, live: Sink, pipeline: str, ended: Collection[Attempt] = ()
) -> list[PooledTransaction]:
    """End what is open in the pool of one sink and will never be published; returns what it was.

    Args:
        ended: attempts that the caller knows to be over, though the state table does not say it.
    """
    if not isinstance(live, PoolsIds):
        return []
    open_transactions = live.list_pooled(f"{state.id}-{pipeline}-{live.name}")
    if not open_transactions:
        return []
    view = state.view(pipeline)  # after the list: what a newer lease has opened since cannot be in it
    idle = [txn for txn in open_transactions if not _is_needed(view, live, live.name, txn, ended)]
    if idle:
        live.discard_pooled(idle)
    return idle


def _leased_slots(checkpoints: Iterable[Checkpoint]) -> set[int]:
    slots = set()
    for checkpoint in checkpoints:
        for claim in checkpoint.claims.values():
            if claim.slot is not None:
                slots.add(claim.slot)
    return slots


def _is_needed(view: View, live: PoolsIds, sink: str, txn: PooledTransaction, ended: Collection[Attempt]) -> bool:
    """Whether a pooled transaction may still be published: by the attempt that leases its slot."""
    holder = _find_holder(view, txn.slot)
    if holder is None or (holder.epoch, holder.attempt) in ended:
        return False
    if holder.state is State.PLANNED:
        return True  # it is being staged
    waits = sink in holder.waiting and holder.state is not State.ABORTING
    return waits and live.needs(holder.handles[sink], txn)


def _find_holder(view: View, slot: int) -> Checkpoint | None:
    """Find the checkpoint whose current attempt holds the slot: earlier ones hold it only against others."""
    for checkpoint in view.open:
        if checkpoint.claims and checkpoint.claims[checkpoint.attempt].slot == slot:
            return checkpoint
    return None
