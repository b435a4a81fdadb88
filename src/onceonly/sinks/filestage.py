"""Staging files with Spark's own writers, in a folder beside the target that no reader of the target looks into."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.dataset as ds

from onceonly.checkpoint import Transaction
from onceonly.errors import InvalidPipeline
from onceonly.pipeline import FileSink
from onceonly.sinks import filemoves, sparkfiles
from onceonly.sinks.filemoves import StagedFile
from onceonly.statestore import local_path

SUFFIX = {"parquet": ".parquet", "json": ".jsonl", "csv": ".csv", "avro": ".avro"}
READ = {"csv": {"inferSchema": "true", "multiLine": "true"}}  # and what they are written with
OPTIONS = {"csv": {"header": "true", "escape": '"'}, "json": {"ignoreNullFields": "false"}}


def folder_of(sink: str, uri: str) -> Path:
    """The target's folder.

    Raises:
        InvalidPipeline: it is where nothing can be moved in one step.
    """
    path = local_path(uri)
    if path is None:
        raise InvalidPipeline(
            f"sink '{sink}': {uri} cannot be published to file by file.",
            f"On '{urlsplit(uri).scheme}' a file is moved by a copy and a deletion, or in a way that Onceonly does not "
            "know to be a single step: a reader, or a crash, could come in between.",
            "Use a local or mounted file system, or a DeltaSink. Nothing was written.",
        )
    return path


def staging_of(target: Path) -> Path:
    """Beside the target, on the same file system; its name starts with a dot."""
    return target.parent / f".{target.name}.staged"


def check(config: FileSink, target: Path) -> None:
    """Refuse a target that is something else; writes nothing.

    Raises:
        InvalidPipeline: it is a file, a Delta table, or a mount point of its own.
    """
    nearest = next(place for place in (target, *target.parents) if place.exists())
    if not nearest.is_dir():
        raise _refused(config, f"{nearest} is not a folder.", "Choose another path.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise _refused(config, f"this process may not write in {nearest}.", "Grant it, or choose another path.")
    if (target / "_delta_log").exists():
        raise _refused(config, f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
    if target.exists() and target.stat().st_dev != target.parent.stat().st_dev:
        raise _refused(
            config,
            f"{target} is the root of a file system of its own, and rows are staged beside it, on another one.",
            "Choose a folder below it.",
        )


def write(config: FileSink, txn: Transaction, target: Path, rows: Any) -> tuple[Path, int]:
    """One Spark job; returns the staged folder and the number of rows.

    Raises:
        InvalidPipeline: the rows cannot be written so; nothing is left.
    """
    _check_columns(config, rows)
    folder = staging_of(target) / txn.name
    _try_links(config, folder)
    data, options = folder / "data", OPTIONS.get(config.format, {})
    return data, sparkfiles.write(rows, str(data), config.format, options, config.partition_by)


def read(folder: str, format: str) -> pa.RecordBatchReader | None:
    """The rows of a staged folder, types as they look in text and names of folders; None: pyarrow reads no Avro."""
    if format == "avro":
        return None
    kind = ds.CsvFileFormat(pacsv.ParseOptions(newlines_in_values=True)) if format == "csv" else format
    return ds.dataset(folder, format=kind, partitioning="hive").scanner().to_reader()


def describe(config: FileSink, txn: Transaction, folder: Path, rows: int) -> list[StagedFile]:
    """The staged files, durable now, with the names that they will have: the same however often it is staged."""
    if not rows:  # Spark writes a file for its schema alone
        return []
    filemoves.make_durable(folder)
    files = list(filemoves.visible(folder))
    with ThreadPoolExecutor(filemoves.AT_ONCE) as pool:
        prints = list(pool.map(filemoves.fingerprint, files))
    names = _names(config, txn)
    return [
        StagedFile(str(path.relative_to(folder)), str(path.relative_to(folder).parent / next(names)), size, digest)
        for path, (size, digest) in zip(files, prints, strict=True)
    ]


def stem(txn: Transaction) -> str:
    """First part of every published name: of this state table, pipeline, sink and epoch."""
    return f"{txn.pipeline}-{txn.sink}-{txn.epoch:06d}-{txn.state_id[:8]}"


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
    nested = [
        field.name for field in rows.schema.fields if field.dataType.typeName() in ("struct", "map", "array", "binary")
    ]
    if config.format == "csv" and nested:
        raise _refused(
            config, f"CSV cannot hold {nested}: lists, maps, structs or bytes.", "Cast them, or use Parquet."
        )


def _try_links(config: FileSink, folder: Path) -> None:
    """Whether this file system can do what a commit needs, before the job."""
    folder.mkdir(parents=True, exist_ok=True)
    probe, name = folder / ".probe", folder / f".{uuid.uuid4().hex}"
    try:
        probe.touch()
        os.link(probe, name)
    except OSError as error:
        raise _refused(
            config,
            f"the file system of {folder} cannot give a file its name in one step ({error.strerror}).",
            "Use one with hard links, or a DeltaSink.",
        ) from error
    finally:
        name.unlink(missing_ok=True)
        probe.unlink(missing_ok=True)


def _refused(config: FileSink, why: str, todo: str) -> InvalidPipeline:
    return InvalidPipeline(f"sink '{config.name}': files cannot be written.", why, f"{todo} Nothing was published.")
