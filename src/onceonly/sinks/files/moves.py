"""Files from a staged folder to their final names: each appears whole, none is ever overwritten.

A final name is made in one step, which fails where the name is taken, and survives a crash between any two steps. The
manifest comes last and the same way: it is the evidence that every file of the checkpoint is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onceonly.filesystems import confined
from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.interface import AT_ONCE, FileSystem, Fingerprint, parent, parents


@dataclass(frozen=True)
class StagedFile:
    """One file: where it waits (relative to its folder), where it will be (relative to the target), and what it is."""

    staged: str
    final: str
    print: Fingerprint

    def to_json(self) -> dict[str, Any]:
        """The checksum goes by the name of its algorithm."""
        return {"staged": self.staged, "final": self.final, **content(self.print)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        [algorithm] = data.keys() - {"staged", "final", "bytes"}
        return cls(data["staged"], data["final"], Fingerprint(data["bytes"], algorithm, data[algorithm]))


def content(print: Fingerprint) -> dict[str, Any]:
    return {"bytes": print.bytes, print.algorithm: print.digest}


class NameTaken(Exception):
    """A final name is another file's."""


class FileMissing(Exception):
    """A file is neither staged nor at its final name."""


def move(on: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """All of them, in whatever state a crash or another process has left them.

    Raises:
        NameTaken, FileMissing: the rest is moved; this one needs a person.
    """
    _each(on, files, target, lambda file: _move(on, file, folder, target))


def move_back(on: FileSystem, files: Iterable[StagedFile], folder: OwnPath, target: str) -> None:
    """Those that have their final names lose them again, and are in `folder`; whatever has been done of it.

    Another's file of such a name stays: one of another content.
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
        on.move(staged, final)
    except FileExistsError:
        _check_same(on, file, final)
        on.remove(staged)
    except FileNotFoundError:
        if not on.exists(final):
            raise FileMissing(f"{staged.path}, and {final} is not there") from None
        _check_same(on, file, final)


def _move_back(on: FileSystem, file: StagedFile, folder: OwnPath, target: str) -> None:
    final, kept = OwnPath(target, file.final), folder.below(file.staged).path
    with suppress(FileNotFoundError, IsADirectoryError):  # not moved, or by another process; another's folder
        if on.fingerprint(final.path) != file.print:
            return
        on.make_folder(parent(kept), folder.path)
        try:
            on.move(final, kept)
        except FileExistsError:
            on.remove(final)  # killed between the two steps of a move, it has both names
        on.sync_names(parent(kept))


def _check_same(on: FileSystem, file: StagedFile, final: str) -> None:
    """Raises NameTaken, unless it was moved there before."""
    try:
        found = on.fingerprint(final)
    except IsADirectoryError:
        raise NameTaken(f"the folder {final}") from None
    if found == file.print:
        return
    if found.algorithm != file.print.algorithm:
        raise NameTaken(f"{final} (with a checksum by {found.algorithm}, ours is by {file.print.algorithm})")
    raise NameTaken(final)


def write_manifest(on: FileSystem, path: str, content: Mapping[str, Any], folder: OwnPath) -> Mapping[str, Any] | None:
    """Make it in one step, through a file in `folder`. Returns what was there before; None: it was made.

    Raises:
        NameTaken: something else was there.
    """
    place = parent(path)
    on.make_folder(place, parent(place))
    if not on.exists(folder.path):  # published, released, and maybe replaced since: a manifest would come too late
        raise FileNotFoundError(folder.path)
    new = folder.below(f".manifest-{uuid.uuid4().hex}")
    on.write(new.path, json.dumps(content, indent=1) + "\n")
    try:
        on.move(new, path)
    except FileExistsError:
        if found := read_manifest(on, path):
            return found
        raise OSError(f"{path} was there and no longer exists") from None
    finally:
        on.remove(new)
        on.sync_names(place)
    return None


def read_manifest(on: FileSystem, path: str) -> Mapping[str, Any] | None:
    """None: there is none.

    Raises:
        NameTaken: it is something else.
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
