"""The manifests of a folder that a FileSink publishes to, as a reader of ranges of decisions needs them.

Only what a manifest names is read, whatever else lies in the folder; and a manifest names nothing that could not be a
file of its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import TopicRange
from onceonly.filesystems import confined
from onceonly.filesystems.confined import MANIFESTS
from onceonly.filesystems.interface import AT_ONCE, FileSystem
from onceonly.filesystems.listing import every

DIGEST = 32  # hexadecimal digits


class Damaged(Exception):
    """A file with the name of a manifest is none: its name, and why."""


@dataclass(frozen=True)
class File:
    path: str  # relative to the folder
    bytes: int

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns whose values its folders name."""
        return tuple(part.partition("=")[0] for part in self.path.split("/")[:-1])


@dataclass(frozen=True)
class Manifest:
    """What one decision has published.

    Args:
        at: when; None: an older version has written it.
        schema: of the rows; None: there are none, or an older version has written it.
        replaces: names of manifests whose rows it takes back.
        digest: of the manifest's name and text.
    """

    name: str
    txn: Transaction
    decision: int
    at: datetime | None
    format: str
    schema: Mapping[str, Any] | None
    files: tuple[File, ...]
    replaces: tuple[str, ...]
    digest: str

    @property
    def stream(self) -> str:
        return confined.stream(self.txn)


def read(on: FileSystem, folder: str) -> list[Manifest]:
    """All that are there, in the order of their decisions.

    They are there to stay: what is read may not be lost in a power failure afterwards.

    Raises:
        Damaged: something there has the name of a manifest, and is none.
    """
    place = f"{folder}/{MANIFESTS}"
    found = every(lambda: _ours(on.names(place)), lambda name: _parsed(name, _text(on, f"{place}/{name}", name)))
    if found:
        on.sync_names(place)
    return sorted(found.values(), key=lambda manifest: (manifest.decision, manifest.name))


def in_force(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Those that no other one replaces, whether or not they are removed yet."""
    known = list(manifests)
    replaced = {name for manifest in known for name in manifest.replaces}
    return [manifest for manifest in known if manifest.name not in replaced]


def within(manifests: Iterable[Manifest], range_: TopicRange) -> list[Manifest]:
    spans = [range(start, end) for start, end in range_.partitions.values()]
    return [manifest for manifest in manifests if any(manifest.decision in span for span in spans)]


def mark(manifests: Iterable[Manifest], range_: TopicRange) -> str:
    """Digests of those in force in the range, and of those up to its end."""
    known = in_force(manifests)
    below = (manifest for manifest in known if manifest.decision < max(range_.ends.values()))
    return f"{_digest(within(known, range_))}-{_digest(below)}"


def missing(on: FileSystem, folder: str, files: Iterable[File]) -> list[str]:
    """Paths of files that are not there, or have another size."""
    wanted = list(files)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sizes = pool.map(on.size, [f"{folder}/{file.path}" for file in wanted])
        return [file.path for file, size in zip(wanted, sizes, strict=True) if size != file.bytes]


def _ours(names: Iterable[str]) -> list[str]:
    return [name for name in names if confined.is_published(f"{MANIFESTS}/{name}")]


def _text(on: FileSystem, path: str, name: str) -> str:
    try:
        return on.read(path)
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise Damaged(f"{name} ({type(error).__name__})") from error


def _parsed(name: str, text: str) -> Manifest:
    try:
        return _manifest(name, text, json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{name} ({type(error).__name__}: {str(error)[:80]})") from error


def _manifest(name: str, text: str, told: Mapping[str, Any]) -> Manifest:
    txn = confined.parsed(told["txn"])
    if txn is None or confined.manifest_of(txn) != f"{MANIFESTS}/{name}":
        raise ValueError(f"it is that of {str(told['txn'])[:80]}")
    at = datetime.fromisoformat(told["at"]).astimezone(UTC) if "at" in told else None
    return Manifest(
        name,
        txn,
        int(told.get("decision", 0)),  # the oldest ones have none
        at,
        str(told["format"]),
        told.get("schema"),
        tuple(_file(file, confined.stem(txn)) for file in told["files"]),
        tuple(map(str, told.get("replaces", ()))),
        hashlib.sha256(f"{name}\n{text}".encode()).hexdigest(),
    )


def _file(told: Mapping[str, Any], stem: str) -> File:
    path = told["path"]
    if not confined.is_published(path) or not path.rpartition("/")[2].startswith(f"{stem}-"):
        raise ValueError(f"it names {str(path)[:80]!r}")
    return File(path, int(told["bytes"]))


def _digest(manifests: Iterable[Manifest]) -> str:
    digests = sorted(manifest.digest for manifest in manifests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:DIGEST]
