"""Handles of staged files, by what a gate's view needs of them."""

from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.sinks.files.handle import FileHandle, StagedFile
from onceonly.storage.interface import Fingerprint


def make_handle(
    format: str, schema: dict[str, Any] | None = None, by: tuple[str, ...] = (), sizes: tuple[int, ...] = ()
) -> FileHandle:
    """Return a handle of files with these sizes in bytes."""
    return FileHandle(
        txn=Transaction("5e1f", "flights", "files", 1, 1, "a1b2c3d4e5f6"),
        target="/files",
        format=format,
        rows=1,
        files=tuple(StagedFile("a", "a", Fingerprint(size, "md5", "")) for size in sizes),
        replaced=(),
        rewinds=False,
        schema=schema,
        partition_by=by,
    )
