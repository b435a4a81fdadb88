"""What a file system must support to publish files. On any other one, publishing is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from onceonly.filesystems.confined import HIDDEN, OwnPath

AT_ONCE = 8  # requests, or syncs of files, in parallel


class Unsuitable(Exception):
    """No files can be published there: the reason, and what to do."""

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(why)
        self.why, self.todo = why, todo


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


class Ready(NamedTuple):
    """A staged file that can be published.

    Args:
        print: by which it is known under its final name.
        upload: what has been prepared for that; None: nothing has to be.
    """

    print: Fingerprint
    upload: Upload | None = None


class FileSystem(Protocol):
    """Paths are absolute: local ones, or URIs. Errors are OSErrors, as a local file system raises them."""

    def check(self, target: str) -> None:
        """Refuse a target that cannot take files; writes nothing. Raises Unsuitable; NotCommitted: no response."""

    def same(self, one: str, other: str) -> bool:
        """Whether two paths are the same folder."""

    def probe(self, folder: OwnPath, target: str) -> None:
        """Create the staging folder, and test that a file can be moved from it into the target. Raises Unsuitable.

        If the target does not exist yet, the test stays in the staging folder, beside which it will be created.
        """

    def begin(self, folder: OwnPath) -> None:
        """Create a transaction's folder beside the target, if it is missing."""
        self.make_folder(folder.path, folder.root)

    def ready(self, staged: str, final: str) -> Ready:
        """Prepare a staged file for its final name. Readers see nothing of it."""
        return Ready(self.fingerprint(staged))

    def move(self, old: OwnPath, new: str, ready: Ready | None = None) -> None:
        """Give a file its final name, atomically. A copy may keep the old one.

        Args:
            ready: what was prepared for the name.
        Raises:
            FileExistsError: the name exists; nothing was changed.
            FileNotFoundError: there is no such file, or no folder for the name.
        """

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        """Create a file with its final name, atomically, as long as that folder exists.

        Raises:
            FileExistsError: the name exists; nothing was changed.
            FileNotFoundError: the folder does not exist.
        """
        if not self.exists(folder.path):
            raise FileNotFoundError(folder.path)
        new = folder.below(f".new-{uuid.uuid4().hex}")
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
        """Atomically, with all its content. Nothing happens if the old one is missing or the new one exists."""

    def fingerprint(self, path: str) -> Fingerprint:
        """Raises IsADirectoryError for a folder."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int | None:
        """Of a file, in bytes; None if there is none."""

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None:
        """Create a file. Its content is durable; its name is durable after `sync_names`."""

    def make_folder(self, folder: str, root: str) -> None:
        """Create a folder and its parents, if missing. Their names are durable from `root` on."""

    def sync_names(self, folder: str) -> None:
        """Make the names that were created or removed in this folder durable."""

    def make_durable(self, folder: str) -> None:
        """Make every file below the folder, and every name, durable."""

    def visible(self, folder: str) -> Iterator[str]:
        """The files below that a reader would see, in order, relative to the folder."""

    def names(self, folder: str) -> list[str]:
        """The entries of the folder; empty if it does not exist."""

    def remove(self, file: OwnPath) -> None:
        """Remove one file, if it exists."""

    def remove_empty(self, folder: str) -> None:
        """Remove a folder, if it exists and is empty."""

    def delete(self, folder: OwnPath) -> None:
        """Delete a folder with all its content, if it exists. Another process may delete it at the same time."""

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        """The rows of the files below that a reader would see. Partition folders become columns.

        Args:
            schema: of all columns; by default that of the first file.
            by: of the partition columns; by default inferred from the folders' names.
        """


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN)


def parents(paths: Iterable[str]) -> list[str]:
    """The parent folders of these paths, each once, in order."""
    return sorted({parent(path) for path in paths})
