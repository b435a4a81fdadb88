"""Parses a FileSink's handle, and refuses values that the sink never writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import replaced_handles
from onceonly.checkpoint.transaction_names import file_stem, manifest_path, parse_transaction
from onceonly.sinks.staging.handles import damaged_handle
from onceonly.storage.interface import Fingerprint, Upload
from onceonly.storage.own_paths import MANIFESTS, has_published_name, is_plain


@dataclass(frozen=True)
class StagedFile:
    """A file: its path in the staged folder, its path in the target, its fingerprint, and what was prepared for it."""

    staged: str
    final: str
    fingerprint: Fingerprint
    upload: Upload | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the file as the handle stores it. The key of the checksum is the name of its algorithm."""
        upload = {"upload": self.upload._asdict()} if self.upload else {}
        return {"staged": self.staged, "final": self.final, **fingerprint_json(self.fingerprint), **upload}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StagedFile:
        [algorithm] = data.keys() - {"staged", "final", "bytes", "upload"}
        fingerprint, upload = Fingerprint(data["bytes"], algorithm, data[algorithm]), None
        upload_json = data.get("upload")
        if upload_json:
            upload = Upload(upload_json["id"], upload_json["source"], tuple(upload_json["parts"]))
        return cls(data["staged"], data["final"], fingerprint, upload)


def fingerprint_json(fingerprint: Fingerprint) -> dict[str, Any]:
    """Return a fingerprint as handles and manifests store it."""
    return {"bytes": fingerprint.bytes, fingerprint.algorithm: fingerprint.digest}


@dataclass(frozen=True)
class PublishedFiles:
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
    target: str  # as it was recorded: the sink publishes to its own
    format: str
    rows: int
    files: tuple[StagedFile, ...]
    replaced: tuple[PublishedFiles, ...]  # what it replaces or retracts
    rewinds: bool  # a rewind: nothing was staged, and no attempt owns it
    schema: Mapping[str, Any] | None  # of the rows; None: there are none, or an older version has staged them
    partition_by: tuple[str, ...]  # columns whose values stand in the names of folders

    @classmethod
    def parse(cls, sink: str, handle: Handle) -> FileHandle:
        """Parse the handle of a sink. Raises CannotPublish if it is not valid; nothing was changed."""
        try:
            return _parse(sink, handle)
        except _InvalidHandle as why:
            raise damaged_handle(sink, f"{why}.") from None
        except (KeyError, TypeError, ValueError) as error:
            raise damaged_handle(sink, f"{type(error).__name__}: {error}.") from error

    @property
    def manifest(self) -> str:
        return manifest_path(self.txn)


class _InvalidHandle(Exception):
    """A handle is not valid; the text says why."""


def staging_of(target: str) -> str:
    """Return the staging folder: next to the target, on the same file system, with a name that starts with a dot."""
    parent, _, name = target.rpartition("/")
    return f"{parent}/.{name}.staged"


def _parse(sink: str, handle: Handle) -> FileHandle:
    txn = parse_transaction(handle["txn"])
    if txn is None or txn.sink != sink:
        raise _InvalidHandle(f"Its transaction is {handle['txn']!r}")
    derived_paths = {
        "manifest": manifest_path(txn),
        "folder": f"{staging_of(handle['target'])}/{txn.name}/data",
    }
    for key, path in derived_paths.items():
        if handle[key] != path:
            raise _InvalidHandle(f"Its {key} is {handle[key]!r}, not {path!r}")
    files = tuple(StagedFile.from_json(file) for file in handle["files"])
    for file in files:
        _check_final_name(file.final, file_stem(txn))
        if not is_plain(file.staged):
            raise _InvalidHandle(f"Its file {file.staged!r} is not in the staged folder")
    replaced = tuple(_parse_replaced(old, txn) for old in replaced_handles(handle))
    return FileHandle(
        txn=txn,
        target=handle["target"],
        format=str(handle["format"]),
        rows=int(handle["rows"]),
        files=files,
        replaced=replaced,
        rewinds="retracts" in handle,
        schema=handle.get("schema"),
        partition_by=tuple(handle.get("partition_by", ())),
    )


def _parse_replaced(old: Mapping[str, Any], txn: Transaction) -> PublishedFiles:
    """Return what the transaction replaces. Raises _InvalidHandle for output of another pipeline or sink."""
    manifest, files = old["manifest"], tuple(file["final"] for file in old["files"])
    folder, _, name = str(manifest).rpartition("/")
    old_stem = name.removesuffix(".manifest")
    is_manifest = folder == MANIFESTS and has_published_name(manifest)
    if not is_manifest or old_stem.split("-")[:2] != [txn.pipeline, txn.sink]:
        raise _InvalidHandle(f"It replaces {manifest!r}")
    for file in files:
        _check_final_name(file, old_stem)
    return PublishedFiles(manifest, files)


def _check_final_name(final: object, file_stem: str) -> None:
    """Refuse a path in the target that the sink would not have given to a file of a transaction with this stem."""
    name = str(final).rpartition("/")[2]
    if not has_published_name(final) or not name.startswith(f"{file_stem}-"):
        raise _InvalidHandle(f"Its file {final!r} is not named after {file_stem}")
