"""Removing what can never be recorded: a process may still write after its attempt was aborted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from onceonly.checkpoint.interfaces import Parts
from onceonly.checkpoint.model import Checkpoint, State, Transaction, canonical
from onceonly.checkpoint.sink import KeepsCopies, KeepsNames, PooledTransaction, Revocable, Sink
from onceonly.coordinator.id_pool import discard_idle
from onceonly.pipeline.definition import Pipeline
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

A_DAY = 24 * 3600.0  # seconds


def sweep(
    state: StateTable, parts: Parts, name: str, since: View | None = None
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
    view = since if since and not since.open else state.view(name)
    recent = None if since is None else _recent(since, view)
    for pipeline, sink in _sinks(view):
        try:
            swept += _sweep(state, parts.sink(pipeline, sink), name, recent)
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return swept


def _sweep(
    state: StateTable, live: Sink, name: str, recent: list[Checkpoint] | None
) -> Iterator[Transaction | PooledTransaction]:
    yield from discard_idle(state, live, name)
    prefix = f"{state.id}-{name}"
    held = _held(live, prefix, recent)
    found = list(live.leftovers(prefix)) if held is None else held
    if found:
        view = state.view(name)  # after the list: what was claimed since cannot be in it
        for txn in found:
            yield from _settle(live, view, txn)
    if held is None and isinstance(live, KeepsNames):
        live.note_swept(prefix)


def _held(live: Sink, prefix: str, recent: list[Checkpoint] | None) -> list[Transaction] | None:
    """The leftovers of recent checkpoints; None: all leftovers are to be looked for."""
    if recent is None or not isinstance(live, KeepsNames) or not _is_swept(live, prefix):
        return None
    txns = (checkpoint.transaction(live.name, attempt) for checkpoint in recent for attempt in checkpoint.claims)
    return [txn for txn in txns if live.holds(txn)]


def _is_swept(live: KeepsNames, prefix: str) -> bool:
    """Whether all of its leftovers were dealt with within a day. A clock that was set back does not put that off."""
    ago = live.swept_ago(prefix)
    return ago is not None and 0 <= ago < A_DAY


def _recent(since: View, now: View) -> list[Checkpoint]:
    """Those that are open, or were, and the last one; each with its claims as far as they were read already."""
    last = [now.latest] if now.latest else []
    return list({checkpoint.epoch: checkpoint for checkpoint in (*since.open, *now.open, *last)}.values())


def _settle(live: Sink, view: View, txn: Transaction) -> Iterator[Transaction]:
    owner = view.checkpoint(txn.epoch)
    if owner is not None and _is_dead(txn, owner) and owner.keeps(txn.attempt):
        revoke(live, txn)
    elif owner is not None and _is_dead(txn, owner):
        live.discard(txn, None)
        yield txn
    elif owner is not None and txn.sink in owner.published:
        if isinstance(live, KeepsCopies):
            live.release(txn)
        yield txn
    elif owner is not None and txn.sink in owner.given_up:
        revoke(live, txn)  # a committer that was stopped may have opened it since; the rows are kept


def revoke(live: Sink, txn: Transaction) -> None:
    """No process publishes it any more; its rows are kept. Where nothing is held open, only a commit could."""
    if isinstance(live, Revocable):
        live.revoke(txn)


def _is_dead(txn: Transaction, owner: Checkpoint) -> bool:
    return txn.attempt < owner.attempt or owner.state is State.ABORTED


def _is_gone(checkpoint: Checkpoint, definition: Mapping[str, Any], sink: str) -> bool:
    """Whether all that was left in it is permanently out of reach, by manual resolution."""
    attempts = [number for number, under in checkpoint.claimed_under.items() if under == definition]
    return bool(attempts) and all((number, sink) in checkpoint.gone for number in attempts)


def _sinks(view: View) -> Iterator[tuple[Pipeline, str]]:
    """Those of the latest definition, and of those under which anything that is open was claimed; each once."""
    seen: set[str] = set()
    for checkpoint in ([view.latest] if view.latest else []) + view.open:
        for definition in (checkpoint.definition, *checkpoint.claimed_under.values()):
            pipeline = Pipeline.from_json(definition)
            for sink, data in zip(pipeline.sinks, definition["sinks"], strict=True):
                if canonical(data) not in seen and not _is_gone(checkpoint, definition, sink.name):
                    seen.add(canonical(data))
                    yield pipeline, sink.name
