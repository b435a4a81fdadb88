"""The errors of a Delta table that cannot be published to, or of which it is not known whether it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceonly.counts import count
from onceonly.errors import CannotPublish, OutcomeUnknown
from onceonly.sinks.delta.handle import DeltaHandle

TRANSACTION_RETENTION = "delta.setTransactionRetentionDuration"


def other_table_error(sink: str, uri: str, handle: DeltaHandle, table_id: str | int | None) -> CannotPublish:
    """Describe another table in place of the target.

    Args:
        table_id: of the table that is there; None: there is none.
    """
    difference = "no longer exists" if table_id is None else f"is now another table (id {table_id})"
    return CannotPublish(
        f"sink '{sink}': {uri} is not the table for which the rows were staged.",
        f"It {difference}; the rows were staged for id {handle.table_id}.",
        f"Restore the table, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH --give-up {sink} "
        "--reason …. "
        f"The staged rows are kept in {handle.folder}.",
        code="target-recreated",
    )


def missing_files_error(sink: str, uri: str, handle: DeltaHandle, missing: int, paths: Sequence[str]) -> CannotPublish:
    """Describe staged files that no longer exist.

    Args:
        missing: how many there are.
        paths: of those whose names are known.
    """
    example = f", such as {paths[0]}" if paths else ""
    return CannotPublish(
        f"sink '{sink}': staged files no longer exist in {uri}.",
        f"Missing in {handle.folder}: {missing:,} of {count(handle.files, 'file')}{example}. "
        "A VACUUM deletes files that were not published within its retention.",
        "Restore them, then: onceonly recover PIPELINE. If no copy exists: onceonly resolve PIPELINE EPOCH --give-up "
        f"{sink} --reason …. "
        f"This target then lacks {count(handle.rows, 'row')}; onceonly describe PIPELINE EPOCH shows the records "
        "that they come from.",
        code="staged-files-missing",
    )


def refuse_expiring_evidence(sink: str, uri: str, configuration: Mapping[str, str]) -> None:
    """Refuse to publish to a table that deletes transaction identifiers: that it shows none is no evidence."""
    if retention := configuration.get(TRANSACTION_RETENTION):
        raise CannotPublish(
            f"sink '{sink}': {uri} deletes transaction identifiers ({retention}).",
            "They are the evidence of what was published. A commit that is repeated after that would publish again.",
            f"ALTER TABLE … UNSET TBLPROPERTIES ('{TRANSACTION_RETENTION}'), then: onceonly recover. "
            "Nothing was published.",
            code="transaction-retention",
        )


def outcome_unknown(handle: DeltaHandle, why: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"it is not known whether the rows reached {handle.uri}.",
        why,
        "Nothing was deleted. Publishing again is safe: onceonly recover",
        code="commit-unconfirmed",
    )


def unreadable_log_error(handle: DeltaHandle, error: Exception) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the table's log in {handle.uri} cannot be read.",
        first_line(error),
        "Repair the log (restore its files from a copy), then: onceonly recover. Nothing was written.",
        code="table-unreadable",
    )


def first_line(error: Exception) -> str:
    """Return the first line of a message: delta-rs adds its stack to some."""
    return (str(error).splitlines() or [type(error).__name__])[0][:500]


def open_decision_error(handle: DeltaHandle, why: str) -> OutcomeUnknown:
    """Describe a decision that could not be closed."""
    return OutcomeUnknown(
        f"{handle.uri} could not be closed to the rows, so a process may still publish them.",
        why,
        "Nothing was recorded and nothing deleted. Fix the storage, then publish: onceonly recover PIPELINE, or "
        "repeat the command.",
        code="decision-not-closed",
    )
