"""Why a file sink does not publish: its errors."""

from __future__ import annotations

from onceonly.checkpoint.model import Transaction
from onceonly.documentation import name_page
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
from onceonly.sinks.files.handle import FileHandle
from onceonly.storage.interface import UnsuitableTarget

UNDECIDED = "Nothing was decided or published, and what is staged is kept."


class NameTaken(Exception):
    """A final name belongs to another file."""


class FileMissing(Exception):
    """A file is neither staged, as it was then, nor at its final name."""


class TargetMissing(Exception):
    """Neither the target nor the folder beside it exists: perhaps their volume is not mounted."""


class ReplacedMissing(Exception):
    """What is to be replaced has no manifest any more."""


def explain_failed_rehearsal(handle: FileHandle, error: Exception, target: str) -> NotCommitted:
    """Return why a rehearsal has not passed."""
    what = f"sink '{handle.txn.sink}': its files cannot be published to {target}."
    then_recover = f"Then: onceonly recover {handle.txn.pipeline}. {UNDECIDED}"
    match error:
        case FileMissing():
            todo = "They are staged again, if this attempt is aborted."
            what = f"sink '{handle.txn.sink}': staged files no longer exist, or have changed."
            return StageAgain(what, f"{error}.", todo, "staged-files-missing")
        case NameTaken():
            why = f"{error} exists with other content. Onceonly never overwrites a file."
            return ActionNeeded(what, why, f"Move that file elsewhere. {then_recover}", "name-taken")
        case TargetMissing():
            why = f"{error} do not exist. Perhaps their volume is not mounted."
            return ActionNeeded(what, why, f"Mount it. {then_recover}", "target-missing")
        case ReplacedMissing():
            why = f"The files that it replaces have no manifest any more: {error} does not exist."
            return ActionNeeded(
                what,
                why,
                f"Restore it. {then_recover} Or: onceonly abort PIPELINE EPOCH --reason …",
                "replaced-files-missing",
            )
        case UnsuitableTarget():
            return ActionNeeded(what, error.why, f"{error.todo} {then_recover}", error.code)
    why = f"{type(error).__name__}: {error}"
    what = f"sink '{handle.txn.sink}': whether its files can be published to {target} is not known."
    return NotCommitted(what, why, f"Try again: onceonly recover {handle.txn.pipeline}. {UNDECIDED}", "no-answer")


def unsuitable_target_error(handle: FileHandle, unfit: UnsuitableTarget, target: str) -> CannotPublish:
    """Return why a target that was decided on cannot be published to."""
    return CannotPublish(
        f"sink '{handle.txn.sink}': its files cannot be published to {target}.",
        unfit.why,
        f"{unfit.todo} Then: onceonly recover {handle.txn.pipeline}. The decision stands, and what is staged is kept.",
        unfit.code,
    )


def explain_failure(
    handle: FileHandle, error: Exception, target: str, staged_folder: str
) -> CannotPublish | OutcomeUnknown:
    """Return why a commit or a fence has failed."""
    sink = handle.txn.sink
    give_up = f"onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …"
    if isinstance(error, NameTaken):
        return CannotPublish(
            f"sink '{sink}': another file already has the name of a staged file.",
            f"{error} exists with other content. Onceonly never overwrites a file.",
            f"Move that file elsewhere, then: onceonly recover PIPELINE, or: {give_up}. The staged rows are kept in "
            f"{staged_folder}.",
            "name-taken",
        )
    if isinstance(error, FileMissing):
        return CannotPublish(
            f"sink '{sink}': a staged file no longer exists, or was replaced by another.",
            f"{error}.",
            "Restore it (on an object store, the version of it that was staged: a copy is another file), then: "
            "onceonly "
            "recover PIPELINE; "
            f"or, if no copy exists: {give_up}. This target then lacks those rows; onceonly describe PIPELINE EPOCH "
            "shows the records that they come from.",
            "staged-files-missing",
        )
    return OutcomeUnknown(
        f"sink '{sink}': whether all files reached {target} is not known.",
        f"{type(error).__name__}: {error}",
        "Nothing was deleted; publishing again is safe: onceonly recover",
        code="no-answer",
    )


def given_up_error(handle: FileHandle, manifest: str, staged_folder: str) -> Fenced:
    """Return why a transaction that a person gave up is not published."""
    txn = handle.txn
    return Fenced(
        f"sink '{txn.sink}': epoch {txn.epoch} was given up; none of its rows is published.",
        f"A person gave it up, as {manifest} shows.",
        f"If the state table still waits for it: onceonly resolve {txn.pipeline} {txn.epoch} --give-up {txn.sink} "
        f"--reason …. The staged rows are kept in {staged_folder}.",
        code="sink-given-up",
    )


def older_state_error(handle: FileHandle, other: Transaction, manifest: str) -> StateBehind:
    """Return why an epoch that another transaction has published is not published again."""
    txn = handle.txn
    return StateBehind(
        f"sink '{txn.sink}': another transaction has already published epoch {txn.epoch}.",
        f"{manifest} names {other.name}, and the state table names {txn.name}. The state table was restored from an "
        "older copy and assigns the same numbers again.",
        "Nothing was published. Continue after what is published: onceonly state forward FILE.py:NAME "
        f"--decision N --reason … ({name_page('operations', 'backup-and-restore')})",
        code="state-behind",
    )


def missing_target_error(sink: str, target: str) -> OutcomeUnknown:
    """Return why a sink that shall be given up is not: neither of its folders exists."""
    return OutcomeUnknown(
        f"sink '{sink}': whether it was published is not known.",
        f"Neither {target} nor the folder beside it with the staged files exists. Perhaps their volume is not mounted.",
        "Mount it, or, if the target is permanently lost, create that folder, empty. Then give it up again: onceonly "
        f"resolve PIPELINE EPOCH --give-up {sink} --reason …. Nothing was changed.",
        "target-missing",
    )


def other_target_error(handle: FileHandle, target: str) -> CannotPublish:
    """Return why rows that were staged for another folder are not published."""
    return CannotPublish(
        f"sink '{handle.txn.sink}': its target is not the folder for which the rows were staged.",
        f"They were staged for {handle.target}, and this process would publish to {target}.",
        "Set ONCEONLY_HOME to its earlier value, then: onceonly recover PIPELINE. If the target never was that folder, "
        "the handle in the state table is damaged or forged. Nothing was changed.",
        code="target-changed",
    )


def replacement_error(old: FileHandle) -> InvalidPipeline:
    """Return why published files cannot be replaced."""
    return InvalidPipeline(
        f"sink '{old.txn.sink}': the files that are published in {old.target} cannot be replaced.",
        f"Their manifest {old.manifest} no longer exists, or is that of another transaction.",
        "Restore it, or process the records by a pipeline with a new name and new targets. Nothing was written.",
        code="replaced-files-missing",
    )
