"""The one commit: a fast append and the sink's property, asserted on the branch's head, and never retried by itself.

PyIceberg repeats a commit that was refused, on the new head (commit.retry.*). A second committer of the same files
would then publish them again. So the commit is sent once, and whoever was refused looks at the evidence again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.exceptions import BadRequestError, CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    TableRequirement,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _FastAppendFiles

from onceonly.sinks import LastDecision
from onceonly_iceberg.evidence import (
    APP_ID_KEY,
    DECISION_KEY,
    TXN_KEY,
    Evidence,
    property_name,
)

STALE = "sequence number"  # in the message of a refusal, where another branch has got a snapshot meanwhile


class Refused(Exception):
    """The commit certainly did not land: somebody else was first."""


class AssertHead(AssertRefSnapshotId):
    """PyIceberg's requirement; but the first snapshot of a table may be one of another branch than main, too."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as PyIceberg has it
        if base_metadata is None or base_metadata.snapshots or self.snapshot_id is not None:
            super().validate(base_metadata)


class StagedAppend(_FastAppendFiles):
    """A fast append of files in the partition spec for which they were written, also where the table has a new one."""

    def _commit(self) -> UpdatesAndRequirements:
        updates, own = super()._commit()
        requirements: list[TableRequirement] = []
        for one in own:
            if isinstance(one, AssertRefSnapshotId):
                requirements.append(AssertHead.model_validate({"ref": one.ref, "snapshot-id": one.snapshot_id}))
            else:
                requirements.append(one)
        return updates, tuple(requirements)

    def _manifests(self) -> list[ManifestFile]:
        existing = self._existing_manifests()
        if not self._added_data_files:
            return existing
        with self.new_manifest_writer(self.spec(self._added_data_files[0].spec_id)) as writer:
            for file in self._added_data_files:
                entry = ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=self._snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
                writer.add(entry)
        return [writer.to_manifest_file(), *existing]


def append(
    table: Table,
    branch: str,
    app_id: str,
    last: LastDecision,
    files: Sequence[DataFile],
    properties: Mapping[str, str],
) -> Evidence:
    """Append the files and set the evidence in one commit; of no files, the snapshot is empty.

    Args:
        table: as it was when the evidence was read. It has the new metadata afterwards.
        properties: of the table, set in the same commit.
    Returns:
        The evidence that was set.
    Raises:
        Refused: somebody else was first.
        Any other error: the outcome is unknown.
    """
    transaction = Transaction(table)
    summary = {APP_ID_KEY: app_id, DECISION_KEY: str(last.decision), TXN_KEY: last.txn}
    producer = StagedAppend(
        operation=Operation.APPEND,
        transaction=transaction,
        io=table.io,
        snapshot_properties=summary,
        branch=branch,
    )
    for file in files:
        producer.append_data_file(file)
    producer.commit()
    evidence = Evidence(last, producer.snapshot_id, table.metadata.next_sequence_number(), branch)
    transaction.set_properties({**properties, property_name(app_id): evidence.to_text()})
    same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
    # The staged columns were compared with these, and a name mapping was made of them.
    same_columns = AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})
    requirements = (*transaction._requirements, same_table, same_columns)
    try:
        table._do_commit(updates=transaction._updates, requirements=requirements)
    except (CommitFailedException, ValidationException) as error:
        _clean_up(producer, table)
        raise Refused(str(error)) from error
    except (BadRequestError, ValueError) as error:
        if STALE not in str(error):
            raise
        _clean_up(producer, table)
        raise Refused(str(error)) from error
    return evidence


def _clean_up(producer: StagedAppend, table: Table) -> None:
    """Delete the manifests of a refused commit, unless the refusal was of a repetition of one that had landed."""
    table.refresh()
    if table.metadata.snapshot_by_id(producer.snapshot_id) is None:
        producer._clean_all_uncommitted()
