"""What a file system must support to publish files. On any other one, publishing is refused."""

from __future__ import annotations

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

    def move(self, old: OwnPath, new: str) -> None:
        """Give a file its final name, atomically.

        Raises:
            FileExistsError: the name exists; nothing was changed.
            FileNotFoundError: there is no such file, or no folder for the name.
        """

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
