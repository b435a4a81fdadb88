"""Staging files with Spark's own writers, in a folder beside the target that no reader of the target looks into."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from onceonly.checkpoint.model import Transaction
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.filesystems.confined import OwnPath, stem
from onceonly.filesystems.interface import AT_ONCE, FileSystem, Unsuitable, is_hidden
from onceonly.filesystems.local import LocalFiles
from onceonly.filesystems.paths import local_path
from onceonly.pipeline.sinks import FileSink
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.moves import StagedFile
from onceonly.sinks.staging import row_text, spark_files

SUFFIX = {"parquet": ".parquet", "json": ".jsonl", "csv": ".csv", "avro": ".avro"}
BLANKS = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}  # by default Spark strips them
OPTIONS = {
    "csv": {"header": "true", "escape": '"', **BLANKS, **row_text.MICROS},
    "json": {"ignoreNullFields": "false", **row_text.MICROS},
}


def file_system_of(sink: str, uri: str, webhdfs: str | None = None) -> tuple[FileSystem, str]:
    """What the target is on, and the target's path there.

    Args:
        webhdfs: HTTP address of the NameNode, for a target on HDFS.
    Raises:
        InvalidPipeline: it is where nothing can be moved in one step.
    """
    path = local_path(uri)
    if path is not None:
        return LocalFiles(), str(path)
    if urlsplit(uri).scheme == "hdfs":
        return _hdfs(uri, webhdfs)
    raise InvalidPipeline(
        f"sink '{sink}': {uri} cannot be published to file by file.",
        f"On '{urlsplit(uri).scheme}' a file is moved by a copy and a deletion, or in a way that Onceonly does not "
        "know to be a single step: a reader, or a crash, could come in between.",
        "Use a local or mounted file system, HDFS, or a DeltaSink. Nothing was written.",
    )


def _hdfs(uri: str, address: str | None) -> tuple[FileSystem, str]:
    try:
        from onceonly.filesystems.hdfs import HdfsFiles
        from onceonly.filesystems.webhdfs import Cluster, split
    except ImportError as error:
        raise InvalidPipeline(
            f"{uri} cannot be reached: '{error.name}' is not installed.", todo="pip install 'onceonly[hdfs]'"
        ) from error
    cluster = Cluster(uri, address)
    return HdfsFiles(cluster), cluster.root + split(uri)[1]


def check(config: FileSink, on: FileSystem, target: str) -> None:
    """Refuse a target that is something else; writes nothing.

    Raises:
        InvalidPipeline: it is a file, a Delta table, or on a file system that nothing can be moved to from beside it;
            or no reader would look into the folders of its partitions.
    """
    if hidden := [name for name in config.partition_by if is_hidden(name)]:
        raise _refused(
            config,
            f"readers look into no folder that begins with '_' or '.', as those of {hidden} would.",
            "Rename the column in the transform.",
        )
    with _explained(config):
        on.check(target)


def write(config: FileSink, txn: Transaction, on: FileSystem, target: str, rows: Any) -> tuple[str, int]:
    """One Spark job; returns the staged folder and the number of rows.

    Raises:
        InvalidPipeline: the rows cannot be written so; nothing is left.
    """
    _check_columns(config, rows)
    folder = OwnPath(staging_of(target), txn.name)
    with _explained(config):
        on.probe(folder, target)
    data, options = folder.below("data").path, OPTIONS.get(config.format, {})
    return data, spark_files.write(rows, data, config.format, options, config.partition_by)


def describe(config: FileSink, txn: Transaction, on: FileSystem, folder: str, rows: int) -> list[StagedFile]:
    """The staged files, durable now, with the names that they will have: the same however often it is staged.

    Raises:
        NotCommitted: Spark wrote them where this process does not see them.
    """
    if not rows:  # Spark writes a file for its schema alone
        return []
    on.make_durable(folder)
    files = list(on.visible(folder))
    if not files:
        raise NotCommitted(
            f"sink '{config.name}': {rows} rows were written to {folder}, and no file is there.",
            "What Spark calls by this name is another place than what this process does.",
            "Use storage that both share; on HDFS, ONCEONLY_WEBHDFS has to be of the same cluster. Nothing was "
            "published.",
        )
    with ThreadPoolExecutor(AT_ONCE) as pool:
        prints = list(pool.map(on.fingerprint, (f"{folder}/{path}" for path in files)))
    names = _names(config, txn)
    return [
        StagedFile(path, "".join([*path.rpartition("/")[:2], next(names)]), print)
        for path, print in zip(files, prints, strict=True)
    ]


def _names(config: FileSink, txn: Transaction) -> Iterator[str]:
    number = 0
    while True:
        yield f"{stem(txn)}-{number:05d}{SUFFIX[config.format]}"
        number += 1


def _check_columns(config: FileSink, rows: Any) -> None:
    missing = [name for name in config.partition_by if name not in rows.columns]
    if missing:
        raise _refused(
            config,
            f"there is no column {missing} to partition by; the rows have {rows.columns}.",
            "Change FileSink(partition_by=…) or the transform.",
        )
    if set(rows.columns) <= set(config.partition_by):
        raise _refused(config, "every column is one to partition by.", "Leave a column for the files.")
    if unreadable := [name for name in config.partition_by if rows.schema[name].dataType.typeName() == "binary"]:
        raise _refused(config, f"{unreadable} holds bytes, and names of folders are text.", "Cast it, as by hex().")
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
            f"'{fields[0].name}' is the only column in the files, and in CSV a row in which it is null is no row.",
            "Add a column, make it never null (coalesce), or use Parquet.",
        )


@contextmanager
def _explained(config: FileSink) -> Iterator[None]:
    try:
        yield
    except Unsuitable as unfit:
        raise _refused(config, unfit.why, unfit.todo) from unfit.__cause__


def _refused(config: FileSink, why: str, todo: str) -> InvalidPipeline:
    return InvalidPipeline(f"sink '{config.name}': files cannot be written.", why, f"{todo} Nothing was published.")
