"""Folders of files, each published exactly once: Parquet, JSON lines, CSV, Avro.

`stage` writes files into a folder next to the target. `commit` gives each file its final name in one step, and then
writes the checkpoint's manifest in `_onceonly/` of the target. The manifest is the evidence, and the list for readers
that want all files of a checkpoint or none (`onceonly.storage.manifests`). Final names are derived from state table,
pipeline, sink and epoch only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    DecisionTraces,
    History,
    InspectableRows,
    Publication,
    Receipts,
    ReplaceableRows,
    RowLocation,
    Sink,
    TargetHistory,
    Trace,
    VersionedTarget,
)
from onceonly.checkpoint.transaction_names import file_stem, list_transactions, manifest_path
from onceonly.checkpoint.verification import Depth, Finding, Published, VerifiableTarget
from onceonly.counts import count
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.context import Context
from onceonly.sinks.files import errors, gate_view, manifest, moves, stage, verification
from onceonly.sinks.files.errors import FileMissing, NameTaken
from onceonly.sinks.files.handle import FileHandle, PublishedFiles, StagedFile, staging_of
from onceonly.sinks.files.manifest import Manifest
from onceonly.sinks.staging import handles, history, row_types
from onceonly.sinks.staging.handles import refuse_before_decision
from onceonly.storage.interface import FileSystem, has_folder, parent
from onceonly.storage.own_paths import OwnPath

GIVEN_UP = "given-up"  # the new name of `data` in a staged folder that must not be published any more


class FileWriter(
    Sink, DecisionTraces, TargetHistory, ReplaceableRows, VersionedTarget, InspectableRows, VerifiableTarget
):
    """Writes to the target of a `FileSink`.

    Args:
        uri: the target's absolute path, file://, hdfs:// or s3:// URI.
        webhdfs: HTTP address of the NameNode, for a target on HDFS; by default its host and Hadoop's default port.
    """

    handle_shape = handles.Files

    def __init__(self, config: FileSink, uri: str, webhdfs: str | None = None) -> None:
        self.name, self.config, self._uri, self._webhdfs = config.name, config, uri, webhdfs

    @classmethod
    def make(cls, config: FileSink, context: Context) -> FileWriter:
        return cls(config, context.locate(config.path), context.settings.webhdfs)

    def check(self) -> list[str]:
        stage.check(self.config, self._file_system, self._target)
        return [f"{self.name}: moves {self.config.format} files to {self._target}"]

    def list_written_folders(self) -> list[str]:
        uri = self._uri.rstrip("/")
        return [staging_of(uri), uri]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        stage.check(self.config, self._file_system, self._target)
        folder, rows_staged = stage.write(self.config, txn, self._file_system, self._target, rows)
        files = stage.prepare_files(self.config, txn, self._file_system, self._target, folder, rows_staged)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": folder,
            "manifest": manifest_path(txn),
            "schema": row_types.read_schema(rows),
            "partition_by": list(self.config.partition_by),
            "rows": rows_staged,
            "bytes": sum(file.fingerprint.bytes for file in files),
            "files": list(map(StagedFile.to_json, files)),
        }

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Look at every staged file, and try the names that the commit will create, in places that readers ignore.

        Raises:
            StageAgain: a staged file is missing, or was replaced by another.
            ActionNeeded: a name is taken, the target is missing, or this process may not publish there.
            TargetWentBack, StateBehind, Fenced: as in `commit`.
            NotCommitted: no answer.
        """
        file_handle = self._parse_handle(handle)
        content = manifest.build(file_handle, decision)
        try:
            existing = self._read_manifest(file_handle)
            if existing is None:
                history.require(self, last)
                staged = self._staged_folder(file_handle)
                moves.rehearse(self._file_system, file_handle, staged, self._target, content)
        except (*moves.REFUSALS, OSError) as error:
            raise errors.explain_failed_rehearsal(file_handle, error, self._target) from error
        if existing is not None:
            self._check_owner(file_handle, existing)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Move the files that were not moved yet, then write the manifest.

        Raises:
            Fenced: the transaction was given up. Files that were already moved were moved back.
            StateBehind: another transaction has published this epoch.
            TargetWentBack: the target lacks the sink's last publication. It is not created again.
            CannotPublish: a final name belongs to another file, a file is missing, or the handle is damaged.
            OutcomeUnknown: the file system failed or does not answer. It is safe to call again.
        """
        file_handle = self._parse_handle(handle)
        try:
            return self._publish(file_handle, decision, last)
        except (NameTaken, FileMissing, OSError) as error:
            raise self._explain_failure(file_handle, error) from error

    def _publish(self, file_handle: FileHandle, decision: int, last: Publication | None) -> Outcome:
        """Publish what is not published yet.

        If the process dies before the manifest exists, the next call moves the files that were not moved. If it dies
        after that, the next call finds the manifest, and only removes what is replaced.
        """
        existing = self._read_publication(file_handle)
        if existing:
            return self._finish(file_handle, existing, already=True)
        staged, content = self._staged_folder(file_handle), manifest.build(file_handle, decision)
        if not history.require(self, last):
            self._make_target()
        try:
            if file_handle.rewinds:  # nothing was staged for it
                self._file_system.begin(staged)
            moves.move(self._file_system, file_handle.files, staged.join("data"), self._target)
            existing = self._write_manifest(file_handle, content)
        except (NameTaken, FileMissing, OSError):
            existing = self._read_publication(file_handle)
            if existing:  # by another process, or this one, whose answer was lost
                return self._finish(file_handle, existing, already=True)
            raise
        if existing is not None:
            self._require_published(file_handle, existing)
        return self._finish(file_handle, existing or content, already=existing is not None)

    def _finish(self, file_handle: FileHandle, content: Manifest, already: bool) -> Outcome:
        """Remove what the published transaction replaces, then return its outcome.

        Args:
            content: of the manifest in the target.
            already: it was published before this call.
        """
        self._remove_replaced(file_handle)
        proof = manifest.proof(self._target, file_handle.manifest, content)
        return Outcome(already, {"rows": file_handle.rows}, proof)

    def _make_target(self) -> None:
        """Create the target for its first publication. Its parent exists: rows are staged there."""
        self._file_system.make_folder(self._target, parent(self._target))

    def compare(self, last: Publication) -> History:
        with history.require_answer(self.name, self._target):
            return manifest.compare(self._file_system, self._target, last)

    def find_current_publication(self, last: Publication) -> Publication | None:
        with history.require_answer(self.name, self._target):
            return manifest.find_current_publication(self._file_system, self._target, last)

    def verify(self, published: Sequence[Published], depth: Depth) -> Iterator[Finding]:
        return verification.verify(self.name, self._file_system, self._target, published, depth)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Write a manifest without files under the manifest's name, then rename the folder from which files are moved.

        Only one of commit and fence gets the name, in one step. If the process dies after that, the next call of either
        method completes what is missing.
        """
        file_handle = self._parse_handle(handle)
        given_up, staged = manifest.build_given_up(file_handle, decision), self._staged_folder(file_handle)
        try:
            if not self._has_a_folder():
                raise errors.missing_target_error(self.name, self._target)
            self._file_system.begin(staged)  # also for staged files that no longer exist
            self._make_target()
            content = self._read_manifest(file_handle) or self._write_manifest(file_handle, given_up) or given_up
            if self._is_proof_of(file_handle, content):
                return Outcome(already=True, detail={"rows": file_handle.rows})
            self._prevent_publication(file_handle, content)
        except (NameTaken, OSError) as error:
            raise self._explain_failure(file_handle, error) from error
        return None

    def _has_a_folder(self) -> bool:
        """Return whether the target or its staging folder exists. If neither does, their volume may not be mounted."""
        folders = (self._target, self._staging_folder)
        return any(has_folder(self._file_system, folder) for folder in folders)

    def _prevent_publication(self, file_handle: FileHandle, content: Manifest) -> None:
        """Prevent further moves, and move back all files that the manifest does not list. The rows are kept."""
        staged, published = self._staged_folder(file_handle), manifest.list_paths(content)
        self._file_system.rename_folder(staged.join("data"), staged.join(GIVEN_UP))
        self._file_system.end_uploads(self._target, file_stem(file_handle.txn))
        unpublished = [file for file in file_handle.files if file.final not in published]
        moves.move_back(self._file_system, unpublished, staged.join(GIVEN_UP), self._target)
        if file_handle.rewinds:
            self.discard(file_handle.txn, None)

    def traces(self, pipeline: str) -> list[Trace]:
        return manifest.traces(self._file_system, self._target, pipeline, self.name)

    def locate_rows(self, handle: Handle, decision: int) -> RowLocation:
        """Return where the rows are. Readers go by the decisions of manifests, each with the rows of one checkpoint."""
        file_handle = self._parse_handle(handle)
        return RowLocation(file_handle.txn.prefix, decision, file_handle.manifest, len(file_handle.files))

    def check_replace(self, old: Handle) -> None:
        """Refuse a handle whose manifest no longer exists.

        The old files are removed after the new manifest was written.
        """
        with refuse_before_decision():
            file_handle = self._parse_handle(old)
        if not self._is_published(file_handle):
            raise errors.replacement_error(file_handle)

    def retraction(self, txn: Transaction, olds: Sequence[Handle], restored: Handle | None) -> Handle:
        for old in olds:
            self.check_replace(old)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": f"{self._staging_folder}/{txn.name}/data",
            "manifest": manifest_path(txn),
            **{"rows": 0, "bytes": 0, "files": []},
            "retracts": [{"manifest": old["manifest"], "files": old["files"]} for old in olds],
        }

    def _remove_replaced(self, file_handle: FileHandle) -> None:
        """Remove what the transaction replaces. The manifest is removed last: while it exists, this is repeated."""
        for publication in file_handle.replaced:
            self._end_publication(publication)
            for file in publication.files:
                self._file_system.remove(OwnPath(self._target, file))
            self._file_system.remove(OwnPath(self._target, publication.manifest))
        if file_handle.rewinds:
            self.discard(file_handle.txn, None)  # the folder in which the manifest was written; no attempt owns it

    def _end_publication(self, publication: PublishedFiles) -> None:
        """Delete what is staged for it, so that no process can publish it again once its names are free.

        A process that hangs in a commit may still wake up.
        """
        content = manifest.read_ours(self._file_system, f"{self._target}/{publication.manifest}")
        if content:
            self._file_system.delete(OwnPath(self._staging_folder, content["txn"]))
            self._file_system.end_uploads(self._target, publication.stem)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the staged files. Files that have their final names stay.

        On an object store, what another attempt has prepared for the same names may end as well. Its commit prepares
        that again.
        """
        self.release(txn)
        self._file_system.end_uploads(f"{self._staging_folder}/{txn.name}", "")  # of Spark
        self._file_system.end_uploads(self._target, file_stem(txn))

    def release(self, txn: Transaction) -> None:
        folder = OwnPath(self._staging_folder, txn.name)
        self._file_system.remove_probes(folder, self._target)
        self._file_system.delete(folder)
        self._file_system.remove_empty(self._staging_folder)  # unless others are staged there

    def leftovers(self, prefix: str) -> list[Transaction]:
        return list_transactions(self._file_system.list_names(self._staging_folder), prefix)

    def read_staged(self, handle: Handle) -> Any:
        file_handle = self._parse_handle(handle)
        return gate_view.batches(self._file_system, file_handle, self._rows_folder(file_handle))

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        file_handle = self._parse_handle(handle)
        return gate_view.frame(file_handle, self._rows_folder(file_handle), spark)

    def _rows_folder(self, file_handle: FileHandle) -> str:
        """Return the folder from which files would be published, whichever the handle names."""
        return self._staged_folder(file_handle).join("data").path

    def evidence(self, handle: Handle) -> list[str]:
        """Describe the manifest; without one, how many files were moved, and how many wait."""
        file_handle = self._parse_handle(handle)
        try:
            content = self._read_manifest(file_handle)
        except NameTaken as error:
            return [f"{error} is not a manifest of Onceonly"]
        if content:
            outcome = "it was given up" if manifest.is_given_up(content) else "every file was moved"
            return [f"the manifest {file_handle.manifest} of {content['txn']} exists: {outcome}"]
        target, folder = self._target, self._rows_folder(file_handle)
        moved = sum(self._file_system.exists(f"{target}/{file.final}") for file in file_handle.files)
        waiting = sum(self._file_system.exists(f"{folder}/{file.staged}") for file in file_handle.files)
        locations = f"{count(moved, 'file')} in {target}, {count(waiting, 'file')} in {folder}"
        return [f"no manifest; of {count(len(file_handle.files), 'file')}: {locations}"]

    @cached_property
    def _location(self) -> tuple[FileSystem, str]:
        return stage.file_system_of(self.name, self._uri, self._webhdfs)

    @property
    def _file_system(self) -> FileSystem:
        return self._location[0]

    @property
    def _target(self) -> str:
        return self._location[1]

    @property
    def _staging_folder(self) -> str:
        return staging_of(self._target)

    def _staged_folder(self, file_handle: FileHandle) -> OwnPath:
        return OwnPath(self._staging_folder, file_handle.txn.name)

    def _parse_handle(self, handle: Handle) -> FileHandle:
        """Parse a handle. Its target has to be the folder of the definition, possibly by another path.

        Raises:
            CannotPublish: the handle is not valid, or has another target.
        """
        file_handle = FileHandle.parse(self.name, handle)
        if not self._file_system.is_same_folder(file_handle.target, self._target):
            raise errors.other_target_error(file_handle, self._target)
        return file_handle

    def _write_manifest(self, file_handle: FileHandle, content: Manifest) -> Manifest | None:
        """Write the manifest; return the one that already exists, or None if `content` was written."""
        path, staged = f"{self._target}/{file_handle.manifest}", self._staged_folder(file_handle)
        return manifest.write(self._file_system, path, content, staged)

    def _read_manifest(self, file_handle: FileHandle) -> Manifest | None:
        """Return the manifest of the handle's epoch, if there is one: of this transaction, or of another.

        It is synced here: the process that wrote it may have died before that.
        """
        path = f"{self._target}/{file_handle.manifest}"
        content = manifest.read(self._file_system, path)
        if content is not None:
            self._file_system.sync_names(parent(path))
        return content

    def _read_publication(self, file_handle: FileHandle) -> Manifest | None:
        """Return the manifest, if it shows that the handle is published; None if there is no manifest.

        Raises as `_require_published`.
        """
        content = self._read_manifest(file_handle)
        if content is not None:
            self._require_published(file_handle, content)
        return content

    def _is_published(self, file_handle: FileHandle) -> bool:
        """Return whether the target shows that this transaction was published. Changes nothing."""
        try:
            content = self._read_manifest(file_handle)
        except NameTaken:
            return False
        return content is not None and self._is_proof_of(file_handle, content)

    def _is_proof_of(self, file_handle: FileHandle, content: Manifest) -> bool:
        return bool(content["txn"] == file_handle.txn.name) and not manifest.is_given_up(content)

    def _require_published(self, file_handle: FileHandle, content: Manifest) -> None:
        """Raise unless the existing manifest shows that the handle is published.

        Raises:
            StateBehind: the manifest is that of another transaction of this epoch.
            Fenced: the transaction was given up. Its files are moved back before that is raised.
        """
        if manifest.is_given_up(content) and content["txn"] == file_handle.txn.name:
            # This process may have moved files, and the one that gave it up may have died.
            self._prevent_publication(file_handle, content)
        self._check_owner(file_handle, content)

    def _check_owner(self, file_handle: FileHandle, content: Manifest) -> None:
        """Raise as `_require_published`, and change nothing."""
        path, owner = f"{self._target}/{file_handle.manifest}", Transaction.parse(content["txn"])
        if owner is not None and owner != file_handle.txn:
            raise errors.older_state_error(file_handle, owner, path)
        if manifest.is_given_up(content):
            raise errors.given_up_error(file_handle, path, self._staged_folder(file_handle).join(GIVEN_UP).path)

    def _explain_failure(self, file_handle: FileHandle, error: Exception) -> Exception:
        unfit = self._file_system.find_refusal(error) if isinstance(error, OSError) else None
        if unfit:
            return errors.unsuitable_target_error(file_handle, unfit, self._target)
        return errors.explain_failure(file_handle, error, self._target, self._staged_folder(file_handle).path)
