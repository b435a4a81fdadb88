"""What a file sink says where it does not publish: what, why, and what to do."""

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
            f"sink '{sink}': a file of another content has the name of one of ours.",
            f"{error} is there already, and nothing is ever overwritten.",
            f"Move it away and recover, or: {exit_}. Our rows are kept in {kept}.",
        )
    if isinstance(error, FileMissing):
        return CannotPublish(
            f"sink '{sink}': a staged file no longer exists.",
            f"{error}.",
            f"Restore it and recover, or: {exit_}, then feed the rows again.",
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
        f"A person did that: {manifest} says so.",
        f"Where the state table still waits for it: onceonly resolve {txn.pipeline} {txn.epoch} --give-up {txn.sink} "
        f"--reason …. Our rows are kept in {kept}.",
    )


def behind(mine: FileHandle, other: Transaction, manifest: str) -> StateBehind:
    txn = mine.txn
    return StateBehind(
        f"sink '{txn.sink}': another transaction has published epoch {txn.epoch} before.",
        f"{manifest} names {other.name}, the state table names {txn.name}. The state table was restored from an older "
        "copy, and gives its numbers a second time.",
        f"Nothing was published. Go on after what is there: onceonly state forward {txn.pipeline} … "
        "(docs/operations.md, Backup and restore)",
    )


def elsewhere(sink: str, handle: Handle, target: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': its target is another folder than the one that was staged for.",
        f"It was {handle['target']} and is {target} for this process.",
        "Let ONCEONLY_HOME be what it was then, and recover. Nothing was touched. If it never was that folder, the "
        "handle in the state table is damaged or forged.",
    )


def irreplaceable(sink: str, old: Handle) -> InvalidPipeline:
    return InvalidPipeline(
        f"sink '{sink}': the files that are published in {old['target']} cannot be replaced.",
        f"Their manifest {old['manifest']} no longer exists, or is another one.",
        "Restore it, or feed the records again under a new name. Nothing was written.",
    )
