"""The staged folders inside a Delta table's own: which are there, which are settled, and their end.

Until its outcome is recorded a staged folder has a log of its own. Then the log goes and a mark takes its place beside
the data files, which are the target's: its VACUUM takes them in time, and what is left of the folder then goes too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from urllib.parse import unquote

import pyarrow.fs as pafs

from onceonly.checkpoint.model import Transaction
from onceonly.filesystems import folders
from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.objects import Objects
from onceonly.filesystems.paths import local_path
from onceonly.sinks.delta import log, references
from onceonly.sinks.delta.log import LOG, STAGED

MARK = "_settled"
SETTLED = "The outcome is recorded; what is here is the table's.\n"
SWEPT = f"{LOG}/.onceonly.swept."  # before a prefix and a sink; readers of the log pass over what is no entry
AT_ONCE = 16  # folders listed at the same time


def delete(uri: str, folder: str) -> None:
    """Delete a staged folder, unless the target refers to it or did."""
    files, own = log.file_system(uri), OwnPath(uri, folder)
    if not _exists(files, folder):
        return
    held = _contents(files, folder)
    if held <= {LOG} or (MARK not in held and not references.refers(uri, folder)):
        _delete(files, own)


def settle(uri: str, folder: str) -> None:
    """Its outcome is recorded: what only publishing needed goes, and all of it where no data is left."""
    if not local_path(uri):
        return _settle_stored(Objects(uri), OwnPath(uri, folder))
    files = log.file_system(uri)
    held = _contents(files, folder)
    if not held - {MARK, LOG}:
        _delete(files, OwnPath(uri, folder))
        return
    with suppress(FileNotFoundError):  # another process does it too
        if MARK not in held:
            log.write(files, f"{folder}/{MARK}", SETTLED)
        for name in sorted(held):  # of a merge's copies the log goes, too: a VACUUM would never delete it
            if name == LOG or name.startswith(log.COPIES):
                inner = LOG if name == LOG else f"{name}/{LOG}"
                _delete(files, OwnPath(uri, f"{folder}/{inner}"))


def _settle_stored(files: Objects, own: OwnPath) -> None:
    """The same, in three requests. An empty object marks a folder, as Spark does on Azure and Google."""
    found = [each.path for each in files.below(own.name) if each.size]
    held = {path.removeprefix(f"{own.name}/").split("/", 1)[0] for path in found}
    logs = [path for path in found if f"/{LOG}/" in path]
    if not held - {MARK, LOG}:
        return _delete_marked(own) if folders.is_marked_store(own.root) else files.unlink(found)
    if MARK not in held:
        files.write(f"{own.name}/{MARK}", SETTLED.encode())
    files.unlink(logs)


def is_unsettled(uri: str, folder: str) -> bool:
    """Whether the folder is there, and its outcome not recorded."""
    files = log.file_system(uri)
    return _exists(files, folder) and _is_unsettled(uri, files, folder)


def unsettled(uri: str, prefix: str) -> list[Transaction]:
    """Of the staged folders whose names begin with `prefix`. Cost: a listing of each, whatever else the table holds."""
    files = log.file_system(uri)
    staged = [f.base_name for f in log.entries(uri) if f.base_name.startswith(f"{STAGED}{prefix}-")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        still = list(pool.map(lambda folder: _is_unsettled(uri, files, folder), staged))
    names = (folder.removeprefix(STAGED) for folder, is_one in zip(staged, still, strict=True) if is_one)
    return [txn for name in names if (txn := Transaction.parse(name))]


def swept_ago(uri: str, names: str) -> float | None:
    """Seconds since `note_swept`, by the clocks of the storage and of this machine; None: never, as far as is known."""
    info: pafs.FileInfo = log.file_system(uri).get_file_info(SWEPT + names)
    return time.time() - info.mtime_ns / 1e9 if info.type == pafs.FileType.File and info.mtime_ns else None


def note_swept(uri: str, names: str) -> None:
    files = log.file_system(uri)
    if _exists(files, LOG):  # else there is no table yet
        log.write(files, SWEPT + names, "All leftovers were looked for.\n")


def _is_unsettled(uri: str, files: pafs.FileSystem, folder: str) -> bool:
    """Empty ones, and those that hold nothing but the mark, are still to be removed; and any log, also of copies."""
    found = _files(files, folder)
    if not found and folders.is_marked_store(uri):
        return False  # of accounts with hierarchical namespaces, clients do not show the empty folders that are left
    held = _names(found, folder)
    return MARK not in held or any(f"/{LOG}/" in info.path for info in found) or len(held) == 1


def _contents(files: pafs.FileSystem, folder: str) -> set[str]:
    """The names in a folder under which there is any file that is not empty: on a store, those mark folders."""
    return _names(_files(files, folder), folder)


def _names(found: Iterable[pafs.FileInfo], folder: str) -> set[str]:
    return {info.path.removeprefix(f"{folder}/").split("/", 1)[0] for info in found if info.size}


def _files(files: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    found = files.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [info for info in found if info.type == pafs.FileType.File]


def _exists(files: pafs.FileSystem, folder: str) -> bool:
    there: bool = files.get_file_info(folder).type != pafs.FileType.NotFound
    return there


def _delete(files: pafs.FileSystem, own: OwnPath) -> None:
    if folders.is_marked_store(own.root):
        return _delete_marked(own)
    with suppress(FileNotFoundError):  # another process is deleting it too
        files.delete_dir(own.name)


def _delete_marked(own: OwnPath) -> None:
    """delta-rs takes escapes in the table's URI for what they stand for."""
    folders.delete(OwnPath(unquote(own.root), own.name))
