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
from onceonly.storage import confined
from onceonly.storage.confined import MANIFESTS
from onceonly.storage.interface import AT_ONCE, FileSystem
from onceonly.storage.listing import every

DIGEST = 32  # hexadecimal digits


class Damaged(Exception):
    """A file with the name of a manifest is none. The text has its name, and why."""


@dataclass(frozen=True)
class File:
    path: str  # relative to the folder
    bytes: int

    @property
    def partitions(self) -> tuple[str, ...]:
        """Columns whose values the file's folders name."""
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


def read(file_system: FileSystem, folder: str) -> list[Manifest]:
    """Read all manifests of the folder, in the order of their decisions.

    They are there to stay: what is read may not be lost in a power failure afterwards.

    Raises:
        Damaged: something there has the name of a manifest, and is none.
    """
    manifest_folder = f"{folder}/{MANIFESTS}"

    def list_names() -> list[str]:
        return _select_published(file_system.names(manifest_folder))

    def read_manifest(name: str) -> Manifest:
        return _parse(name, _read_text(file_system, f"{manifest_folder}/{name}", name))

    manifests = every(list_names, read_manifest)
    if manifests:
        file_system.sync_names(manifest_folder)
    return sorted(manifests.values(), key=lambda manifest: (manifest.decision, manifest.name))


def select_in_force(manifests: Iterable[Manifest]) -> list[Manifest]:
    """Return the manifests that no other one replaces, whether or not they are removed yet."""
    manifests = list(manifests)
    replaced_names: set[str] = set()
    for manifest in manifests:
        replaced_names.update(manifest.replaces)
    return [manifest for manifest in manifests if manifest.name not in replaced_names]


def select_range(manifests: Iterable[Manifest], range_: TopicRange) -> list[Manifest]:
    """Return the manifests whose decisions lie in the range."""
    spans = [range(start, end) for start, end in range_.partitions.values()]
    return [manifest for manifest in manifests if any(manifest.decision in span for span in spans)]


def compute_mark(manifests: Iterable[Manifest], range_: TopicRange) -> str:
    """Return the digests of the manifests in force in the range, and of those up to its end, joined by a hyphen."""
    in_force = select_in_force(manifests)
    range_end = max(range_.ends.values())
    up_to_end = [manifest for manifest in in_force if manifest.decision < range_end]
    return f"{_digest(select_range(in_force, range_))}-{_digest(up_to_end)}"


def list_missing_files(file_system: FileSystem, folder: str, files: Iterable[File]) -> list[str]:
    """Return the paths of files that are not there, or have another size."""
    files = list(files)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sizes = pool.map(file_system.size, [f"{folder}/{file.path}" for file in files])
        return [file.path for file, size in zip(files, sizes, strict=True) if size != file.bytes]


def _select_published(names: Iterable[str]) -> list[str]:
    return [name for name in names if confined.is_published(f"{MANIFESTS}/{name}")]


def _read_text(file_system: FileSystem, path: str, name: str) -> str:
    try:
        return file_system.read(path)
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise Damaged(f"{name} ({type(error).__name__})") from error


def _parse(name: str, text: str) -> Manifest:
    try:
        return _parse_manifest(name, text, json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"{name} ({type(error).__name__}: {str(error)[:80]})") from error


def _parse_manifest(name: str, text: str, fields: Mapping[str, Any]) -> Manifest:
    txn = confined.parsed(fields["txn"])
    if txn is None or confined.manifest_of(txn) != f"{MANIFESTS}/{name}":
        raise ValueError(f"it is that of {str(fields['txn'])[:80]}")
    at = datetime.fromisoformat(fields["at"]).astimezone(UTC) if "at" in fields else None
    return Manifest(
        name,
        txn,
        int(fields.get("decision", 0)),  # the oldest ones have none
        at,
        str(fields["format"]),
        _parse_schema(fields.get("schema")),
        tuple(_parse_file(file, confined.stem(txn)) for file in fields["files"]),
        tuple(map(str, fields.get("replaces", ()))),
        hashlib.sha256(f"{name}\n{text}".encode()).hexdigest(),
    )


def _parse_schema(schema: Any) -> Mapping[str, Any] | None:
    if schema is None:
        return None
    for field in schema["fields"]:
        if not {"name", "type"} <= set(field):
            raise ValueError("a column has no name, or no type")
    return dict(schema)


def _parse_file(fields: Mapping[str, Any], stem: str) -> File:
    """Return the file that a manifest names. Raises ValueError: it is not one of the manifest's checkpoint."""
    path = fields["path"]
    if not confined.is_published(path) or not path.rpartition("/")[2].startswith(f"{stem}-"):
        raise ValueError(f"it names {str(path)[:80]!r}")
    return File(path, int(fields["bytes"]))


def _digest(manifests: Iterable[Manifest]) -> str:
    digests = sorted(manifest.digest for manifest in manifests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:DIGEST]
