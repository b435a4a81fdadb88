"""A commit of application state up to its mark: every run that the handle names is looked at, and a mark is tried."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from onceonly.checkpoint.model import Transaction
from onceonly.documentation import name_page
from onceonly.errors import ActionNeeded, NotCommitted, StageAgain
from onceonly.sinks.state.handle import StateHandle
from onceonly.sinks.state.runs import find_changed_runs
from onceonly.storage.folders import Folders
from onceonly.storage.local import PERMISSIONS, LocalFiles
from onceonly.storage.paths import local_path

UNDECIDED = "Nothing was decided or published, and what is staged is kept."


def rehearse(folders: Folders, txn: Transaction, handle: StateHandle) -> None:
    """Go through a commit. It marks nothing.

    Raises:
        StageAgain: the run of this transaction is not there as it was staged.
        ActionNeeded: an earlier run is missing, or this process may not publish there.
        NotCommitted: no answer.
    """
    with explain_errors(folders, txn.sink, txn.pipeline):
        if not folders.list_names():
            why = f"{folders.uri} is missing or empty. Perhaps its volume is not mounted."
            raise _action(txn.sink, txn.pipeline, why, "Mount it.", "target-missing")
        _check_runs(folders, txn, handle)
        folders.check_mark(txn.name)
        for old in handle.to_delete:
            _check_removal(folders, old)


def _check_runs(folders: Folders, txn: Transaction, handle: StateHandle) -> None:
    own: list[str] = []
    earlier: list[str] = []
    for run in find_changed_runs(folders, handle.runs):
        path = folders.path(run["folder"])
        if path.startswith(f"{folders.path(txn.name)}/"):
            own.append(path)
        else:
            earlier.append(path)
    if earlier:
        why = f"{earlier[0]} is missing, or has other files than were written. An earlier checkpoint wrote it."
        todo = "Restore it, or go back to an epoch N whose state is there: onceonly rewind PIPELINE N --reason …."
        raise _action(txn.sink, txn.pipeline, why, todo, "state-run-missing")
    if own or not folders.has(txn.name):
        raise StageAgain(
            f"sink '{txn.sink}': the staged state no longer exists, or has changed.",
            f"{folders.path(txn.name)} is missing, or has other files than were written.",
            "It is staged again, if this attempt is aborted.",
            "staged-files-missing",
        )


def _check_removal(folders: Folders, old: Transaction) -> None:
    """Raise PermissionError if this process may not delete the folder of a transaction.

    On a disk, whoever removes a folder needs permission in it and in each folder below.
    """
    local = local_path(folders.path(old.name))
    if not local:
        return
    for root, _, _ in os.walk(local):
        if not os.access(root, os.W_OK | os.X_OK, effective_ids=True):
            raise PermissionError(PERMISSIONS[0], os.strerror(PERMISSIONS[0]), f"{root}/any")


@contextmanager
def explain_errors(folders: Folders, sink: str, pipeline: str) -> Iterator[None]:
    """Raise an error of the storage as ActionNeeded if a person has to act, else as NotCommitted."""
    try:
        yield
    except OSError as error:
        unfit = LocalFiles().find_refusal(error) if local_path(folders.uri) else None
        if unfit:
            raise _action(sink, pipeline, unfit.why, unfit.todo, unfit.code) from error
        if isinstance(error, PermissionError):
            todo = f"Allow this login to list, read, write and delete there ({name_page('object-stores')})."
            raise _action(sink, pipeline, f"{error}.", todo, "target-not-writable") from error
        raise NotCommitted(
            f"sink '{sink}': whether its state can be published in {folders.uri} is not known.",
            f"{type(error).__name__}: {error}",
            f"Try again: onceonly recover {pipeline}. {UNDECIDED}",
            "no-answer",
        ) from error


def _action(sink: str, pipeline: str, why: str, todo: str, code: str) -> ActionNeeded:
    what = f"sink '{sink}': its state cannot be published."
    return ActionNeeded(what, why, f"{todo} Then: onceonly recover {pipeline}. {UNDECIDED}", code)
