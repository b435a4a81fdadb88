"""Files from a staged folder to their final names: each appears whole, none is ever overwritten.

A final name is made in one step, which fails where the name is taken, and survives a crash between any two steps. The
manifest comes last and the same way: it is the evidence that every file of the checkpoint is there.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from onceonly.manifests import AT_ONCE
from onceonly.sinks.filesystem import FileSystem, Print, parent, parents


@dataclass(frozen=True)
class StagedFile:
    """One file: where it waits (relative to its folder), where it will be (relative to the target), and what it is."""

    staged: str
    final: str
    print: Print

    def to_json(self) -> dict[str, Any]:
        """The checksum goes by the name of its algorithm."""
        return {"staged": self.staged, "final": self.final, **content(self.print)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        [algorithm] = data.keys() - {"staged", "final", "bytes"}
        return cls(data["staged"], data["final"], Print(data["bytes"], algorithm, data[algorithm]))


def content(print: Print) -> dict[str, Any]:
    return {"bytes": print.bytes, print.algorithm: print.digest}


class Taken(Exception):
    """A final name is another file's."""


class Missing(Exception):
    """A file is neither staged nor at its final name."""


def move(on: FileSystem, files: Iterable[StagedFile], folder: str, target: str) -> None:
    """All of them, in whatever state a crash or another process has left them.

    Raises:
        Taken, Missing: the rest is moved; this one needs a person.
    """
    moves = list(files)
    places = parents(f"{target}/{file.final}" for file in moves)
    for place in places:
        on.make_folder(place, target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_move, on, file, folder, target) for file in moves]
    for each in running:
        each.result()
    for place in places:
        on.keep_names(place)


def _move(on: FileSystem, file: StagedFile, folder: str, target: str) -> None:
    staged, final = f"{folder}/{file.staged}", f"{target}/{file.final}"
    try:
        on.move(staged, final)
    except FileExistsError:
        _check_same(on, file, final)
        on.remove(staged)
    except FileNotFoundError:
        if not on.exists(final):
            raise Missing(f"{staged}, and {final} is not there") from None
        _check_same(on, file, final)


def _check_same(on: FileSystem, file: StagedFile, final: str) -> None:
    """Raises Taken, unless it was moved there before."""
    try:
        found = on.fingerprint(final)
    except IsADirectoryError:
        raise Taken(f"the folder {final}") from None
    if found == file.print:
        return
    if found.algorithm != file.print.algorithm:
        raise Taken(f"{final} (with a checksum by {found.algorithm}, ours is by {file.print.algorithm})")
    raise Taken(final)


def write_manifest(on: FileSystem, path: str, content: Mapping[str, Any], folder: str) -> bool:
    """Make it in one step, through a file in `folder`; False: it was there, with this content.

    Raises:
        Taken: it was there, with another content.
    """
    text = json.dumps(content, indent=1) + "\n"
    place = parent(path)
    on.make_folder(place, parent(place))
    new = f"{folder}/.manifest-{uuid.uuid4().hex}"
    on.write(new, text)
    try:
        on.move(new, path)
    except FileExistsError:
        if on.read(path) != text:
            raise Taken(path) from None
        return False
    finally:
        on.remove(new)
        on.keep_names(place)
    return True
