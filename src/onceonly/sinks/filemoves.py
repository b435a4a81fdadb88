"""Files from a staged folder to their final names: each appears whole, none is ever overwritten.

A final name is made by link(2), which fails where the name is taken, and survives a crash between any two steps. The
manifest comes last and the same way: it is the evidence that every file of the checkpoint is there.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceonly.sinks.folders import to_disk

AT_ONCE = 8
HIDDEN = ("_", ".")  # what Spark, Hive and pyarrow do not read


@dataclass(frozen=True)
class StagedFile:
    """One file: where it waits (relative to its folder), where it will be (relative to the target), and what it is."""

    staged: str
    final: str
    bytes: int
    sha256: str


class Taken(Exception):
    """A final name is another file's."""


class Missing(Exception):
    """A file is neither staged nor at its final name."""


def fingerprint(path: Path) -> tuple[int, str]:
    """Size in bytes, and SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return os.fstat(file.fileno()).st_size, digest


def make_durable(folder: Path) -> None:
    """Every file below, and every name, survives a power failure."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(to_disk, (Path(root) / name for root, _, names in os.walk(folder) for name in names)))
    for root, _, _ in os.walk(folder):
        to_disk(Path(root))
    to_disk(folder.parent)


def move(files: Iterable[StagedFile], folder: Path, target: Path) -> None:
    """All of them, in whatever state a crash or another process has left them.

    Raises:
        Taken, Missing: the rest is moved; this one needs a person.
    """
    moves = list(files)
    for place in sorted({(target / file.final).parent for file in moves}):
        _make_folder(place, target)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = [pool.submit(_move, file, folder, target) for file in moves]
    for each in running:
        each.result()
    for place in {(target / file.final).parent for file in moves}:
        to_disk(place)


def _move(file: StagedFile, folder: Path, target: Path) -> None:
    staged, final = folder / file.staged, target / file.final
    try:
        os.link(staged, final)
    except FileExistsError:
        if fingerprint(final) != (file.bytes, file.sha256):
            raise Taken(str(final)) from None
    except FileNotFoundError:
        if not final.exists():
            raise Missing(f"{staged}, and {final} is not there") from None
        if fingerprint(final) != (file.bytes, file.sha256):
            raise Taken(str(final)) from None
    staged.unlink(missing_ok=True)


def write_manifest(path: Path, content: Mapping[str, Any], folder: Path) -> bool:
    """Make it in one step, through a file in `folder`; False: it was there, with this content.

    Raises:
        Taken: it was there, with another content.
    """
    text = json.dumps(content, indent=1) + "\n"
    _make_folder(path.parent, path.parent.parent)
    new = folder / f".manifest-{uuid.uuid4().hex}"
    new.write_text(text)
    to_disk(new)
    try:
        os.link(new, path)
    except FileExistsError:
        if path.read_text() != text:
            raise Taken(str(path)) from None
        return False
    finally:
        new.unlink(missing_ok=True)
        to_disk(path.parent)
    return True


def visible(folder: Path) -> Iterator[Path]:
    """The files below that a reader would see, in order."""
    for root, places, names in os.walk(folder):
        places[:] = sorted(name for name in places if not name.startswith(HIDDEN))
        for name in sorted(names):
            if not name.startswith(HIDDEN):
                yield Path(root) / name


def _make_folder(place: Path, root: Path) -> None:
    """With its parents, whose names survive too."""
    place.mkdir(parents=True, exist_ok=True)
    while place != root.parent:
        place = place.parent
        with suppress(PermissionError):  # above the target it may be somebody else's
            to_disk(place)
