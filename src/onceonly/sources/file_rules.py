"""What a folder of files has to be, to be read as a source, and how it is said that it is not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from onceonly.checkpoint.offsets import START_OVER, TopicRange
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, SourceLost
from onceonly.pipeline.tables import FileSource
from onceonly.sources.file_manifests import Damaged, Manifest
from onceonly.spark.file_formats import as_read

RESTORE = f"Restore the folder, or {START_OVER}. Nothing was written."


class NoFiles(InvalidPipeline):
    """Nothing was published to that folder."""


def one_writer(config: FileSource, manifests: Sequence[Manifest]) -> str:
    """Whose decisions the offsets are.

    Raises:
        InvalidPipeline: several pipelines, sinks or state tables write there, each with decisions of its own.
    """
    found = {manifest.stream: manifest.txn for manifest in manifests}
    if len(found) > 1:
        named = [f"sink '{t.sink}' of pipeline '{t.pipeline}' (state table {t.state_id[:8]})" for t in found.values()]
        raise InvalidPipeline(
            f"folder '{config.topic}' cannot be a source.",
            f"It has files of {' and of '.join(named)}. Each counts its own decisions, so they have no common order.",
            "Let each write to a separate folder, and read both. Nothing was written.",
        )
    (stream,) = found
    return stream


def check(config: FileSource, range_: TopicRange, every: Sequence[Manifest], covered: Sequence[Manifest]) -> None:
    """Refuse a range that cannot be read as what was added to the folder.

    Args:
        every: the manifests of the range; covered: those of them that are in force.
    Raises:
        InvalidPipeline
    """
    if range_.starts[0] > 0 and not range_.folders:
        for manifest in every:
            if manifest.replaces:
                raise _replacing(config, range_, manifest)
    filled = [manifest for manifest in covered if manifest.files]
    for manifest in filled:
        if manifest.schema is None:
            raise _untyped(config, range_, manifest)
    _check_types(config, filled)


def _check_types(config: FileSource, filled: Sequence[Manifest]) -> None:
    known: dict[str, tuple[Manifest, str]] = {}
    for manifest in filled:
        for name, kind in types(manifest).items():
            first, before = known.setdefault(name, (manifest, kind))
            if before != kind:
                raise _retyped(config, name, (first, before), (manifest, kind))


def types(manifest: Manifest) -> dict[str, str]:
    """By column, as JSON: what it is once it was read."""
    schema = as_read(manifest.format, manifest.schema or {"fields": []})
    return {field["name"]: json.dumps(field["type"], sort_keys=True) for field in schema["fields"]}


def _replacing(config: FileSource, range_: TopicRange, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': decision {manifest.decision} does not only add files.",
        f"'{manifest.txn.pipeline}' has taken back {count(len(manifest.replaces), 'checkpoint')} by it, such as "
        f"{manifest.replaces[0].removesuffix('.manifest')}: it processed an interval again, or went back.",
        f"{_left_out(config, range_, manifest)} Intervals follow those of their writer with "
        f"after=['{manifest.txn.pipeline}']. Nothing was written.",
    )


def _left_out(config: FileSource, range_: TopicRange, manifest: Manifest) -> str:
    """How to continue behind a decision. What comes before it is read first: a skip leaves out all that is unread."""
    unread, to = manifest.decision - range_.starts[0], manifest.decision + 1
    if unread:
        first = f"Read what comes before it: FileSource(max_decisions={unread}). Then leave it out"
    else:
        first = f"Leave it out (if the pipeline has not run yet, by FileSource(start={to}))"
    return f"{first} on purpose: onceonly skip PIPELINE --topic {config.topic} --partition 0 --to {to} --reason …."


def _untyped(config: FileSource, range_: TopicRange, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': the files of decision {manifest.decision} cannot be read.",
        f"The manifest {manifest.name} does not have their columns' types. Types inferred from files and folder names "
        "could differ each time.",
        f"{_left_out(config, range_, manifest)} Nothing was written.",
    )


def _retyped(config: FileSource, name: str, first: tuple[Manifest, str], then: tuple[Manifest, str]) -> InvalidPipeline:
    kinds = " and ".join(f"{kind} at decision {manifest.decision}" for manifest, kind in (first, then))
    return InvalidPipeline(
        f"folder '{config.topic}': column '{name}' has two types in one range.",
        f"It is {kinds.replace(chr(34), '')}: the pipeline that writes it has changed.",
        "Read them in different checkpoints: FileSource(max_decisions=1) until that decision is passed. "
        "Nothing was written.",
    )


def untimed(config: FileSource, manifest: Manifest) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}' cannot be read by times.",
        f"The manifest {manifest.name} of decision {manifest.decision} has none.",
        "Read it in chained mode, and begin by a decision: FileSource(start=DECISION). Nothing was written.",
    )


def unknown_columns(config: FileSource) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}': its columns are not known.",
        "No manifest in it names them: they list no files, or an older version wrote them.",
        "Run the pipeline that writes it. Nothing was written.",
    )


# --- what is lost


def not_the_one(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.called} is not the one that was pinned.",
        f"It has no manifest of {range_.topic_id} any more, its writer: it was emptied or replaced.",
        RESTORE,
    )


def changed(range_: TopicRange, taken_back: Iterable[Manifest]) -> SourceLost:
    """`taken_back`: manifests that replace others, and are later than the range."""
    if by := next(iter(taken_back), None):
        return SourceLost(
            f"{range_.called}: files of the decisions {span(range_)} were taken back.",
            f"They are pinned, and '{by.txn.pipeline}' has processed an interval again, or went back, by decision "
            f"{by.decision}.",
            "Abort the checkpoint and run it again: the next plan reads what is still in force, or says what to leave "
            "out. An interval with after is planned again by itself. Nothing was written.",
        )
    return SourceLost(
        f"{range_.called}: the manifests of the decisions {span(range_)} are not those that were pinned.",
        "The folder was restored from a copy, or somebody has changed what is in it.",
        RESTORE,
    )


def rewritten(range_: TopicRange) -> SourceLost:
    return SourceLost(
        f"{range_.called} has another history than the one that was read.",
        f"The manifests of what was published up to decision {range_.ends[0] - 1} are not the same any more: the "
        "folder was restored from a copy, or somebody has changed what is in it.",
        RESTORE,
    )


def gone(range_: TopicRange, missing: Sequence[str]) -> SourceLost:
    return SourceLost(
        f"{range_.called}: files of the decisions {span(range_)} no longer exist, or have another size.",
        f"{count(len(missing), 'file')} of them, such as {missing[0]}: somebody has removed or changed them.",
        RESTORE,
    )


def damaged(config: FileSource, place: str, error: Damaged) -> SourceLost:
    return SourceLost(
        f"folder '{config.topic}' cannot be read.",
        f"A file in {place} has the name of a manifest but is not one: {error}.",
        "Restore it. If it is not Onceonly's, move it elsewhere. Nothing was written.",
    )


def span(range_: TopicRange) -> str:
    spans = [f"{start} to {end - 1}" if end > start + 1 else f"{start}" for start, end in range_.partitions.values()]
    return ", ".join(spans)


# --- what is not there


def no_files(config: FileSource, uri: str) -> NoFiles:
    return NoFiles(
        f"nothing was published to folder '{config.topic}'.",
        f"There is no manifest of a FileSink at {uri}.",
        "Correct FileSource(path=…): a relative path is below ONCEONLY_HOME. Or first run the pipeline that writes "
        "it. Nothing was written.",
    )


def no_place(config: FileSource, uri: str) -> InvalidPipeline:
    return InvalidPipeline(
        f"folder '{config.topic}' cannot be read from {uri}.",
        "A FileSink publishes to local and mounted file systems, to HDFS and to object stores.",
        "Correct FileSource(path=…). Nothing was written.",
    )
