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
    """A slot for the checkpoint's next attempt; None: its pipeline has no pool.

    One that no unsettled checkpoint holds; else one of its own earlier attempts, which will surely not be recorded.

    Raises:
        NotCommitted: all are leased.
    """
    pipeline = Pipeline.from_json(checkpoint.definition)
    if pipeline.pool_size is None:
        return None
    own = _leased([checkpoint])
    others = _leased([other for other in view.open if other.epoch != checkpoint.epoch])
    free = [slot for slot in range(pipeline.pool_size) if slot not in others]
    if free:
        return min(free, key=lambda slot: (slot in own, slot))
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
    found = live.pooled(f"{state.id}-{pipeline}-{live.name}")
    if not found:
        return []
    view = state.view(pipeline)  # after the list: what a newer lease has opened since cannot be in it
    idle = [txn for txn in found if not _needed(view, live, live.name, txn, ended)]
    if idle:
        live.discard_pooled(idle)
    return idle


def _leased(checkpoints: Iterable[Checkpoint]) -> set[int]:
    slots = (claim.slot for checkpoint in checkpoints for claim in checkpoint.claims.values())
    return {slot for slot in slots if slot is not None}


def _needed(view: View, live: PoolsIds, sink: str, txn: PooledTransaction, ended: Collection[Attempt]) -> bool:
    holder = _holder(view, txn.slot)
    if holder is None or (holder.epoch, holder.attempt) in ended:
        return False
    if holder.state is State.PLANNED:
        return True  # it is being staged
    waits = sink in holder.waiting and holder.state is not State.ABORTING
    return waits and live.needs(holder.handles[sink], txn)


def _holder(view: View, slot: int) -> Checkpoint | None:
    """The checkpoint whose current attempt holds it: earlier ones hold it only against others."""
    holding = (cp for cp in view.open if cp.claims and cp.claims[cp.attempt].slot == slot)
    return next(holding, None)
