"""Folders of files, each published exactly once: Parquet, JSON lines, CSV, Avro.

`stage` writes files into a folder next to the target. `commit` gives each file its final name in one step, and then
writes the checkpoint's manifest in `_onceonly/` of the target. The manifest is the evidence, and the list for readers
that want all files of a checkpoint or none (`onceonly.manifests`). Final names are derived from state table, pipeline,
sink and epoch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    History,
    Inspectable,
    KeepsCopies,
    Landed,
    ProvesHistory,
    Publication,
    Receipts,
    Replaceable,
    ShowsEvidence,
    Sink,
    Trace,
    Traced,
    Versioned,
)
from onceonly.counts import count
from onceonly.errors import OutcomeUnknown
from onceonly.filesystems import confined
from onceonly.filesystems.confined import OwnPath, manifest_of, stem
from onceonly.filesystems.folders import named
from onceonly.filesystems.interface import FileSystem, parent
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.context import Context
from onceonly.sinks.files import errors, gate_view, history, manifest, moves, rehearsal, stage
from onceonly.sinks.files import handle as filehandle
from onceonly.sinks.files.handle import FileHandle, Published, staging_of
from onceonly.sinks.files.manifest import Manifest
from onceonly.sinks.files.moves import FileMissing, NameTaken
from onceonly.sinks.staging import handles, row_types
from onceonly.sinks.staging import history as histories

GIVEN_UP = "given-up"  # the new name of `data` in a staged folder that must not be published any more


class FileWriter(Sink, KeepsCopies, Traced, ProvesHistory, Replaceable, Versioned, Inspectable, ShowsEvidence):
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
        stage.check(self.config, self._on, self._target)
        return [f"{self.name}: moves {self.config.format} files to {self._target}"]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        stage.check(self.config, self._on, self._target)
        folder, rows_staged = stage.write(self.config, txn, self._on, self._target, rows)
        files = stage.describe(self.config, txn, self._on, self._target, folder, rows_staged)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": folder,
            "manifest": manifest_of(txn),
            "schema": row_types.of(rows),
            "partition_by": list(self.config.partition_by),
            "rows": rows_staged,
            "bytes": sum(file.print.bytes for file in files),
            "files": [file.to_json() for file in files],
        }

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Look at every staged file, and try the names that the commit will create, in places that readers ignore.

        Raises:
            StageAgain: a staged file is missing, or was replaced by another.
            ActionNeeded: a name is taken, the target is missing, or this process may not publish there.
            TargetWentBack, StateBehind, Fenced: as in `commit`.
            NotCommitted: no answer.
        """
        mine = self._mine(handle)
        content = manifest.published(mine, decision)
        try:
            shown = self._shown(mine)
            if shown is None:
                histories.require(self, last)
                rehearsal.rehearse(self._on, mine, self._staged(mine), self._target, content)
        except (*rehearsal.REFUSALS, OSError) as error:
            raise errors.undecided(mine, error, self._target) from error
        if shown is not None:
            self._check_owner(mine, shown)
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
        mine = self._mine(handle)
        try:
            return self._publish(mine, decision, last)
        except (NameTaken, FileMissing, OSError) as error:
            raise self._failed(mine, error) from error

    def _publish(self, mine: FileHandle, decision: int, last: Publication | None) -> Outcome:
        if shown := self._published(mine):
            return self._done(mine, shown, already=True)
        staged, content = self._staged(mine), manifest.published(mine, decision)
        if not histories.require(self, last):
            self._make_target()
        try:
            if mine.rewinds:  # nothing was staged for it
                self._on.begin(staged)
            moves.move(self._on, mine.files, staged.below("data"), self._target)
            shown = self._write(mine, content)
        except (NameTaken, FileMissing, OSError):
            if shown := self._published(mine):  # by another process, or this one, whose answer was lost
                return self._done(mine, shown, already=True)
            raise
        if shown is not None:
            self._judge(mine, shown)
        return self._done(mine, shown or content, already=shown is not None)

    def _done(self, mine: FileHandle, shown: Manifest, already: bool) -> Outcome:
        """The outcome, once what it replaces is removed."""
        self._remove_replaced(mine)
        proof = history.proof(self._target, mine.manifest, shown)
        return Outcome(already, {"rows": mine.rows}, proof)

    def _make_target(self) -> None:
        """For its first publication. Its parent exists: rows are staged there."""
        self._on.make_folder(self._target, parent(self._target))

    def compare(self, last: Publication) -> History:
        try:
            return history.compare(self._on, self._target, last)
        except OSError as error:
            raise self._silent(error) from error

    def proof_now(self, last: Publication) -> Publication | None:
        try:
            return history.proof_now(self._on, self._target, last)
        except OSError as error:
            raise self._silent(error) from error

    def _silent(self, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"sink '{self.name}': {self._target} does not answer.",
            f"{type(error).__name__}: {error}",
            "Nothing was changed. Try again when it can be reached.",
            "no-answer",
        )

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Write a manifest without files under the manifest's name, then rename the folder from which files are moved.

        Only one of commit and fence gets the name, in one step. If the process dies after that, the next call of either
        method completes what is missing.
        """
        mine = self._mine(handle)
        given_up, staged = manifest.given_up(mine, decision), self._staged(mine)
        try:
            if not any(rehearsal.is_there(self._on, folder) for folder in (self._target, self._staging)):
                raise errors.not_there(self.name, self._target)
            self._on.begin(staged)  # also for staged files that no longer exist
            self._make_target()
            found = self._shown(mine) or self._write(mine, given_up) or given_up
            if self._names(mine, found):
                return Outcome(already=True, detail={"rows": mine.rows})
            self._take_back(mine, found)
        except (NameTaken, OSError) as error:
            raise self._failed(mine, error) from error
        return None

    def _take_back(self, mine: FileHandle, found: Manifest) -> None:
        """Prevent further moves, and move back all files that the manifest does not list. The rows are kept."""
        staged, theirs = self._staged(mine), manifest.listed(found)
        self._on.rename_folder(staged.below("data"), staged.below(GIVEN_UP))
        self._on.end_uploads(self._target, stem(mine.txn))
        ours = [file for file in mine.files if file.final not in theirs]
        moves.move_back(self._on, ours, staged.below(GIVEN_UP), self._target)
        if mine.rewinds:
            self.discard(mine.txn, None)

    def traces(self, pipeline: str) -> list[Trace]:
        return manifest.traces(self._on, self._target, pipeline, self.name)

    def landed(self, handle: Handle, decision: int) -> Landed:
        """A reader goes by the decisions of the manifests, and each has the rows of one checkpoint."""
        mine = self._mine(handle)
        return Landed(confined.stream(mine.txn), decision, mine.manifest, len(mine.files))

    def check_replace(self, old: Handle) -> None:
        """Possible while the old manifest exists. The old files are removed after the new manifest was written."""
        with confined.refused_early():
            mine = self._mine(old)
        if not self._holds(mine):
            raise errors.irreplaceable(self.name, old)

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        for old in olds:
            self.check_replace(old)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": f"{self._staging}/{txn.name}/data",
            "manifest": manifest_of(txn),
            **{"rows": 0, "bytes": 0, "files": []},
            "retracts": [{"manifest": old["manifest"], "files": old["files"]} for old in olds],
        }

    def _remove_replaced(self, mine: FileHandle) -> None:
        """The manifest is removed last: as long as it exists, this has to be repeated."""
        for old in mine.out:
            self._end(old)
            for file in old.files:
                self._on.remove(OwnPath(self._target, file))
            self._on.remove(OwnPath(self._target, old.manifest))
        if mine.rewinds:
            self.discard(mine.txn, None)  # the folder in which the manifest was written; no attempt owns it

    def _end(self, old: Published) -> None:
        """No process can publish it again, once its names are free: one that hangs in a commit may still wake up."""
        if found := manifest.read_ours(self._on, f"{self._target}/{old.manifest}"):
            self._on.delete(OwnPath(self._staging, found["txn"]))
            self._on.end_uploads(self._target, old.stem)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete the staged files. Files that have their final names stay.

        On an object store, what another attempt has prepared for the same names may end as well. Its commit prepares
        that again.
        """
        self.release(txn)
        self._on.end_uploads(f"{self._staging}/{txn.name}", "")  # of Spark
        self._on.end_uploads(self._target, stem(txn))

    def release(self, txn: Transaction) -> None:
        folder = OwnPath(self._staging, txn.name)
        self._on.remove_probes(folder, self._target)
        self._on.delete(folder)
        self._on.remove_empty(self._staging)  # unless others are staged there

    def leftovers(self, prefix: str) -> list[Transaction]:
        return named(self._on.names(self._staging), prefix)

    def staged(self, handle: Handle) -> Any:
        return gate_view.batches(self._on, self._here(handle))

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return gate_view.frame(self._here(handle), spark)

    def _here(self, handle: Handle) -> Handle:
        """The handle with the folder that would be published, even if the handle names another one."""
        return {**handle, "folder": self._staged(self._mine(handle)).below("data").path}

    def evidence(self, handle: Handle) -> list[str]:
        mine = self._mine(handle)
        try:
            found = self._shown(mine)
        except NameTaken as error:
            return [f"{error} is not a manifest of Onceonly"]
        if found:
            told = "it was given up" if manifest.is_given_up(found) else "every file was moved"
            return [f"the manifest {mine.manifest} of {found['txn']} exists: {told}"]
        target, folder = self._target, self._staged(mine).below("data").path
        moved = sum(self._on.exists(f"{target}/{file.final}") for file in mine.files)
        waiting = sum(self._on.exists(f"{folder}/{file.staged}") for file in mine.files)
        found_files = f"{count(moved, 'file')} in {target}, {count(waiting, 'file')} in {folder}"
        return [f"no manifest; of {count(len(mine.files), 'file')}: {found_files}"]

    @cached_property
    def _place(self) -> tuple[FileSystem, str]:
        return stage.file_system_of(self.name, self._uri, self._webhdfs)

    @property
    def _on(self) -> FileSystem:
        return self._place[0]

    @property
    def _target(self) -> str:
        return self._place[1]

    @property
    def _staging(self) -> str:
        return staging_of(self._target)

    def _staged(self, mine: FileHandle) -> OwnPath:
        return OwnPath(self._staging, mine.txn.name)

    def _mine(self, handle: Handle) -> FileHandle:
        """The parsed handle. Its target has to be the folder of the definition, possibly by another path.

        Raises:
            CannotPublish: the handle is not valid, or has another target.
        """
        mine = filehandle.parse(self.name, handle)
        if not self._on.same(handle["target"], self._target):
            raise errors.elsewhere(self.name, handle, self._target)
        return mine

    def _write(self, mine: FileHandle, content: Manifest) -> Manifest | None:
        """The manifest that already exists; None if `content` was written."""
        return moves.write_manifest(self._on, f"{self._target}/{mine.manifest}", content, self._staged(mine))

    def _shown(self, mine: FileHandle) -> Manifest | None:
        """The manifest, if there is one. It is synced here: the process that wrote it may have died before that."""
        path = f"{self._target}/{mine.manifest}"
        found = moves.read_manifest(self._on, path)
        if found is not None:
            self._on.sync_names(parent(path))
        return found

    def _published(self, mine: FileHandle) -> Manifest | None:
        """The manifest, if it shows that `mine` is published. Raises as `_judge`."""
        found = self._shown(mine)
        if found is not None:
            self._judge(mine, found)
        return found

    def _holds(self, mine: FileHandle) -> bool:
        """Whether the target shows that this transaction was published. Changes nothing."""
        try:
            found = self._shown(mine)
        except NameTaken:
            return False
        return found is not None and self._names(mine, found)

    def _names(self, mine: FileHandle, found: Manifest) -> bool:
        return bool(found["txn"] == mine.txn.name) and not manifest.is_given_up(found)

    def _judge(self, mine: FileHandle, found: Manifest) -> None:
        """Raise unless the existing manifest shows that `mine` is published."""
        if manifest.is_given_up(found) and found["txn"] == mine.txn.name:
            self._take_back(mine, found)  # this process may have moved files, and the one that gave it up may have died
        self._check_owner(mine, found)

    def _check_owner(self, mine: FileHandle, found: Manifest) -> None:
        """As `_judge`. Changes nothing."""
        path, owner = f"{self._target}/{mine.manifest}", Transaction.parse(found["txn"])
        if owner is not None and owner != mine.txn:
            raise errors.behind(mine, owner, path)
        if manifest.is_given_up(found):
            raise errors.given_up(mine, path, self._staged(mine).below(GIVEN_UP).path)

    def _failed(self, mine: FileHandle, error: Exception) -> Exception:
        unfit = self._on.refusal(error) if isinstance(error, OSError) else None
        if unfit:
            return errors.refused(mine, unfit, self._target)
        return errors.failed(mine, error, self._target, self._staged(mine).path)
