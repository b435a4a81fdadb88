"""Manifests of a folder that a FileSink publishes to, and the rules that it has to follow to be read as a source.

Only what a manifest names is read, whatever else lies in the folder; and a manifest names nothing that could not be a
file of its checkpoint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.offsets import START_OVER, TopicRange
from onceonly.checkpoint.transaction_names import file_stem, manifest_path, parse_transaction
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.sources import FileSource
from onceonly.spark.row_files import as_read
from onceonly.storage.file_systems import read_listed
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, FileSystem
from onceonly.storage.own_paths import MANIFESTS, has_published_name

DIGEST_DIGITS = 32  # hexadecimal digits


class DamagedManifest(Exception):
    """A file with the name of a manifest is none. The text has its name, and why."""


@dataclass(frozen=True)
class ManifestFile:
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
        replaces: names of manifests whose rows it retracts.
        digest: of the manifest's name and text.
    """

    name: str
    txn: Transaction
    decision: int
    at: datetime | None
    format: str
    schema: Mapping[str, Any] | None
    files: tuple[ManifestFile, ...]
    replaces: tuple[str, ...]
    digest: str

    @property
    def stream(self) -> str:
        """The name of one sink of one pipeline of one state table, whose decisions order its manifests."""
        return self.txn.prefix


def read_manifests(file_system: FileSystem, folder: str) -> list[Manifest]:
    """Read all manifests of the folder, in the order of their decisions.

    They are there to stay: what is read may not be lost in a power failure afterwards.

    Raises:
        DamagedManifest: something there has the name of a manifest, and is none.
    """
    manifest_folder = f"{folder}/{MANIFESTS}"

    def list_names() -> list[str]:
        return _select_published(file_system.list_names(manifest_folder))

    def read_manifest(name: str) -> Manifest:
        return _parse(name, _read_text(file_system, f"{manifest_folder}/{name}", name))

    manifests = read_listed(list_names, read_manifest)
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
    return [manifest for manifest in manifests if range_.covers(manifest.decision)]


def select_new(manifests: Iterable[Manifest], range_: TopicRange) -> list[Manifest]:
    """Return the manifests in force that a range reads: not those by which a repair only rewrote what was read before.

    What a repair behind the range has replaced of it is read from there.
    """
    selected = []
    for manifest in select_in_force(manifests):
        is_new = range_.covers(manifest.decision) and manifest.decision not in range_.passed_over
        if is_new or manifest.decision in range_.standing_in:
            selected.append(manifest)
    return selected


def compute_mark(manifests: Iterable[Manifest], range_: TopicRange) -> str:
    """Return the digests of the manifests that the range reads, and of those in force up to its end, with a hyphen."""
    in_force = select_in_force(manifests)
    range_end = max(range_.ends.values())
    up_to_end = [manifest for manifest in in_force if manifest.decision < range_end]
    return f"{_digest(select_new(in_force, range_))}-{_digest(up_to_end)}"


def list_missing_files(file_system: FileSystem, folder: str, files: Iterable[ManifestFile]) -> list[str]:
    """Return the paths of files that are not there, or have another size."""
    files = list(files)
    paths = [f"{folder}/{file.path}" for file in files]
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        sizes = list(pool.map(file_system.find_size, paths))
        return [file.path for file, size in zip(files, sizes, strict=True) if size != file.bytes]


def _select_published(names: Iterable[str]) -> list[str]:
    return [name for name in names if has_published_name(f"{MANIFESTS}/{name}")]


def _read_text(file_system: FileSystem, path: str, name: str) -> str:
    try:
        return file_system.read(path)
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise DamagedManifest(f"{name} ({type(error).__name__})") from error


def _parse(name: str, text: str) -> Manifest:
    try:
        return _parse_manifest(name, text, json.loads(text))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedManifest(f"{name} ({type(error).__name__}: {str(error)[:80]})") from error


