"""Moves files from a staged folder to their final names. Each appears complete, and none is ever overwritten.

A file gets its final name in one step, which fails if the name exists. A crash between any two steps does no harm. The
manifest is written last, in the same way. It is the evidence that every file of the checkpoint was moved.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.transaction_names import manifest_path, parse_transaction
from onceonly.storage.interface import (
    MAX_PARALLEL_REQUESTS,
    FileSystem,
    Fingerprint,
    PreparedFile,
    Upload,
    parent,
    parents,
)
from onceonly.storage.own_paths import OwnPath


@dataclass(frozen=True)
class StagedFile:
    """A file: its path in the staged folder, its path in the target, its fingerprint, and what was prepared for it."""

    staged: str
    final: str
    print: Fingerprint
    upload: Upload | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file as the handle stores it. The key of the checksum is the name of its algorithm."""
        upload = {"upload": self.upload._asdict()} if self.upload else {}
        return {"staged": self.staged, "final": self.final, **content(self.print), **upload}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        [algorithm] = data.keys() - {"staged", "final", "bytes", "upload"}
        print, upload = Fingerprint(data["bytes"], algorithm, data[algorithm]), None
        upload_json = data.get("upload")
        if upload_json:
            upload = Upload(upload_json["id"], upload_json["source"], tuple(upload_json["parts"]))
        return cls(data["staged"], data["final"], print, upload)


def content(print: Fingerprint) -> dict[str, Any]:
    """Return a fingerprint as handles and manifests store it."""
    return {"bytes": print.bytes, print.algorithm: print.digest}


class NameTaken(Exception):
    """A final name belongs to another file."""


class FileMissing(Exception):
    """A file is neither staged, as it was then, nor at its final name."""


def move(file_system: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move all files to their final names, no matter which of them a crash or another process has left unmoved.

    Raises:
        NameTaken, FileMissing: one file needs manual resolution; the others were moved.
    """
    _change_names(file_system, files, target, lambda file: _move(file_system, file, folder, target))


def move_back(file_system: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move the files that have their final names back into `folder`, no matter how many already were.

    A file with such a name but other content stays.
    """
    moved = [file for file in files if file_system.exists(f"{target}/{file.final}")]
    _change_names(file_system, moved, target, lambda file: _move_back(file_system, file, folder, target))


def _change_names(
    file_system: FileSystem, files: Iterable[StagedFile], target: str, change: Callable[[StagedFile], None]
) -> None:
    """Change the names of all files, and sync the folders of their final names.

    All changes are tried before the first error is raised.
    """
    files = list(files)
    folders = parents(f"{target}/{file.final}" for file in files)
    for folder in folders:
        file_system.make_folder(folder, target)
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        changes = [pool.submit(change, file) for file in files]
    for future in changes:
        future.result()
    for folder in folders:
        file_system.sync_names(folder)


def _move(file_system: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    """Move one file; harmless if it was moved already.

    Raises:
        NameTaken: the final name belongs to another file.
        FileMissing: the file is in neither place.
    """
    staged, final = folder.join(file.staged), f"{target}/{file.final}"
    try:
        file_system.move(staged, final, PreparedFile(file.print, file.upload))
    except FileExistsError:
        check_same(file_system, file, final)
        file_system.remove(staged)
    except FileNotFoundError:
        if file_system.exists(final):
            check_same(file_system, file, final)
            return
        what = "is not the file that was staged" if file_system.exists(staged.path) else "does not exist"
        raise FileMissing(f"{staged.path} {what}, and {final} does not exist") from None


def _move_back(file_system: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    """Move one file back into `folder`, unless the file with its final name is another one."""
    final, staged = OwnPath(target, file.final), folder.join(file.staged).path
    with suppress(FileNotFoundError, IsADirectoryError):  # not moved yet, moved back by another process, or a folder
        if file_system.read_fingerprint(final.path) != file.print:
            return
        file_system.make_folder(parent(staged), folder.path)
        with suppress(FileExistsError):  # a process was killed within a move: it has both names
            file_system.move(final, staged)
        file_system.remove(final)
        file_system.sync_names(parent(staged))


def check_same(file_system: FileSystem, file: StagedFile, final: str) -> None:
    """Raise NameTaken unless the file at the final name is this one."""
    try:
        final_print = file_system.read_fingerprint(final)
    except IsADirectoryError:
        raise NameTaken(f"the folder {final}") from None
    if final_print == file.print:
        return
    if final_print.algorithm != file.print.algorithm:
        raise NameTaken(f"{final} (with a checksum by {final_print.algorithm}, ours is by {file.print.algorithm})")
    raise NameTaken(final)


def text(content: Mapping[str, Any]) -> str:
    """Return the text of a manifest."""
    return json.dumps(content, indent=1) + "\n"


def digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a manifest's file."""
    return hashlib.sha256(text(content).encode()).hexdigest()


def write_manifest(
    file_system: FileSystem, path: str, content: Mapping[str, Any], folder: OwnPath
) -> Mapping[str, Any] | None:
    """Write the manifest in one step, unless `folder` was removed: the outcome was recorded, or is that of an abort.

    Returns:
        The manifest that already existed; None if this one was written.
    Raises:
        NameTaken: the file that existed is not a manifest of ours.
    """
    manifests = parent(path)
    file_system.make_folder(manifests, parent(manifests))
    try:
        file_system.create(path, text(content), folder)
    except FileExistsError:
        existing = read_manifest(file_system, path)
        if existing:
            return existing
        raise OSError(f"{path} existed and no longer does") from None
    finally:
        file_system.sync_names(manifests)
    return None


def read_manifest(file_system: FileSystem, path: str) -> Mapping[str, Any] | None:
    """Return the manifest; None if there is none.

    Raises:
        NameTaken: the file is not a manifest of ours.
    """
    try:
        content = json.loads(file_system.read(path))
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):
        content = None
    txn = parse_transaction(content.get("txn")) if isinstance(content, dict) else None
    if txn is None or not path.endswith(f"/{manifest_path(txn)}"):
        raise NameTaken(path)
    return dict(content)
