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
from onceonly.sinks.delta import log, references
from onceonly.sinks.delta.log import LOG, STAGED
from onceonly.storage import folders
from onceonly.storage.objects import Objects
from onceonly.storage.own_paths import OwnPath
from onceonly.storage.paths import local_path

MARK = "_settled"
SETTLED = "The outcome is recorded; what is here is the table's.\n"
SWEPT = f"{LOG}/.onceonly.swept."  # before a prefix and a sink; readers of the log pass over what is no entry
MAX_PARALLEL_LISTINGS = 16


def delete(uri: str, folder: str) -> None:
    """Delete a staged folder, unless the target refers to it or did."""
    files, own = log.file_system(uri), OwnPath(uri, folder)
    if not _exists(files, folder):
        return
    contents = _contents(files, folder)
    # A folder with nothing but its log never got rows. One with the mark is the target's, whatever the log shows.
    if contents <= {LOG} or (MARK not in contents and not references.refers(uri, folder)):
        _delete(files, own)


def settle(uri: str, folder: str) -> None:
    """Delete what only publishing needed, as the outcome is recorded; all of the folder where no data is left."""
    if not local_path(uri):
        return _settle_stored(Objects(uri), OwnPath(uri, folder))
    files = log.file_system(uri)
    contents = _contents(files, folder)
    if not contents - {MARK, LOG}:
        _delete(files, OwnPath(uri, folder))
        return
    with suppress(FileNotFoundError):  # another process does it too
        # The mark comes first: if the process dies here, the folder has both, and is settled again.
        if MARK not in contents:
            log.write(files, f"{folder}/{MARK}", SETTLED)
        for name in sorted(contents):  # of a merge's copies the log goes, too: a VACUUM would never delete it
            if name == LOG:
                _delete(files, OwnPath(uri, f"{folder}/{LOG}"))
            elif name.startswith(log.COPIES):
                _delete(files, OwnPath(uri, f"{folder}/{name}/{LOG}"))


def _settle_stored(files: Objects, own: OwnPath) -> None:
    """Settle a folder on an object store, in three requests.

    An empty object marks a folder, as Spark does on Azure and Google.
    """
    paths = [file.path for file in files.list_objects(own.name) if file.size]
    contents = _names(paths, own.name)
    logs = [path for path in paths if f"/{LOG}/" in path]
    if not contents - {MARK, LOG}:
        return _delete_marked(own) if folders.is_marked_store(own.root) else files.unlink(paths)
    if MARK not in contents:
        files.write(f"{own.name}/{MARK}", SETTLED.encode())
    files.unlink(logs)


def is_unsettled(uri: str, folder: str) -> bool:
    """Return whether the folder is there, and its outcome not recorded."""
    files = log.file_system(uri)
    return _exists(files, folder) and _is_unsettled(uri, files, folder)


def list_unsettled(uri: str, prefix: str) -> list[Transaction]:
    """List the transactions of unsettled folders whose names begin with `prefix`.

    Cost: a listing of each such folder, whatever else the table holds.
    """
    files = log.file_system(uri)
    names = [info.base_name for info in log.entries(uri) if info.base_name.startswith(f"{STAGED}{prefix}-")]
    with ThreadPoolExecutor(MAX_PARALLEL_LISTINGS) as pool:
        answers = list(pool.map(lambda folder: _is_unsettled(uri, files, folder), names))
    transactions = []
    for name, is_one in zip(names, answers, strict=True):
        if not is_one:
            continue
        txn = Transaction.parse(name.removeprefix(STAGED))
        if txn:
            transactions.append(txn)
    return transactions


def swept_ago(uri: str, names: str) -> float | None:
    """Return the seconds since `note_swept`; None: never, as far as is known.

    They are by the clocks of the storage and of this machine.
    """
    info: pafs.FileInfo = log.file_system(uri).get_file_info(SWEPT + names)
    if info.type != pafs.FileType.File or not info.mtime_ns:
        return None
    age: float = time.time() - info.mtime_ns / 1e9
    return age


def note_swept(uri: str, names: str) -> None:
    """Record that all leftovers were looked for, just now."""
    files = log.file_system(uri)
    if _exists(files, LOG):  # else there is no table yet
        log.write(files, SWEPT + names, "All leftovers were looked for.\n")


def _is_unsettled(uri: str, files: pafs.FileSystem, folder: str) -> bool:
    """Return whether something of the folder is still to be removed, or its outcome not recorded.

    Empty ones, and those that hold nothing but the mark, are still to be removed; and any log, also of copies.
    """
    infos = _list_files(files, folder)
    if not infos and folders.is_marked_store(uri):
        return False  # of accounts with hierarchical namespaces, clients do not show the empty folders that are left
    contents = _names(_paths_with_content(infos), folder)
    return MARK not in contents or any(f"/{LOG}/" in info.path for info in infos) or len(contents) == 1


def _contents(files: pafs.FileSystem, folder: str) -> set[str]:
    """Return the names in a folder under which there is any file that is not empty: on a store, those mark folders."""
    return _names(_paths_with_content(_list_files(files, folder)), folder)


def _paths_with_content(infos: Iterable[pafs.FileInfo]) -> list[str]:
    return [info.path for info in infos if info.size]


def _names(paths: Iterable[str], folder: str) -> set[str]:
    """Return the names directly in the folder that these paths begin with."""
    return {path.removeprefix(f"{folder}/").split("/", 1)[0] for path in paths}


def _list_files(files: pafs.FileSystem, folder: str) -> list[pafs.FileInfo]:
    infos = files.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
    return [info for info in infos if info.type == pafs.FileType.File]


def _exists(files: pafs.FileSystem, folder: str) -> bool:
    return bool(files.get_file_info(folder).type != pafs.FileType.NotFound)


def _delete(files: pafs.FileSystem, own: OwnPath) -> None:
    if folders.is_marked_store(own.root):
        return _delete_marked(own)
    with suppress(FileNotFoundError):  # another process is deleting it too
        files.delete_dir(own.name)


def _delete_marked(own: OwnPath) -> None:
    """Delete a folder on a store that marks folders. delta-rs takes escapes in the table's URI for what they mean."""
    folders.delete(OwnPath(unquote(own.root), own.name))
