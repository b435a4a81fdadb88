"""The errors of a table that cannot be published to, or of which it is not known whether it was."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from onceonly.errors import ActionNeeded, CannotPublish, OnceonlyError, OutcomeUnknown, StageAgain
from onceonly.sinks import Handle
from onceonly_iceberg.staged_files import StagedList


def require_branch(sink: str, branch: str, table: Table) -> None:
    ref = table.metadata.refs.get(branch)
    if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise ActionNeeded(
            f"sink '{sink}': '{branch}' is a tag of {'.'.join(table.name())}.",
            "A tag cannot be published to.",
            "Name a branch, or drop the tag. Nothing was published.",
            code="iceberg-branch-is-tag",
        )


def require_current_spec(sink: str, table: Table, staged: StagedList) -> None:
    """Raise StageAgain if the table is partitioned in another way by now."""
    if staged.spec_id != table.spec().spec_id:
        raise StageAgain(
            f"sink '{sink}': {'.'.join(table.name())} is partitioned in another way since the rows were staged.",
            f"They were staged for spec {staged.spec_id}, and it has spec {table.spec().spec_id} now.",
            "onceonly recover PIPELINE",
            code="iceberg-spec-changed",
        )


def require_spec(sink: str, table: Table, staged: StagedList) -> PartitionSpec:
    """Return the spec of staged files, which may be an older one: a table keeps files of several."""
    spec = table.specs().get(staged.spec_id)
    if spec is None:
        raise _lost_error(sink, table, f"partition spec {staged.spec_id}")
    return spec


def require_schema(sink: str, table: Table, staged: StagedList) -> Schema:
    schema = table.schemas().get(staged.schema_id)
    if schema is None:
        raise _lost_error(sink, table, f"schema {staged.schema_id}")
    return schema


def _lost_error(sink: str, table: Table, what: str) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': {'.'.join(table.name())} no longer has {what}.",
        "The staged files were written with it. Somebody has removed unused metadata.",
        f"onceonly resolve PIPELINE EPOCH --give-up {sink} --reason …. The staged rows are kept.",
        code="iceberg-metadata-removed",
    )


def missing_files_error(sink: str, handle: Handle, path: str, error: type[OnceonlyError]) -> OnceonlyError:
    return error(
        f"sink '{sink}': a staged file is missing, or has another size.",
        f"{path} is one of {handle['files']:,} files of {handle['txn']}. remove_orphan_files deletes files that were "
        "not published within its time (older_than).",
        "Restore it, then: onceonly recover PIPELINE. If no copy exists: onceonly resolve PIPELINE EPOCH --give-up "
        f"{sink} --reason …",
        code="staged-files-missing",
    )


def other_table_error(sink: str, place: str, handle: Handle, table_uuid: str | None) -> CannotPublish:
    found = f"It is now another table (id {table_uuid})" if table_uuid else "It no longer exists"
    return CannotPublish(
        f"sink '{sink}': {place} is not the table for which the rows were staged.",
        f"{found}; the rows were staged for id {handle['table_uuid']}.",
        f"Restore the table, then: onceonly recover PIPELINE. Or: onceonly resolve PIPELINE EPOCH --give-up {sink} "
        "--reason …",
        code="target-recreated",
    )


def altered_evidence_error(sink: str, place: str, app_id: str, error: Exception) -> CannotPublish:
    return CannotPublish(
        f"sink '{sink}': the evidence in {place} was altered.",
        f"The table's property {app_id.replace('/', '.')} cannot be read: {type(error).__name__}: {error}",
        "Restore its value from an older metadata file of the table, then: onceonly recover PIPELINE. Nothing was "
        "published.",
        code="iceberg-evidence-altered",
    )


def crowded_error(sink: str, place: str, attempts: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{sink}': it is not known whether the rows reached {place}.",
        f"{attempts} commits in a row were refused, because other writers were first.",
        "Nothing was deleted. Publishing again is safe: onceonly recover",
        code="iceberg-crowded",
    )


def no_table_to_fence_error(sink: str, place: str) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"sink '{sink}': the decision cannot be closed in {place}.",
        "There is no table. A process that still runs may publish once it is there again.",
        "Bring the table back, or, if it no longer exists: onceonly resolve PIPELINE EPOCH --give-up SINK --gone "
        "--reason …",
        code="open-decision",
    )
