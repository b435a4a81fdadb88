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

from onceonly.filesystems import confined
from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.interface import AT_ONCE, FileSystem, Fingerprint, Ready, Upload, parent, parents


@dataclass(frozen=True)
class StagedFile:
    """A file: its path in the staged folder, its path in the target, its fingerprint, and what was prepared for it."""

    staged: str
    final: str
    print: Fingerprint
    upload: Upload | None = None

    def to_json(self) -> dict[str, Any]:
        """The key of the checksum is the name of its algorithm."""
        upload = {"upload": self.upload._asdict()} if self.upload else {}
        return {"staged": self.staged, "final": self.final, **content(self.print), **upload}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        [algorithm] = data.keys() - {"staged", "final", "bytes", "upload"}
        print, told = Fingerprint(data["bytes"], algorithm, data[algorithm]), data.get("upload")
        upload = Upload(told["id"], told["source"], tuple(told["parts"])) if told else None
        return cls(data["staged"], data["final"], print, upload)


def content(print: Fingerprint) -> dict[str, Any]:
    return {"bytes": print.bytes, print.algorithm: print.digest}


class NameTaken(Exception):
    """A final name belongs to another file."""


class FileMissing(Exception):
    """A file is neither staged, as it was then, nor at its final name."""


def move(on: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move all of them, no matter which of them a crash or another process has left unmoved.

    Raises:
        NameTaken, FileMissing: one file needs manual resolution; the others were moved.
    """
    _each(on, files, target, lambda file: _move(on, file, folder, target))


def move_back(on: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Move the files that have their final names back into `folder`, no matter how many already were.

    A file with such a name but other content stays.
    """
    there = [file for file in files if on.exists(f"{target}/{file.final}")]
    _each(on, there, target, lambda file: _move_back(on, file, folder, target))


def _each(on: FileSystem, files: Iterable[StagedFile], target: str, change: Callable[[StagedFile], None]) -> None:
    moves = list(files)
    places = parents(f"{target}/{file.final}" for file in moves)
    for place in places:
        on.make_folder(place, target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(change, file) for file in moves]
    for each in running:
        each.result()
    for place in places:
        on.sync_names(place)


def _move(on: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    staged, final = folder.below(file.staged), f"{target}/{file.final}"
    try:
        on.move(staged, final, Ready(file.print, file.upload))
    except FileExistsError:
        check_same(on, file, final)
        on.remove(staged)
    except FileNotFoundError:
        if not on.exists(final):
            what = "is not the file that was staged" if on.exists(staged.path) else "does not exist"
            raise FileMissing(f"{staged.path} {what}, and {final} does not exist") from None
        check_same(on, file, final)


def _move_back(on: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    final, kept = OwnPath(target, file.final), folder.below(file.staged).path
    with suppress(FileNotFoundError, IsADirectoryError):  # not moved yet, moved back by another process, or a folder
        if on.fingerprint(final.path) != file.print:
            return
        on.make_folder(parent(kept), folder.path)
        with suppress(FileExistsError):  # a process was killed within a move: it has both names
            on.move(final, kept)
        on.remove(final)
        on.sync_names(parent(kept))


def check_same(on: FileSystem, file: StagedFile, final: str) -> None:
    """Raise NameTaken unless the file at the final name is this one."""
    try:
        found = on.fingerprint(final)
    except IsADirectoryError:
        raise NameTaken(f"the folder {final}") from None
    if found == file.print:
        return
    if found.algorithm != file.print.algorithm:
        raise NameTaken(f"{final} (with a checksum by {found.algorithm}, ours is by {file.print.algorithm})")
    raise NameTaken(final)


def text(content: Mapping[str, Any]) -> str:
    """The text of a manifest."""
    return json.dumps(content, indent=1) + "\n"


def digest(content: Mapping[str, Any]) -> str:
    """The SHA-256 of a manifest's file."""
    return hashlib.sha256(text(content).encode()).hexdigest()


def write_manifest(on: FileSystem, path: str, content: Mapping[str, Any], folder: OwnPath) -> Mapping[str, Any] | None:
    """Write the manifest in one step, unless `folder` was removed: the outcome was recorded, or is that of an abort.

    Returns:
        The manifest that already existed; None if this one was written.
    Raises:
        NameTaken: the file that existed is not a manifest of ours.
    """
    place = parent(path)
    on.make_folder(place, parent(place))
    try:
        on.create(path, text(content), folder)
    except FileExistsError:
        if found := read_manifest(on, path):
            return found
        raise OSError(f"{path} existed and no longer does") from None
    finally:
        on.sync_names(place)
    return None


def read_manifest(on: FileSystem, path: str) -> Mapping[str, Any] | None:
    """The manifest; None if there is none.

    Raises:
        NameTaken: the file is not a manifest of ours.
    """
    try:
        found = json.loads(on.read(path))
    except FileNotFoundError:
        return None
    except (ValueError, IsADirectoryError):
        found = None
    txn = confined.parsed(found.get("txn")) if isinstance(found, dict) else None
    if txn is None or not path.endswith(f"/{confined.manifest_of(txn)}"):
        raise NameTaken(path)
    return dict(found)
