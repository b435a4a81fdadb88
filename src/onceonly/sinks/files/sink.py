"""Folders of files, each published exactly once: Parquet, JSON lines, CSV, Avro.

`stage` writes files into a folder beside the target; `commit` gives each its final name in one step and then writes the
checkpoint's manifest, in `_onceonly/` of the target: the evidence, and the list for readers that want all or nothing
(`onceonly.manifests`). Final names follow from state table, pipeline, sink and epoch alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import Inspectable, KeepsCopies, Receipts, Replaceable, ShowsEvidence, Sink, Trace, Traced
from onceonly.filesystems import confined
from onceonly.filesystems.confined import OwnPath, manifest_of
from onceonly.filesystems.folders import named
from onceonly.filesystems.interface import FileSystem, parent
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.context import Context
from onceonly.sinks.files import errors, gate_view, manifest, moves, stage
from onceonly.sinks.files import handle as filehandle
from onceonly.sinks.files.handle import FileHandle, staging_of
from onceonly.sinks.files.manifest import Manifest
from onceonly.sinks.files.moves import FileMissing, NameTaken
from onceonly.sinks.staging import handles, row_types

GIVEN_UP = "given-up"  # what `data` of a staged folder is called once nobody may publish it


class FileWriter(Sink, KeepsCopies, Traced, Replaceable, Inspectable, ShowsEvidence):
    """The live side of a `FileSink`.

    Args:
        uri: the target's absolute path, file:// or hdfs:// URI.
        webhdfs: HTTP address of the NameNode, for a target on HDFS; by default its host, at Hadoop's own port.
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
        folder, count = stage.write(self.config, txn, self._on, self._target, rows)
        files = stage.describe(self.config, txn, self._on, folder, count)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": folder,
            "manifest": manifest_of(txn),
            "schema": row_types.of(rows),
            "partition_by": list(self.config.partition_by),
            "rows": count,
            "bytes": sum(file.print.bytes for file in files),
            "files": [file.to_json() for file in files],
        }

    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """Move what is not moved yet, then write the manifest.

        Raises:
            Fenced: it was given up, and what another process had moved is taken back.
            StateBehind: another transaction has published this epoch.
            CannotPublish: a final name belongs to another file, a file is missing, or the handle is damaged.
            OutcomeUnknown: the file system failed, or does not answer; safe to call again.
        """
        mine = self._mine(handle)
        try:
            return self._publish(mine, decision)
        except (NameTaken, FileMissing, OSError) as error:
            raise self._failed(mine, error) from error

    def _publish(self, mine: FileHandle, decision: int) -> Outcome:
        done, staged = {"rows": mine.rows}, self._staged(mine)
        if self._is_published(mine):
            self._remove_replaced(mine)
            return Outcome(already=True, detail=done)
        try:
            if mine.rewinds:  # nothing was staged for it
                self._on.make_folder(staged.path, staged.root)
            moves.move(self._on, mine.files, staged.below("data"), self._target)
            found = self._write(mine, manifest.published(mine, decision))
        except (NameTaken, FileMissing, OSError):
            if self._is_published(mine):  # by another process, or by us; who did it may have died before this
                self._remove_replaced(mine)
                return Outcome(already=True, detail=done)
            raise
        if found is not None:
            self._judge(mine, found)
        self._remove_replaced(mine)
        return Outcome(already=found is not None, detail=done)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Take the manifest's name, without which nothing is published; then what a committer moves files from.

        The name goes to one of the two in one step. What a process leaves that dies after it, the next one does, and
        be it a commit.
        """
        mine = self._mine(handle)
        given_up, staged = manifest.given_up(mine, decision), self._staged(mine)
        try:
            self._on.make_folder(staged.path, staged.root)  # also for staged files that no longer exist
            found = self._shown(mine) or self._write(mine, given_up) or given_up
            if self._names(mine, found):
                return Outcome(already=True, detail={"rows": mine.rows})
            self._take_back(mine, found)
        except (NameTaken, OSError) as error:
            raise self._failed(mine, error) from error
        return None

    def _take_back(self, mine: FileHandle, found: Manifest) -> None:
        """No file can be moved from now on, and none keeps its final name, unless it is listed; the rows are kept."""
        staged, theirs = self._staged(mine), manifest.listed(found)
        self._on.rename_folder(staged.below("data"), staged.below(GIVEN_UP))
        ours = [file for file in mine.files if file.final not in theirs]
        moves.move_back(self._on, ours, staged.below(GIVEN_UP), self._target)
        if mine.rewinds:
            self.discard(mine.txn, None)

    def traces(self, pipeline: str) -> list[Trace]:
        return manifest.traces(self._on, self._target, pipeline, self.name)

    def check_replace(self, old: Handle) -> None:
        """By manifest; the old files go once the new manifest is there."""
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
        """Files first: as long as the old manifest is there, this is not done."""
        for old in mine.out:
            for file in old.files:
                self._on.remove(OwnPath(self._target, file))
            self._on.remove(OwnPath(self._target, old.manifest))
        if mine.rewinds:
            self.discard(mine.txn, None)  # where the manifest was made; no attempt owns it

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete what is staged; what has its final name stays."""
        self._on.delete(OwnPath(self._staging, txn.name))
        self._on.remove(OwnPath(self._target, f".{txn.name}"))  # tried out by a stage that was killed
        self._on.remove_empty(self._staging)  # unless others are staged there

    def release(self, txn: Transaction) -> None:
        self.discard(txn, None)

    def leftovers(self, prefix: str) -> list[Transaction]:
        return named(self._on.names(self._staging), prefix)

    def staged(self, handle: Handle) -> Any:
        return gate_view.batches(self._on, self._here(handle))

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return gate_view.frame(self._here(handle), spark)

    def _here(self, handle: Handle) -> Handle:
        """With the folder that would be published, whatever the handle says."""
        return {**handle, "folder": self._staged(self._mine(handle)).below("data").path}

    def evidence(self, handle: Handle) -> list[str]:
        mine = self._mine(handle)
        try:
            found = self._shown(mine)
        except NameTaken as error:
            return [f"{error} is no manifest of ours"]
        if found:
            told = "it was given up" if manifest.is_given_up(found) else "every file was moved"
            return [f"the manifest {mine.manifest} of {found['txn']} is there: {told}"]
        target, folder = self._target, self._staged(mine).below("data").path
        moved = sum(self._on.exists(f"{target}/{file.final}") for file in mine.files)
        waiting = sum(self._on.exists(f"{folder}/{file.staged}") for file in mine.files)
        return [f"no manifest; of {len(mine.files)} files {moved} are in {target}, {waiting} in {folder}"]

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
        """What it says, of the target that the pipeline's definition names, whatever it is called there.

        Raises:
            CannotPublish: it says something else.
        """
        mine = filehandle.parse(self.name, handle)
        if not self._on.same(handle["target"], self._target):
            raise errors.elsewhere(self.name, handle, self._target)
        return mine

    def _write(self, mine: FileHandle, content: Manifest) -> Manifest | None:
        """What has the manifest's name already; None: `content` has it now."""
        return moves.write_manifest(self._on, f"{self._target}/{mine.manifest}", content, self._staged(mine))

    def _shown(self, mine: FileHandle) -> Manifest | None:
        """On disk, when something follows from it: whoever made it may not have lived to see to that."""
        path = f"{self._target}/{mine.manifest}"
        found = moves.read_manifest(self._on, path)
        if found is not None:
            self._on.sync_names(parent(path))
        return found

    def _is_published(self, mine: FileHandle) -> bool:
        found = self._shown(mine)
        if found is not None:
            self._judge(mine, found)
        return found is not None

    def _holds(self, mine: FileHandle) -> bool:
        """Whether the target shows that it was published, and nothing more is asked."""
        try:
            found = self._shown(mine)
        except NameTaken:
            return False
        return found is not None and self._names(mine, found)

    def _names(self, mine: FileHandle, found: Manifest) -> bool:
        return bool(found["txn"] == mine.txn.name) and not manifest.is_given_up(found)

    def _judge(self, mine: FileHandle, found: Manifest) -> None:
        """Raise, unless the manifest that is there says that `mine` is published."""
        path, owner = f"{self._target}/{mine.manifest}", Transaction.parse(found["txn"])
        if owner is not None and owner != mine.txn:
            raise errors.behind(mine, owner, path)
        if manifest.is_given_up(found):
            self._take_back(mine, found)  # this process may have moved files, and whoever gave it up may have died
            raise errors.given_up(mine, path, self._staged(mine).below(GIVEN_UP).path)

    def _failed(self, mine: FileHandle, error: Exception) -> Exception:
        return errors.failed(mine, error, self._target, self._staged(mine).path)
