"""Removing what can never be recorded: a process may still write after its attempt was aborted."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from onceonly.checkpoint.definition import Definition
from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, State, Transaction
from onceonly.checkpoint.sink import IncrementalSweep, PooledTransaction, Sink, TransactionalIdPool
from onceonly.errors import CannotPublish
from onceonly.json_values.text import canonical
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View
from onceonly.waits import wait_for

SECONDS_PER_DAY = 24 * 3600.0
Attempt = tuple[int, int]  # epoch, attempt


def sweep(
    state_table: StateTable, parts: Parts, name: str, since: View | None = None
) -> list[Transaction | PooledTransaction]:
    """End and remove every transaction of the pipeline that no live attempt owns, whichever sink it was for.

    Args:
        since: an earlier view. A sink in which looking for all of them takes long is asked only for those of the
            checkpoints that have been open since then, and once a day for all.
    Raises:
        the first error met, after everything else was tried.
    """
    swept: list[Transaction | PooledTransaction] = []
    errors: list[Exception] = []
    view = since if since and not since.open else state_table.view(name)
    recent: list[Checkpoint] | None = None
    if since is not None:
        recent = _checkpoints_since(since, view)
    for pipeline, sink in _sinks_to_sweep(view):
        try:
            swept += _sweep_sink(state_table, parts.sink(pipeline, sink), name, recent)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return swept


def _sweep_sink(
    state_table: StateTable, live: Sink, name: str, recent: list[Checkpoint] | None
) -> Iterator[Transaction | PooledTransaction]:
    """Sweep one sink, and yield what was removed.

    Args:
        recent: the checkpoints whose leftovers are enough, where looking for all takes long; None: all are looked for.
    """
    yield from discard_idle(state_table, live, name)
    prefix = f"{state_table.id}-{name}"
    recent_leftovers = _list_recent_leftovers(live, prefix, recent)
    leftovers = recent_leftovers
    if leftovers is None:
        leftovers = list(live.leftovers(prefix))
    if leftovers:
        view = state_table.view(name)  # after the list: what was claimed since cannot be in it
        for txn in leftovers:
            yield from _settle(live, view, txn)
    if recent_leftovers is None and isinstance(live, IncrementalSweep):
        live.record_sweep(prefix)  # only now: a sweep that dies before is repeated


def _list_recent_leftovers(live: Sink, prefix: str, recent: list[Checkpoint] | None) -> list[Transaction] | None:
    """List the leftovers of recent checkpoints; None: all leftovers are to be looked for."""
    if recent is None or not isinstance(live, IncrementalSweep) or not _is_swept(live, prefix):
        return None
    leftovers = []
    for checkpoint in recent:
        for attempt in checkpoint.claims:
            txn = checkpoint.transaction(live.name, attempt)
            if live.is_leftover(txn):
                leftovers.append(txn)
    return leftovers


def _is_swept(live: IncrementalSweep, prefix: str) -> bool:
    """Whether all leftovers of the sink were swept within a day. A clock that was set back does not put that off."""
    seconds_ago = live.seconds_since_sweep(prefix)
    return seconds_ago is not None and 0 <= seconds_ago < SECONDS_PER_DAY


def _checkpoints_since(since: View, now: View) -> list[Checkpoint]:
    """List the checkpoints that are open, or were, and the last one; each with its claims as far as they were read."""
    checkpoints = [*since.open, *now.open]
    for checkpoint in (now.latest, now.checkpoint(now.head.epoch)):
        if checkpoint:
            checkpoints.append(checkpoint)
    by_epoch = {checkpoint.epoch: checkpoint for checkpoint in checkpoints}
    return list(by_epoch.values())


def _settle(live: Sink, view: View, txn: Transaction) -> Iterator[Transaction]:
    """End or remove one leftover, as its checkpoint allows, and yield it if it was removed."""
    owner = view.checkpoint(txn.epoch)
    if owner is not None and _is_dead(txn, owner) and owner.keeps_rows_of(txn.attempt):
        live.revoke(txn)
    elif owner is not None and _is_dead(txn, owner):
        with wait_for(f"sink '{live.name}' to remove what attempts have left"):
            live.discard(txn, None)
        yield txn
    elif owner is not None and txn.sink in owner.published:
        live.release(txn)
        yield txn
    elif owner is not None and txn.sink in owner.given_up:
        live.revoke(txn)  # a committer that was stopped may have opened it since; the rows are kept


def _is_dead(txn: Transaction, owner: Checkpoint) -> bool:
    return txn.attempt < owner.attempt or owner.state is State.ABORTED


def _is_gone(checkpoint: Checkpoint, definition: Definition, sink: str) -> bool:
    """Whether all that was left in the sink is permanently out of reach, by manual resolution."""
    was_claimed = False
    for attempt, claimed_definition in checkpoint.claimed_under.items():
        if claimed_definition != definition:
            continue
        if (attempt, sink) not in checkpoint.gone:
            return False
        was_claimed = True
    return was_claimed


def _sinks_to_sweep(view: View) -> Iterator[tuple[Pipeline, str]]:
    """Yield every sink in which an attempt may have left something, once.

    An open checkpoint may have been claimed under older definitions, whose sinks the current one no longer has.
    """
    yielded: set[str] = set()
    last = view.checkpoint(view.head.epoch)  # perhaps a repair of a sink that the pipeline has only since then
    checkpoints = [checkpoint for checkpoint in (view.latest, last) if checkpoint] + view.open
    for checkpoint in checkpoints:
        for definition in (checkpoint.definition, *checkpoint.claimed_under.values()):
            pipeline = definition.pipeline
            for sink, sink_json in zip(pipeline.sinks, definition.json["sinks"], strict=True):
                key = canonical(sink_json)
                if key in yielded or _is_gone(checkpoint, definition, sink.name):
                    continue
                yielded.add(key)
                yield pipeline, sink.name


# ---- the pool of transactional ids: what is open in it without a lease


def discard_idle(
    state_table: StateTable, live: Sink, pipeline: str, ended: Collection[Attempt] = ()
) -> list[PooledTransaction]:
    """End what is open in the pool of one sink and will never be published; returns what it was.

    Args:
        ended: attempts that the caller knows to be over, though the state table does not say it.
    """
    if not isinstance(live, TransactionalIdPool):
        return []
    open_transactions = live.list_pooled(f"{state_table.id}-{pipeline}-{live.name}")
    if not open_transactions:
        return []
    view = state_table.view(pipeline)  # after the list: what a newer lease has opened since cannot be in it
    idle = [txn for txn in open_transactions if not _is_needed(view, live, live.name, txn, ended)]
    if idle:
        live.discard_pooled(idle)
    return idle


def _is_needed(
    view: View, live: TransactionalIdPool, sink: str, txn: PooledTransaction, ended: Collection[Attempt]
) -> bool:
    """Whether a pooled transaction may still be published: by the attempt that leases its slot."""
    holder = _find_holder(view, txn.slot)
    if holder is None or (holder.epoch, holder.attempt) in ended:
        return False
    if holder.state is State.PLANNED:
        return True  # it is being staged
    waits = sink in holder.waiting and holder.state is not State.ABORTING
    try:
        return waits and live.is_needed(holder.handles[sink], txn)
    except CannotPublish:  # a damaged handle shows of nothing that it is not needed; its own checkpoint says that it is
        return True


def _find_holder(view: View, slot: int) -> Checkpoint | None:
    """Find the checkpoint whose current attempt holds the slot: earlier ones hold it only against others."""
    for checkpoint in view.open:
        if checkpoint.claims and checkpoint.claims[checkpoint.attempt].slot == slot:
            return checkpoint
    return None