def _parse_manifest(name: str, text: str, fields: Mapping[str, Any]) -> Manifest:
    txn = parse_transaction(fields["txn"])
    if txn is None or manifest_path(txn) != f"{MANIFESTS}/{name}":
        raise ValueError(f"it is that of {str(fields['txn'])[:80]}")
    at = None
    if "at" in fields:
        at = datetime.fromisoformat(fields["at"]).astimezone(UTC)
    return Manifest(
        name,
        txn,
        int(fields.get("decision", 0)),  # the oldest ones have none
        at,
        str(fields["format"]),
        _parse_schema(fields.get("schema")),
        tuple(_parse_file(file, file_stem(txn)) for file in fields["files"]),
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


def _parse_file(fields: Mapping[str, Any], stem: str) -> ManifestFile:
    """Return the file that a manifest names. Raises ValueError: it is not one of the manifest's checkpoint."""
    path = fields["path"]
    if not has_published_name(path) or not path.rpartition("/")[2].startswith(f"{stem}-"):
        raise ValueError(f"it names {str(path)[:80]!r}")
    return ManifestFile(path, int(fields["bytes"]))


def _digest(manifests: Iterable[Manifest]) -> str:
    digests = sorted(manifest.digest for manifest in manifests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:DIGEST_DIGITS]


RESTORE = f"Restore the folder, or {START_OVER}. Nothing was written."


class NothingPublished(InvalidPipeline):
    """Nothing was published to that folder."""


def require_one_writer(config: FileSource, manifests: Sequence[Manifest]) -> str:
    """Return the stream whose decisions the offsets are.

    Raises:
        InvalidPipeline: several pipelines, sinks or state tables write there, each with decisions of its own.
    """
    transactions = {manifest.stream: manifest.txn for manifest in manifests}
    if len(transactions) > 1:
        writers = map(_describe_writer, transactions.values())
        raise InvalidPipeline(
            f"folder '{config.topic}' cannot be a source.",
            f"It has files of {' and of '.join(writers)}. Each counts its own decisions, so they have no common order.",
            "Let each write to a separate folder, and read both. Nothing was written.",
            code="folder-with-several-writers",
        )
    (stream,) = transactions
    return stream


def _describe_writer(txn: Transaction) -> str:
    return f"sink '{txn.sink}' of pipeline '{txn.pipeline}' (state table {txn.state_id[:8]})"


def check_range(config: FileSource, range_: TopicRange, every: Sequence[Manifest], covered: Sequence[Manifest]) -> None:
    """Refuse a range that cannot be read as what was added to the folder.

    Args:
        every: the manifests of the range; covered: those of them that are in force.
    Raises:
        InvalidPipeline
    """
    if range_.starts[0] > 0 and not range_.folders:
        repaired = dict(range_.rewrites)
        for manifest in every:
            if manifest.replaces and manifest.decision not in repaired:
                raise _replacement_error(config, range_, manifest)
    manifests_with_files = []
    for manifest in covered:
        if not manifest.files:
            continue
        if manifest.schema is None:
            raise _missing_types_error(config, range_, manifest)
        manifests_with_files.append(manifest)
    _check_types(config, manifests_with_files)


def _check_types(config: FileSource, manifests: Sequence[Manifest]) -> None:
    """Refuse a column that has two types. Raises InvalidPipeline."""
    first_uses: dict[str, tuple[Manifest, str]] = {}
    for manifest in manifests:
        for column, column_type in find_column_types(manifest).items():
            first_manifest, first_type = first_uses.setdefault(column, (manifest, column_type))
            if first_type != column_type:
                raise _two_types_error(config, column, (first_manifest, first_type), (manifest, column_type))


def find_column_types(manifest: Manifest) -> dict[str, str]:
    """Return the type of each column as JSON: what it is once it was read."""
    schema = as_read(manifest.format, manifest.schema or {"fields": []})
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in schema["fields"]}


def _replacement_error(config: FileSource, range_: TopicRange, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': decision {manifest.decision} does not only add files.",
        f"'{manifest.txn.pipeline}' has taken back {count(len(manifest.replaces), 'checkpoint')} by it, such as "
        f"{manifest.replaces[0].removesuffix('.manifest')}: it processed an interval again, or went back.",
        f"{_describe_skip(config, range_, manifest)} Intervals follow those of their writer with "
        f"after=['{manifest.txn.pipeline}']. Nothing was written.",
        code="not-append-only",
    )


def _describe_skip(config: FileSource, range_: TopicRange, manifest: Manifest) -> str:
    """Tell how to continue behind a decision. A skip leaves out all that is unread: what comes before is read first."""
    unread_count, next_decision = manifest.decision - range_.starts[0], manifest.decision + 1
    if unread_count:
        first_step = f"Read what comes before it: FileSource(max_decisions={unread_count}). Then leave it out"
    else:
        first_step = f"Leave it out (if the pipeline has not run yet, by FileSource(start={next_decision}))"
    return (
        f"{first_step} on purpose: onceonly skip PIPELINE --topic {config.topic} --partition 0 --to {next_decision} "
        "--reason …."
    )


def _missing_types_error(config: FileSource, range_: TopicRange, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': the files of decision {manifest.decision} cannot be read.",
        f"The manifest {manifest.name} does not have their columns' types. Types inferred from files and folder names "
        "could differ each time.",
        f"{_describe_skip(config, range_, manifest)} Nothing was written.",
        code="columns-unknown",
    )


