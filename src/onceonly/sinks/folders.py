"""Folders that carry a transaction's name, below one path or URI: local, or wherever pyarrow knows a file system."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import pyarrow.fs as pafs

from onceonly.checkpoint import Transaction
from onceonly.statestore import local_path


class Folders:
    """All of one sink."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def has(self, name: str) -> bool:
        files, path = file_system(self.path(name))
        return bool(files.get_file_info(path).type is not pafs.FileType.NotFound)

    def delete(self, name: str) -> None:
        """All that is under that name, if anything is."""
        files, path = file_system(self.path(name))
        while files.get_file_info(path).type is not pafs.FileType.NotFound:
            with suppress(FileNotFoundError):  # another process deletes it, too
                files.delete_dir(path)

    def holding(self, prefix: str) -> list[Transaction]:
        """Transactions with that `Transaction.prefix` of which a folder is there."""
        files, path = file_system(self.uri)
        found = files.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return named((info.base_name for info in found), prefix)


def named(folders: Iterable[str], prefix: str) -> list[Transaction]:
    """Transactions with that `Transaction.prefix` among the names of folders, in order."""
    ours = sorted(name for name in folders if name.startswith(f"{prefix}-"))
    return [txn for name in ours if (txn := Transaction.parse(name))]


def file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a path or URI, and the path in it."""
    local = local_path(uri)
    if local is not None:
        return pafs.LocalFileSystem(), str(local)
    found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return found
