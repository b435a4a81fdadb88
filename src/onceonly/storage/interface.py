"""What a file system must support to publish files. On any other one, publishing is refused."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from onceonly.storage.own_paths import HIDDEN, OwnPath

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # with pandas, which takes a second

MAX_PARALLEL_REQUESTS = 8  # requests, or syncs of files, in parallel


class UnsuitableTarget(Exception):
    """No files can be published there until a person acts: the reason, what to do, and a stable word for it."""

    def __init__(self, why: str, todo: str, code: str = "target-unsuitable") -> None:
        super().__init__(why)
        self.why, self.todo, self.code = why, todo, code


SINK_LOG = "_spark_metadata"  # of a folder that a Structured Streaming query writes. Source: Spark, `FileStreamSink`


def query_folder_error(target: str) -> UnsuitableTarget:
    """Return the refusal of a folder that a streaming query writes: Spark reads the files in its log, and no others."""
    return UnsuitableTarget(
        f"{target} is written by a Structured Streaming query: Spark reads the files that its {SINK_LOG} lists, and "
        "would pass over all others.",
        f"Choose another folder. Or, once no query writes there any more, remove {SINK_LOG}; readers then see every "
        "file in the folder, also those of batches that failed.",
    )


class Fingerprint(NamedTuple):
    """The fingerprint of a file: its size in bytes, and a checksum of its content by a named algorithm."""

    bytes: int
    algorithm: str
    digest: str


class Upload(NamedTuple):
    """An object of which everything is done but the last step.

    Args:
        id: by which the store knows it.
        source: the content of the staged object that it is a copy of, as the store names it; empty: of none.
        parts: what the store has named each part.
    """

    id: str
    source: str
    parts: tuple[str, ...]


class PreparedFile(NamedTuple):
    """A staged file that can be published.

    Args:
        fingerprint: by which it is known under its final name.
        upload: what has been prepared for that; None: nothing has to be.
    """

    fingerprint: Fingerprint
    upload: Upload | None = None


class PlannedMove(NamedTuple):
    """A move that is going to be made: the path of the staged file, and its final one."""

    staged: str
    final: str


class FileSystem(Protocol):
    """Paths are absolute: local ones, or URIs. Errors are OSErrors, as a local file system raises them."""

    def check(self, target: str) -> None:
        """Refuse a target that cannot take files; writes nothing.

        Raises:
            UnsuitableTarget: a person has to act.
            NotCommitted: no response.
        """

    def is_same_folder(self, one: str, other: str) -> bool:
        """Whether two paths are the same folder."""

    def probe(self, folder: OwnPath, target: str) -> None:
        """Create the staging folder, and test that a file can be moved from it into the target.

        If the target does not exist yet, the test stays in the staging folder, beside which it will be created.

        Raises:
            UnsuitableTarget: no file can be moved there.
        """

    def begin(self, folder: OwnPath) -> None:
        """Create a transaction's folder beside the target, if it is missing."""
        self.make_folder(folder.root, parent(folder.root))
        self.make_folder(folder.path, folder.root)

    def has_begun(self, folder: OwnPath) -> bool:
        """Whether a transaction's folder exists; only then can its manifest be written."""
        return self.exists(folder.path)

    def prepare(self, staged: str, final: str) -> PreparedFile:
        """Prepare a staged file for its final name. Readers see nothing of it."""
        return PreparedFile(self.read_fingerprint(staged))

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        """Give a file its final name, atomically. It may keep the old one, until `drop_old_name`.

        Args:
            ready: what was prepared for the name.
        Raises:
            FileExistsError: the name exists; nothing was changed.
            FileNotFoundError: there is no such file, or no folder for the name.
        """

    def drop_old_name(self, old: OwnPath) -> None:
        """Remove the name that a moved file had, if it was kept because the new one was not durable yet.

        To be called after `sync_names`.
        """
        return

    def check_staged(self, old: OwnPath, ready: PreparedFile) -> None:
        """Check that a staged file is the one that was staged, and that this process can move it.

        Raises:
            FileNotFoundError: it is missing, or is another file.
            UnsuitableTarget: this process can neither move nor read it.
        """
        if self.read_fingerprint(old.path) != ready.fingerprint:
            raise FileNotFoundError(f"{old.path} is not the file that was staged")
        self.check_movable(old)

    def check_movable(self, old: OwnPath) -> None:
        """Check that this process can move a file that another one has written. Raises UnsuitableTarget."""
        return

    def check_names(self, folder: OwnPath, files: Collection[PlannedMove], target: str, text: str) -> None:
        """Try to create a file where `create` and `move` will, in each folder of the target, and remove it.

        What a killed process leaves of it is invisible to readers, and `remove_probes` removes it.

        Args:
            folder: of the transaction.
            files: that are going to be moved, to folders that may not exist yet. They are not created.
            text: of a file that `create` will write.
        Raises:
            UnsuitableTarget: this process cannot create files there.
        """

    def check_removal(self, path: str) -> None:
        """Check that this process can remove a published file. Raises UnsuitableTarget."""
        return

    def remove_probes(self, folder: OwnPath, target: str) -> None:
        """Remove what `probe` and `check_names` have left in the target for that transaction."""
        self.remove(probe_in(target, "", folder))

    def find_refusal(self, error: OSError) -> UnsuitableTarget | None:
        """Return the reason of an error that no repetition helps against; None: one may help."""
        return None

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        """Create a file with its final name, atomically, as long as that folder exists.

        Raises:
            FileExistsError: the name exists; nothing was changed.
            FileNotFoundError: the folder does not exist.
        """
        if not self.exists(folder.path):
            raise FileNotFoundError(folder.path)
        new = folder.join(f".new-{uuid.uuid4().hex}")
        self.write(new.path, text)
        try:
            self.move(new, path)
        finally:
            self.remove(new)

    def end_uploads(self, target: str, stem: str) -> None:
        """End whatever was prepared for names in the target that begin so. What has its name stays.

        If the staged files were removed before, no process can give a file such a name any more.
        """
        return

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        """Rename a folder atomically, with all its content.

        Nothing happens if the old one is missing or the new one exists.
        """

    def read_fingerprint(self, path: str) -> Fingerprint:
        """Return the fingerprint of a file. Raises IsADirectoryError for a folder."""

    def exists(self, path: str) -> bool: ...

    def find_size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is none."""

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None:
        """Create a file. Its content is durable; its name is durable after `sync_names`."""

    def make_folder(self, folder: str, root: str) -> None:
        """Create a folder and its parents below `root`, if missing. Their names are durable from `root` on.

        On a disk, a missing `root` is an error: it may be on a volume that is not mounted.
        """

    def sync_names(self, folder: str) -> None:
        """Make the names that were created or removed in this folder durable."""

    def make_durable(self, folder: str) -> None:
        """Make every file below the folder, and every name, durable."""

    def list_visible(self, folder: str) -> Iterator[str]:
        """Yield the files below that a reader would see, in order, relative to the folder."""

    def list_names(self, folder: str) -> list[str]:
        """Return the names in the folder; empty if it does not exist."""

    def remove(self, file: OwnPath) -> None:
        """Remove one file, if it exists."""

    def remove_empty(self, folder: str) -> None:
        """Remove a folder, if it exists and is empty."""

    def delete(self, folder: OwnPath) -> None:
        """Delete a folder with all its content, if it exists. Another process may delete it at the same time."""

    def read_rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of the files below that a reader would see. Partition folders become columns.

        Args:
            schema: of all columns; by default that of the first file.
            by: of the partition columns; by default inferred from the folders' names.
        """


def probe_in(target: str, place: str, folder: OwnPath) -> OwnPath:
    """Return the only name that a transaction's trial uses in a folder of the target.

    Args:
        place: the folder, a path relative to the target.
        folder: of the transaction.
    """
    return OwnPath(target, f"{place}/.{folder.name}".lstrip("/"))


def has_folder(file_system: FileSystem, folder: str) -> bool:
    """Return whether a folder exists. An object store has none: there, one exists as long as something is in it."""
    return file_system.exists(folder) or bool(file_system.list_names(folder))


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN)


def parents(paths: Iterable[str]) -> list[str]:
    """Return the parent folders of these paths, each once, in order."""
    return sorted({parent(path) for path in paths})
