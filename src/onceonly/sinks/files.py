"""Folders of files, each published exactly once: Parquet, JSON lines, CSV, Avro.

`stage` writes files into a folder beside the target; `commit` gives each its final name in one step and then writes the
checkpoint's manifest, in `_onceonly/` of the target: the evidence, and the list for readers that want all or nothing
(`onceonly.manifests`). Final names follow from state table, pipeline, sink and epoch alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from onceonly.checkpoint import Handle, Outcome, Transaction, taken_out
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown
from onceonly.manifests import FOLDER as MANIFESTS
from onceonly.pipeline import FileSink
from onceonly.protocols import Receipts, Sink
from onceonly.sinks import filelook, filemoves, filestage, rowtypes
from onceonly.sinks.filemoves import Missing, StagedFile, Taken
from onceonly.sinks.filesystem import FileSystem, parent
from onceonly.sinks.folders import named


class FileWriter(Sink):
    """The live side of a `FileSink`.

    Args:
        uri: the target's absolute path, file:// or hdfs:// URI.
        webhdfs: HTTP address of the NameNode, for a target on HDFS; by default its host, at Hadoop's own port.
    """

    def __init__(self, config: FileSink, uri: str, webhdfs: str | None = None) -> None:
        self.name, self.config, self._uri, self._webhdfs = config.name, config, uri, webhdfs

    def check(self) -> list[str]:
        filestage.check(self.config, self._on, self._target)
        return [f"{self.name}: moves {self.config.format} files to {self._target}"]

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        filestage.check(self.config, self._on, self._target)
        folder, count = filestage.write(self.config, txn, self._on, self._target, rows)
        files = filestage.describe(self.config, txn, self._on, folder, count)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": folder,
            "manifest": f"{MANIFESTS}/{filestage.stem(txn)}.manifest",
            "schema": rowtypes.of(rows),
            "partition_by": list(self.config.partition_by),
            "rows": count,
            "bytes": sum(file.print.bytes for file in files),
            "files": [file.to_json() for file in files],
        }

    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """Move what is not moved yet, then write the manifest.

        Raises:
            CannotPublish: a final name is another file's, or a file is gone; a person must act.
            OutcomeUnknown: the file system failed, or does not answer; safe to call again.
        """
        try:
            return self._publish(handle)
        except OSError as error:
            raise self._failed(handle, error) from error

    def _publish(self, handle: Handle) -> Outcome:
        done, target, folder = {"rows": handle["rows"]}, handle["target"], handle["folder"]
        files, above = map(StagedFile.from_json, handle["files"]), parent(folder)
        if self._is_published(handle):
            self._remove_replaced(handle)
            return Outcome(already=True, detail=done)
        try:
            filemoves.move(self._on, files, folder, target)
            if not self._on.exists(above):
                self._on.make_folder(above, above)
            made = filemoves.write_manifest(self._on, f"{target}/{handle['manifest']}", _manifest(handle), above)
        except (Taken, Missing, OSError) as error:
            if self._is_published(handle):  # by another process, which has also cleaned up
                return Outcome(already=True, detail=done)
            raise self._failed(handle, error) from error
        self._remove_replaced(handle)
        return Outcome(already=not made, detail=done)

    def check_replace(self, old: Handle) -> None:
        """By manifest; the old files go once the new manifest is there."""
        if not self._is_published(old):
            raise InvalidPipeline(
                f"sink '{self.name}': the files that are published in {old['target']} cannot be replaced.",
                f"Their manifest {old['manifest']} is gone, or another one.",
                "Restore it, or feed the records again under a new name. Nothing was written.",
            )

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        for old in olds:
            self.check_replace(old)
        return {
            "kind": "files",
            "target": self._target,
            "format": self.config.format,
            "txn": txn.name,
            "folder": f"{self._staging}/{txn.name}/data",
            "manifest": f"{MANIFESTS}/{filestage.stem(txn)}.manifest",
            **{"rows": 0, "bytes": 0, "files": []},
            "retracts": [{"manifest": old["manifest"], "files": old["files"]} for old in olds],
        }

    def _remove_replaced(self, handle: Handle) -> None:
        """Files first: as long as the old manifest is there, this is not done."""
        target = handle["target"]
        for old in taken_out(handle):
            for file in old["files"]:
                self._on.remove(f"{target}/{file['final']}")
            self._on.remove(f"{target}/{old['manifest']}")
        if "retracts" in handle and (txn := Transaction.parse(handle["txn"])):
            self.abort(txn, None)  # where the manifest was made; no attempt owns it

    def abort(self, txn: Transaction, handle: Handle | None) -> None:
        """Delete what is staged; what has its final name stays."""
        self._on.delete(f"{self._staging}/{txn.name}")
        self._on.remove_empty(self._staging)  # unless others are staged there

    def release(self, txn: Transaction) -> None:
        self.abort(txn, None)

    def leftovers(self, prefix: str) -> list[Transaction]:
        return named(self._on.names(self._staging), prefix)

    def staged(self, handle: Handle) -> Any:
        return filelook.batches(self._on, handle)

    def staged_frame(self, handle: Handle, spark: Any) -> Any:
        return filelook.frame(handle, spark)

    def evidence(self, handle: Handle) -> list[str]:
        if self._is_published(handle):
            return [f"the manifest {handle['manifest']} is there: every file was moved"]
        target, folder = handle["target"], handle["folder"]
        moved = sum(self._on.exists(f"{target}/{file['final']}") for file in handle["files"])
        waiting = sum(self._on.exists(f"{folder}/{file['staged']}") for file in handle["files"])
        return [f"no manifest; of {len(handle['files'])} files {moved} are in {target}, {waiting} in {folder}"]

    @cached_property
    def _place(self) -> tuple[FileSystem, str]:
        return filestage.file_system_of(self.name, self._uri, self._webhdfs)

    @property
    def _on(self) -> FileSystem:
        return self._place[0]

    @property
    def _target(self) -> str:
        return self._place[1]

    @property
    def _staging(self) -> str:
        return filestage.staging_of(self._target)

    def _is_published(self, handle: Handle) -> bool:
        try:
            found = json.loads(self._on.read(f"{handle['target']}/{handle['manifest']}"))
        except FileNotFoundError:
            return False
        return bool(found["txn"] == handle["txn"])

    def _failed(self, handle: Handle, error: Exception) -> CannotPublish | OutcomeUnknown:
        exit_ = f"onceonly resolve PIPELINE EPOCH --give-up {self.name} --reason …"
        if isinstance(error, Taken):
            return CannotPublish(
                f"sink '{self.name}': a file of another content has the name of one of ours.",
                f"{error} is there already, and nothing is ever overwritten.",
                f"Move it away and recover, or: {exit_}. Our rows are kept in {handle['folder']}.",
            )
        if isinstance(error, Missing):
            return CannotPublish(
                f"sink '{self.name}': a staged file is gone.",
                f"{error}.",
                f"Restore it and recover, or: {exit_}, then feed the rows again.",
            )
        return OutcomeUnknown(
            f"sink '{self.name}': whether all files reached {handle['target']} is not known.",
            f"{type(error).__name__}: {error}",
            "Nothing was deleted; publishing again is safe: onceonly recover",
        )


def _manifest(handle: Handle) -> dict[str, Any]:
    staged = map(StagedFile.from_json, handle["files"])
    files = [{"path": file.final, **filemoves.content(file.print)} for file in staged]
    plain = {"version": 1, "txn": handle["txn"], "format": handle["format"], "rows": handle["rows"], "files": files}
    replaced = [old["manifest"].rpartition("/")[2] for old in taken_out(handle)]
    return {**plain, "replaces": replaced} if replaced else plain
