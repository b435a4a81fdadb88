"""Why a file sink does not publish: its errors."""

from __future__ import annotations

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.errors import (
    ActionNeeded,
    CannotPublish,
    Fenced,
    InvalidPipeline,
    NotCommitted,
    OutcomeUnknown,
    StageAgain,
    StateBehind,
)
from onceonly.filesystems.interface import Unsuitable
from onceonly.sinks.files.handle import FileHandle
from onceonly.sinks.files.moves import FileMissing, NameTaken
from onceonly.sinks.files.rehearsal import ReplacedMissing, TargetMissing

UNDECIDED = "Nothing was decided or published, and what is staged is kept."


def undecided(mine: FileHandle, error: Exception, target: str) -> NotCommitted:
    """Why a rehearsal has not passed."""
    what = f"sink '{mine.txn.sink}': its files cannot be published to {target}."
    again = f"Then: onceonly recover {mine.txn.pipeline}. {UNDECIDED}"
    match error:
        case FileMissing():
            todo = "They are staged again, if this attempt is aborted."
            what = f"sink '{mine.txn.sink}': staged files no longer exist, or have changed."
            return StageAgain(what, f"{error}.", todo, "staged-files-missing")
        case NameTaken():
            why = f"{error} exists with other content. Onceonly never overwrites a file."
            return ActionNeeded(what, why, f"Move that file elsewhere. {again}", "name-taken")
        case TargetMissing():
            why = f"{error} do not exist. Perhaps their volume is not mounted."
            return ActionNeeded(what, why, f"Mount it. {again}", "target-missing")
        case ReplacedMissing():
            why = f"The files that it replaces have no manifest any more: {error} does not exist."
            return ActionNeeded(what, why, f"Restore it, or abort. {again}", "replaced-files-missing")
        case Unsuitable():
            return ActionNeeded(what, error.why, f"{error.todo} {again}", error.code)
    why = f"{type(error).__name__}: {error}"
    what = f"sink '{mine.txn.sink}': whether its files can be published to {target} is not known."
    return NotCommitted(what, why, f"Try again: onceonly recover {mine.txn.pipeline}. {UNDECIDED}", "no-answer")


def refused(mine: FileHandle, unfit: Unsuitable, target: str) -> CannotPublish:
    """After the decision."""
    return CannotPublish(
        f"sink '{mine.txn.sink}': its files cannot be published to {target}.",
        unfit.why,
        f"{unfit.todo} Then: onceonly recover {mine.txn.pipeline}. The decision stands, and what is staged is kept.",
        unfit.code,
    )


def failed(mine: FileHandle, error: Exception, target: str, kept: str) -> CannotPublish | OutcomeUnknown:
    sink = mine.txn.sink
    exit_ = f"onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …"
    if isinstance(error, NameTaken):
        return CannotPublish(
            f"sink '{sink}': another file already has the name of a staged file.",
            f"{error} exists with other content. Onceonly never overwrites a file.",
            f"Move that file elsewhere and recover, or: {exit_}. The staged rows are kept in {kept}.",
            "name-taken",
        )
    if isinstance(error, FileMissing):
        return CannotPublish(
            f"sink '{sink}': a staged file no longer exists, or was replaced by another.",
            f"{error}.",
            "Restore it and recover (on an object store, the version of it that was staged: a copy is another file), "
            f"or, if no copy exists: {exit_}. This target then lacks those rows; onceonly describe PIPELINE EPOCH "
            "shows the records that they come from.",
            "staged-files-missing",
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


def not_there(sink: str, target: str) -> OutcomeUnknown:
    """Of a sink that shall be given up."""
    return OutcomeUnknown(
        f"sink '{sink}': whether it was published is not known.",
        f"Neither {target} nor the folder beside it with the staged files exists. Perhaps their volume is not mounted.",
        "Mount it, and give it up again. If the target is permanently lost, create that folder, empty, and give it up "
        "again. Nothing was changed.",
        "target-missing",
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
        "Restore it, or process the records by a pipeline with a new name and new targets. Nothing was written.",
    )
