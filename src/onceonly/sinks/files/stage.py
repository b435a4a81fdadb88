"""Stages files with Spark's writers, in a folder next to the target, which readers of the target do not see."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.transaction_names import file_stem
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files.handle import StagedFile, staging_of
from onceonly.sinks.staging.row_types import refuse_duplicates
from onceonly.spark import row_files
from onceonly.storage.file_systems import open_file_system
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, FileSystem, UnsuitableTarget, is_hidden
from onceonly.storage.own_paths import OwnPath

SUFFIX = {"parquet": ".parquet", "json": ".jsonl", "csv": ".csv", "avro": ".avro"}


def file_system_of(sink: str, uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str]:
    """Return the target's file system, and its path there.

    Args:
        webhdfs: HTTP address of the NameNode, for a target on HDFS.
    Raises:
        InvalidPipeline: on that file system, files cannot be moved in one step.
    """
    location = open_file_system(uri, webhdfs)
    if location:
        return location
    raise InvalidPipeline(
        f"sink '{sink}': files cannot be published to {uri}.",
        f"Onceonly knows no way to move a file on '{urlsplit(uri).scheme}' in one step. Between a copy and a deletion, "
        "a reader could see both files, or a process could die.",
        "Use a local or mounted file system, HDFS, s3://, az://, gs://, or a DeltaSink. Nothing was written.",
        code="storage-unsupported",
    )


def check(config: FileSink, file_system: FileSystem, target: str) -> None:
    """Refuse a target that files cannot be published to. Writes nothing.

    Raises:
        InvalidPipeline: it is a file or a Delta table; files cannot be moved to it from the folder next to it; or
            readers would ignore its partition folders.
    """
    hidden = [name for name in config.partition_by if is_hidden(name)]
    if hidden:
        raise _stage_error(
            config,
            f"readers ignore folders whose names begin with '_' or '.', as those of {hidden} would.",
            "Rename the column in the transform.",
        )
    with _refuse_unsuitable(config):
        file_system.check(target)


def write(config: FileSink, txn: Transaction, file_system: FileSystem, target: str, rows: Any) -> tuple[str, int]:
    """Write the rows in one Spark job; return the staged folder and the number of rows.

    Raises:
        InvalidPipeline: the rows cannot be written in this format. Nothing was staged.
    """
    _check_columns(config, rows)
    folder = OwnPath(staging_of(target), txn.name)
    with _refuse_unsuitable(config):
        file_system.probe(folder, target)
    data = folder.join("data").path
    return data, row_files.write_files(rows, data, config.format, config.partition_by)


def prepare_files(
    config: FileSink, txn: Transaction, file_system: FileSystem, target: str, folder: str, rows: int
) -> list[StagedFile]:
    """Make the staged files durable, and give each a final name, which is the same whenever it is staged again.

    Raises:
        NotCommitted: Spark wrote them to a place that this process cannot see.
        InvalidPipeline: Spark wrote them as another user, whose files this process cannot publish.
    """
    if not rows:  # Spark writes a file that has only a schema
        return []
    file_system.make_durable(folder)
    files = list(file_system.list_visible(folder))
    if not files:
        raise NotCommitted(
            f"sink '{config.name}': Spark wrote {count(rows, 'row')} to {folder}, but no file is there.",
            "For Spark, this path is a different place than for this process.",
            "Use storage that both share. On HDFS, ONCEONLY_WEBHDFS has to belong to the same cluster. Nothing was "
            "published.",
            code="storage-not-shared",
        )
    finals = _final_paths(config, txn, files)

    def prepare(staged: str, final: str) -> StagedFile:
        file_system.check_movable(data.join(staged))
        return StagedFile(staged, final, *file_system.prepare(f"{folder}/{staged}", f"{target}/{final}"))

    data = OwnPath(staging_of(target), txn.name).join("data")
    with _refuse_unsuitable(config), ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        return list(pool.map(prepare, files, finals))


def _final_paths(config: FileSink, txn: Transaction, staged: list[str]) -> list[str]:
    """Return the paths in the target: the staged ones, with names made of the transaction's stem and a number."""
    finals = []
    for number, path in enumerate(staged):
        folder, slash, _ = path.rpartition("/")
        finals.append(f"{folder}{slash}{file_stem(txn)}-{number:05d}{SUFFIX[config.format]}")
    return finals


def _check_columns(config: FileSink, rows: Any) -> None:
    refuse_duplicates(config.name, rows)
    missing = [name for name in config.partition_by if name not in rows.columns]
    if missing:
        raise _stage_error(
            config,
            f"there is no column {missing} to partition by; the rows have {rows.columns}.",
            "Change FileSink(partition_by=…) or the transform.",
        )
    if set(rows.columns) <= set(config.partition_by):
        raise _stage_error(config, "all columns are partition columns.", "Leave a column for the files.")
    unreadable = [name for name in config.partition_by if rows.schema[name].dataType.typeName() == "binary"]
    if unreadable:
        raise _stage_error(
            config, f"{unreadable} contains bytes, and folder names are text.", "Cast it, for example with hex()."
        )
    if config.format == "csv":
        _check_csv(config, rows)


def _check_csv(config: FileSink, rows: Any) -> None:
    fields = [field for field in rows.schema.fields if field.name not in config.partition_by]
    nested = [field.name for field in fields if field.dataType.typeName() in ("struct", "map", "array", "binary")]
    if nested:
        raise _stage_error(
            config, f"CSV cannot hold {nested}: lists, maps, structs or bytes.", "Cast them, or use Parquet."
        )
    if len(fields) == 1 and fields[0].nullable:
        raise _stage_error(
            config,
            f"'{fields[0].name}' is the only column in the files. In CSV, a row in which it is null would be lost.",
            "Add a column, replace nulls (coalesce), or use Parquet.",
        )


@contextmanager
def _refuse_unsuitable(config: FileSink) -> Iterator[None]:
    """Turn a file system's refusal into an error of the pipeline."""
    try:
        yield
    except UnsuitableTarget as unfit:
        raise _stage_error(config, unfit.why, unfit.todo, unfit.code) from unfit.__cause__


def _stage_error(config: FileSink, why: str, todo: str, code: str = "columns-unsuitable") -> InvalidPipeline:
    what = f"sink '{config.name}': files cannot be written."
    return InvalidPipeline(what, why, f"{todo} Nothing was published.", code)