def _two_types_error(
    config: FileSource, column: str, first: tuple[Manifest, str], second: tuple[Manifest, str]
) -> InvalidPipeline:
    uses = f"{first[1]} at decision {first[0].decision} and {second[1]} at decision {second[0].decision}"
    return InvalidPipeline(
        f"folder '{config.topic}': column '{column}' has two types in one range.",
        f"It is {uses.replace(chr(34), '')}: the pipeline that writes it has changed.",
        "Read them in different checkpoints: FileSource(max_decisions=1) until that decision is passed. "
        "Nothing was written.",
        code="column-type-changed",
    )


def missing_time_error(config: FileSource, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}' cannot be read by times.",
        f"The manifest {manifest.name} of decision {manifest.decision} has none.",
        "Read it in chained mode, and begin by a decision: FileSource(start=DECISION). Nothing was written.",
        code="decision-without-time",
    )


def unknown_columns_error(config: FileSource) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': its columns are not known.",
        "No manifest in it names them: they list no files, or an older version wrote them.",
        "Run the pipeline that writes it: onceonly run OTHER_FILE.py:NAME. Nothing was written.",
        code="columns-unknown",
    )


# --- what is lost


def other_writer_error(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.label} is not the one that was pinned.",
        f"It has no manifest of {range_.topic_id} any more, its writer: it was emptied or replaced.",
        RESTORE,
        code="source-replaced",
    )


def changed_manifests_error(range_: TopicRange, later_replacements: Sequence[Manifest]) -> SourceLost:
    """Return the error of a range whose manifests are not those that were pinned.

    Args:
        later_replacements: manifests that replace others, and are later than the range.
    """
    if later_replacements:
        replacement = later_replacements[0]
        return SourceLost(
            f"{range_.label}: files of the decisions {_format_decisions(range_)} were taken back.",
            f"They are pinned, and '{replacement.txn.pipeline}' has processed an interval again, or went back, by "
            f"decision {replacement.decision}.",
            "Abort the checkpoint: onceonly abort PIPELINE EPOCH --reason …. Then run it again: onceonly run "
            "FILE.py:NAME. "
            "The next plan reads what is still in force, or says what to leave out. An interval with after is "
            "planned again by itself. Nothing was written.",
            code="source-retracted",
        )
    return SourceLost(
        f"{range_.label}: the manifests of the decisions {_format_decisions(range_)} are not those that were pinned.",
        "The folder was restored from a copy, or somebody has changed what is in it.",
        RESTORE,
        code="source-replaced",
    )


def rewritten_history_error(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.label} has another history than the one that was read.",
        f"The manifests of what was published up to decision {range_.ends[0] - 1} are not the same any more: the "
        "folder was restored from a copy, or somebody has changed what is in it.",
        RESTORE,
        code="source-replaced",
    )


def missing_files_error(range_: TopicRange, paths: Sequence[str]) -> SourceLost:
    return SourceLost(
        f"{range_.label}: files of the decisions {_format_decisions(range_)} no longer exist, or have another size.",
        f"{count(len(paths), 'file')} of them, such as {paths[0]}: somebody has removed or changed them.",
        RESTORE,
        code="source-files-missing",
    )


def damaged_manifest_error(config: FileSource, folder: str, error: DamagedManifest) -> SourceLost:
    return SourceLost(
        f"folder '{config.topic}' cannot be read.",
        f"A file in {folder} has the name of a manifest but is not one: {error}.",
        "Restore it. If it is not Onceonly's, move it elsewhere. Nothing was written.",
        code="manifest-damaged",
    )


def _format_decisions(range_: TopicRange) -> str:
    """Format the range's decisions for people, such as "3 to 7, 9"."""
    spans = []
    for start, end in range_.partitions.values():
        has_several = end > start + 1
        spans.append(f"{start} to {end - 1}" if has_several else f"{start}")
    return ", ".join(spans)


# --- what is not there


def empty_folder_error(config: FileSource, uri: str) -> NothingPublished:
    return NothingPublished(
        f"nothing was published to folder '{config.topic}'.",
        f"There is no manifest of a FileSink at {uri}.",
        "Correct FileSource(path=…): a relative path is below ONCEONLY_HOME. Or first run the pipeline that writes "
        "it: onceonly run OTHER_FILE.py:NAME. Nothing was written.",
        code="nothing-published",
    )


def unsupported_storage_error(config: FileSource, uri: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}' cannot be read from {uri}.",
        "A FileSink publishes to local and mounted file systems, to HDFS and to object stores.",
        "Correct FileSource(path=…). Nothing was written.",
        code="storage-unsupported",
    )
