"""Why a file sink does not publish: its errors."""

from __future__ import annotations

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown, StateBehind
from onceonly.sinks.files.handle import FileHandle
from onceonly.sinks.files.moves import FileMissing, NameTaken


def failed(mine: FileHandle, error: Exception, target: str, kept: str) -> CannotPublish | OutcomeUnknown:
    sink = mine.txn.sink
    exit_ = f"onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …"
    if isinstance(error, NameTaken):
        return CannotPublish(
            f"sink '{sink}': another file already has the name of a staged file.",
            f"{error} exists with other content. Onceonly never overwrites a file.",
            f"Move that file elsewhere and recover, or: {exit_}. The staged rows are kept in {kept}.",
        )
    if isinstance(error, FileMissing):
        return CannotPublish(
            f"sink '{sink}': a staged file no longer exists, or was replaced by another.",
            f"{error}.",
            "Restore it and recover (on an object store, the version of it that was staged: a copy is another file), "
            f"or: {exit_}, and send the records again.",
        )
    return OutcomeUnknown(
        f"sink '{sink}': whether all files reached {target} is not known.",
        f"{type(error).__name__}: {error}",
        "Nothing was deleted; publishing again is safe: onceonly recover",
    )


def given_up(mine: FileHandle, manifest: str, kept: str) -> Fenced:
    txn = mine.txn
    return Fenced(
        f"sink '{txn.sink}': epoch {txn.epoch} was given up; none of its rows is published.",
        f"A person gave it up, as {manifest} shows.",
        f"If the state table still waits for it: onceonly resolve {txn.pipeline} {txn.epoch} --give-up {txn.sink} "
        f"--reason …. The staged rows are kept in {kept}.",
    )


def behind(mine: FileHandle, other: Transaction, manifest: str) -> StateBehind:
    txn = mine.txn
    return StateBehind(
        f"sink '{txn.sink}': another transaction has already published epoch {txn.epoch}.",
        f"{manifest} names {other.name}, and the state table names {txn.name}. The state table was restored from an "
        "older copy and assigns the same numbers again.",
        f"Nothing was published. Continue after what is published: onceonly state forward {txn.pipeline} … "
        "(docs/operations.md, Backup and restore)",
    )


def elsewhere(sink: str, handle: Handle, target: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': its target is not the folder for which the rows were staged.",
        f"They were staged for {handle['target']}, and this process would publish to {target}.",
        "Set ONCEONLY_HOME to its earlier value and recover. If the target never was that folder, the handle in the "
        "state table is damaged or forged. Nothing was changed.",
    )


def irreplaceable(sink: str, old: Handle) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the files that are published in {old['target']} cannot be replaced.",
        f"Their manifest {old['manifest']} no longer exists, or is that of another transaction.",
        "Restore it, or send the records again to a pipeline with a new name. Nothing was written.",
    )
