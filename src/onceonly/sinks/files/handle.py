"""Parses a FileSink's handle, and refuses values that the sink never writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction, taken_out
from onceonly.filesystems import confined
from onceonly.filesystems.confined import MANIFESTS, manifest_of, stem
from onceonly.sinks.files.moves import StagedFile


@dataclass(frozen=True)
class Published:
    """What an earlier checkpoint has published: paths in the target."""

    manifest: str
    files: tuple[str, ...]

    @property
    def stem(self) -> str:
        return self.manifest.rpartition("/")[2].removesuffix(".manifest")


@dataclass(frozen=True)
class FileHandle:
    """A parsed handle. Its paths are derived from the transaction's name, or below such a path."""

    txn: Transaction
    format: str
    rows: int
    files: tuple[StagedFile, ...]
    out: tuple[Published, ...]  # what it replaces or takes back
    rewinds: bool  # a rewind: nothing was staged, and no attempt owns it
    schema: Mapping[str, Any] | None  # of the rows; None: there are none, or an older version has staged them

    @property
    def manifest(self) -> str:
        return manifest_of(self.txn)


class _Wrong(Exception):
    """A handle is not valid; the text says why."""


def parse(sink: str, handle: Handle) -> FileHandle:
    """Raises CannotPublish if the handle is not valid; nothing was changed."""
    try:
        return _parse(sink, handle)
    except _Wrong as wrong:
        raise confined.damaged(sink, f"{wrong}.") from None
    except (KeyError, TypeError, ValueError) as error:
        raise confined.damaged(sink, f"{type(error).__name__}: {error}.") from error


def staging_of(target: str) -> str:
    """The staging folder: next to the target, on the same file system, with a name that starts with a dot."""
    above, _, name = target.rpartition("/")
    return f"{above}/.{name}.staged"


def _parse(sink: str, handle: Handle) -> FileHandle:
    txn = confined.parsed(handle["txn"])
    if txn is None or txn.sink != sink:
        raise _Wrong(f"Its transaction is {handle['txn']!r}")
    for name, wanted in (
        ("manifest", manifest_of(txn)),
        ("folder", f"{staging_of(handle['target'])}/{txn.name}/data"),
    ):
        if handle[name] != wanted:
            raise _Wrong(f"Its {name} is {handle[name]!r}, not {wanted!r}")
    files = tuple(StagedFile.from_json(file) for file in handle["files"])
    for file in files:
        _check(file.final, stem(txn))
        if not confined.is_plain(file.staged):
            raise _Wrong(f"Its file {file.staged!r} is not in the staged folder")
    out = tuple(_published(old, txn) for old in taken_out(handle))
    schema = handle.get("schema")
    return FileHandle(txn, str(handle["format"]), int(handle["rows"]), files, out, "retracts" in handle, schema)


def _published(old: Mapping[str, Any], by: Transaction) -> Published:
    """Output of the same pipeline and sink. Raises _Wrong for any other."""
    manifest, files = old["manifest"], tuple(file["final"] for file in old["files"])
    folder, _, file = str(manifest).rpartition("/")
    name = file.removesuffix(".manifest")
    if folder != MANIFESTS or not confined.is_published(manifest) or name.split("-")[:2] != [by.pipeline, by.sink]:
        raise _Wrong(f"It replaces {manifest!r}")
    for file in files:
        _check(file, name)
    return Published(manifest, files)


def _check(final: object, of: str) -> None:
    name = str(final).rpartition("/")[2]
    if not confined.is_published(final) or not name.startswith(f"{of}-"):
        raise _Wrong(f"Its file {final!r} is not named after {of}")
