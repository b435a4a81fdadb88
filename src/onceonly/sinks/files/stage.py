"""Stages files with Spark's writers, in a folder next to the target, which readers of the target do not see."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from onceonly.checkpoint.model import Transaction
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.filesystems import places
from onceonly.filesystems.confined import OwnPath, stem
from onceonly.filesystems.interface import AT_ONCE, FileSystem, Unsuitable, is_hidden
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.moves import StagedFile
from onceonly.sinks.staging import spark_files
from onceonly.sinks.staging.row_types import refuse_duplicates
from onceonly.spark.file_formats import OPTIONS

SUFFIX = {"parquet": ".parquet", "json": ".jsonl", "csv": ".csv", "avro": ".avro"}


def file_system_of(sink: str, uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str]:
    """The target's file system, and its path there.

    Args:
        webhdfs: HTTP address of the NameNode, for a target on HDFS.
    Raises:
        InvalidPipeline: on that file system, files cannot be moved in one step.
    """
    if found := places.of(uri, webhdfs):
        return found
    raise InvalidPipeline(
        f"sink '{sink}': files cannot be published to {uri}.",
        f"Onceonly knows no way to move a file on '{urlsplit(uri).scheme}' in one step. Between a copy and a deletion, "
        "a reader could see both files, or a process could die.",
        "Use a local or mounted file system, HDFS, s3://, az://, gs://, or a DeltaSink. Nothing was written.",
    )


def check(config: FileSink, on: FileSystem, target: str) -> None:
    """Refuse a target that files cannot be published to. Writes nothing.

    Raises:
        InvalidPipeline: it is a file or a Delta table; files cannot be moved to it from the folder next to it; or
            readers would ignore its partition folders.
    """
    if hidden := [name for name in config.partition_by if is_hidden(name)]:
        raise _refused(
            config,
            f"readers ignore folders whose names begin with '_' or '.', as those of {hidden} would.",
            "Rename the column in the transform.",
        )
    with _explained(config):
        on.check(target)


def write(config: FileSink, txn: Transaction, on: FileSystem, target: str, rows: Any) -> tuple[str, int]:
    """One Spark job; returns the staged folder and the number of rows.

    Raises:
        InvalidPipeline: the rows cannot be written in this format. Nothing was staged.
    """
    _check_columns(config, rows)
    folder = OwnPath(staging_of(target), txn.name)
    with _explained(config):
        on.probe(folder, target)
    data, options = folder.below("data").path, OPTIONS.get(config.format, {})
    return data, spark_files.write(rows, data, config.format, options, config.partition_by)


def describe(
    config: FileSink, txn: Transaction, on: FileSystem, target: str, folder: str, rows: int
) -> list[StagedFile]:
    """Make the staged files durable, and give each a final name, which is the same whenever it is staged again.

    Raises:
        NotCommitted: Spark wrote them to a place that this process cannot see.
        InvalidPipeline: Spark wrote them as another user, whose files this process cannot publish.
    """
    if not rows:  # Spark writes a file that has only a schema
        return []
    on.make_durable(folder)
    files = list(on.visible(folder))
    if not files:
        raise NotCommitted(
            f"sink '{config.name}': Spark wrote {count(rows, 'row')} to {folder}, but no file is there.",
            "For Spark, this path is a different place than for this process.",
            "Use storage that both share. On HDFS, ONCEONLY_WEBHDFS has to belong to the same cluster. Nothing was "
            "published.",
        )
    finals = [
        "".join([*path.rpartition("/")[:2], name]) for path, name in zip(files, _names(config, txn), strict=False)
    ]

    def ready(staged: str, final: str) -> StagedFile:
        on.check_movable(data.below(staged))
        return StagedFile(staged, final, *on.ready(f"{folder}/{staged}", f"{target}/{final}"))

    data = OwnPath(staging_of(target), txn.name).below("data")
    with _explained(config), ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ready, files, finals))


def _names(config: FileSink, txn: Transaction) -> Iterator[str]:
    number = 0
    while True:
        yield f"{stem(txn)}-{number:05d}{SUFFIX[config.format]}"
        number += 1


def _check_columns(config: FileSink, rows: Any) -> None:
    refuse_duplicates(config.name, rows)
    missing = [name for name in config.partition_by if name not in rows.columns]
    if missing:
        raise _refused(
            config,
            f"there is no column {missing} to partition by; the rows have {rows.columns}.",
            "Change FileSink(partition_by=…) or the transform.",
        )
    if set(rows.columns) <= set(config.partition_by):
        raise _refused(config, "all columns are partition columns.", "Leave a column for the files.")
    if unreadable := [name for name in config.partition_by if rows.schema[name].dataType.typeName() == "binary"]:
        raise _refused(
            config, f"{unreadable} contains bytes, and folder names are text.", "Cast it, for example with hex()."
        )
    if config.format == "csv":
        _check_csv(config, rows)


def _check_csv(config: FileSink, rows: Any) -> None:
    fields = [field for field in rows.schema.fields if field.name not in config.partition_by]
    nested = [field.name for field in fields if field.dataType.typeName() in ("struct", "map", "array", "binary")]
    if nested:
        raise _refused(
            config, f"CSV cannot hold {nested}: lists, maps, structs or bytes.", "Cast them, or use Parquet."
        )
    if len(fields) == 1 and fields[0].nullable:
        raise _refused(
            config,
            f"'{fields[0].name}' is the only column in the files. In CSV, a row in which it is null would be lost.",
            "Add a column, replace nulls (coalesce), or use Parquet.",
        )


@contextmanager
def _explained(config: FileSink) -> Iterator[None]:
    try:
        yield
    except Unsuitable as unfit:
        raise _refused(config, unfit.why, unfit.todo, unfit.code) from unfit.__cause__


def _refused(config: FileSink, why: str, todo: str, code: str = "") -> InvalidPipeline:
    what = f"sink '{config.name}': files cannot be written."
    return InvalidPipeline(what, why, f"{todo} Nothing was published.", code)
