"""What publishing files asks of a file system; where it is not known to do that, no file is published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa
import pyarrow.dataset as ds

from onceonly.filesystems.confined import HIDDEN, OwnPath

AT_ONCE = 8  # requests, or files written to disk, side by side


class Unfit(Exception):
    """No files can be published there: why, and what to do."""

    def __init__(self, why: str, todo: str) -> None:
        super().__init__(why)
        self.why, self.todo = why, todo


class Print(NamedTuple):
    """What a file is: its size in bytes, and a checksum of its content by a named algorithm."""

    bytes: int
    algorithm: str
    digest: str


class FileSystem(Protocol):
    """Paths are absolute: local ones, or URIs. Errors are OSErrors, as a local file system raises them."""

    def check(self, target: str) -> None:
        """Refuse a target that is something else; writes nothing. Raises Unfit; NotCommitted: nobody answers."""

    def same(self, one: str, other: str) -> bool:
        """Whether two paths are one folder."""

    def try_out(self, folder: OwnPath, target: str) -> None:
        """Make the folder, and a name in one step: in the target, from the folder. Raises Unfit.

        In the folder itself, where there is no target yet: it will be made beside it.
        """

    def move(self, old: OwnPath, new: str) -> None:
        """Give a file its name, in one step.

        Raises:
            FileExistsError: the name is taken; nothing was changed.
            FileNotFoundError: there is no such file, or no folder for the name.
        """

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        """In one step, with all that is in it; nothing, where it is gone or there is a new one: that was done."""

    def fingerprint(self, path: str) -> Print:
        """Raises IsADirectoryError for a folder."""

    def exists(self, path: str) -> bool: ...

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None:
        """A new file, durable but for its name."""

    def make_folder(self, folder: str, root: str) -> None:
        """With its parents, whose names survive from `root` on; it may be there."""

    def keep_names(self, folder: str) -> None:
        """The names in this folder, made or removed until now, survive a power failure."""

    def make_durable(self, folder: str) -> None:
        """Every file below, and every name, survives a power failure."""

    def visible(self, folder: str) -> Iterator[str]:
        """The files below that a reader would see, in order, relative to the folder."""

    def names(self, folder: str) -> list[str]:
        """What is in the folder; nothing, where there is none."""

    def remove(self, file: OwnPath) -> None:
        """One file, if it is there."""

    def remove_empty(self, folder: str) -> None:
        """A folder, if it is there and nothing is in it."""

    def delete(self, folder: OwnPath) -> None:
        """A folder with all that is in it, if it is there; another process may be at it, too."""

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        """Of the files below that a reader would see; names of folders are columns.

        Args:
            schema: of all columns; by default as the first file looks.
            by: of the columns that are names of folders; by default as they look.
        """


def parent(path: str) -> str:
    return path.rpartition("/")[0]


def is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN)


def parents(paths: Iterable[str]) -> list[str]:
    """Each once, in order."""
    return sorted({parent(path) for path in paths})
