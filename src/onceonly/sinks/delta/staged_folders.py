"""The staged folders inside a Delta table's own: which are there, which are settled, and their end.

Until its outcome is recorded a staged folder has a log of its own. Then the log goes and a mark takes its place beside
the data files, which are the target's: its VACUUM takes them in time, and what is left of the folder then goes too.

Whether the target refers to a folder, or has since it was staged, its log entries since then say: the folder's own log
names the version at which it was staged, and the content of that version's entry, so that another history of the table
is not taken for this one. Where that is not known (entries were cleaned up, a copy of the table was restored) the list
of all files decides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from onceonly.checkpoint.model import Transaction
from onceonly.delta import log_files, log_summary, table_files
from onceonly.delta.log_files import LOG_FOLDER
from onceonly.delta.txn_identifiers import KEPT_PREFIX, STAGED_PREFIX
from onceonly.sinks.delta import staged_table
from onceonly.storage import folders
from onceonly.storage.objects import Objects
from onceonly.storage.own_paths import OwnPath
from onceonly.storage.paths import local_path

MARK = "_settled"
SETTLED = "The outcome is recorded; what is here is the table's.\n"
SWEPT = f"{LOG_FOLDER}/.onceonly.swept."  # before a prefix and a sink; readers of the log pass over what is no entry
MAX_PARALLEL_LISTINGS = 16
MAX_ENTRIES_SEARCHED = 2_000  # entries: more take longer to read than the list of all files


def delete(uri: str, folder: str) -> None:
    """Delete a staged folder, unless the target refers to it or did."""
    files, own = table_files.open_folder(uri), OwnPath(uri, folder)
    if not _exists(files, folder):
        return
    contents = _contents(files, folder)
    # A folder with nothing but its log never got rows. One with the mark is the target's, whatever the log shows.
    if contents <= {LOG_FOLDER} or (MARK not in contents and not has_reference(uri, folder)):
        _delete(files, own)


def settle(uri: str, folder: str) -> None:
    """Delete what only publishing needed, as the outcome is recorded; all of the folder where no data is left."""
    if not local_path(uri):
        return _settle_stored(Objects(uri), OwnPath(uri, folder))
    files = table_files.open_folder(uri)
    contents = _contents(files, folder)
    if not contents - {MARK, LOG_FOLDER}:
        _delete(files, OwnPath(uri, folder))
        return
    with suppress(FileNotFoundError):  # another process does it too
        # The mark comes first: if the process dies here, the folder has both, and is settled again.
        if MARK not in contents:
            table_files.write_text(files, f"{folder}/{MARK}", SETTLED)
        for name in sorted(contents):  # of copies the log goes, too: a VACUUM would never delete it
            if name == LOG_FOLDER:
                _delete(files, OwnPath(uri, f"{folder}/{LOG_FOLDER}"))
            elif name.startswith((staged_table.COPY_PREFIX, KEPT_PREFIX)):
                _delete(files, OwnPath(uri, f"{folder}/{name}/{LOG_FOLDER}"))


def _settle_stored(files: Objects, own: OwnPath) -> None:
    """Settle a folder on an object store, in three requests.

    An empty object marks a folder, as Spark does on Azure and Google.
    """
    paths = [file.path for file in files.list_objects(own.name) if file.size]
    contents = _names(paths, own.name)
    logs = [path for path in paths if f"/{LOG_FOLDER}/" in path]
    if not contents - {MARK, LOG_FOLDER}:
        if folders.is_marked_store(own.root):
            return _delete_marked(own)
        return files.unlink(paths)
    if MARK not in contents:
        files.write(f"{own.name}/{MARK}", SETTLED.encode())
    files.unlink(logs)


def is_unsettled(uri: str, folder: str) -> bool:
    """Return whether the folder is there, and its outcome not recorded."""
    files = table_files.open_folder(uri)
    return _exists(files, folder) and _is_unsettled(uri, files, folder)


def list_unsettled(uri: str, prefix: str) -> list[Transaction]:
    """List the transactions of unsettled folders whose names begin with `prefix`.

    Cost: a listing of each such folder, whatever else the table holds.
    """
    files = table_files.open_folder(uri)
    names = []
    for info in table_files.list_folder(uri):
        if info.base_name.startswith(f"{STAGED_PREFIX}{prefix}-"):
            names.append(info.base_name)
    with ThreadPoolExecutor(MAX_PARALLEL_LISTINGS) as pool:
        answers = list(pool.map(lambda folder: _is_unsettled(uri, files, folder), names))
    transactions = []
    for name, is_one in zip(names, answers, strict=True):
        if not is_one:
            continue
        txn = Transaction.parse(name.removeprefix(STAGED_PREFIX))
        if txn:
            transactions.append(txn)
    return transactions


def seconds_since_sweep(uri: str, names: str) -> float | None:
    """Return the seconds since `record_sweep`; None: never, as far as is known.

    They are by the clocks of the storage and of this machine.
    """
    info: pafs.FileInfo = table_files.open_folder(uri).get_file_info(SWEPT + names)
    if info.type != pafs.FileType.File or not info.mtime_ns:
        return None
    age: float = time.time() - info.mtime_ns / 1e9
    return age


def record_sweep(uri: str, names: str) -> None:
    """Record that all leftovers were looked for, just now."""
    files = table_files.open_folder(uri)
    if _exists(files, LOG_FOLDER):  # else there is no table yet
        table_files.write_text(files, SWEPT + names, "All leftovers were looked for.\n")


def _is_unsettled(uri: str, files: pafs.FileSystem, folder: str) -> bool:
    """Return whether something of the folder is still to be removed, or its outcome not recorded.

    Empty ones, and those that hold nothing but the mark, are still to be removed; and any log, also of copies.
    """
    infos = _list_files(files, folder)
    if not infos and folders.is_marked_store(uri):
        return False  # of accounts with hierarchical namespaces, clients do not show the empty folders that are left
    contents = _names(_paths_with_content(infos), folder)
    if MARK not in contents or len(contents) == 1:
        return True
    return any(f"/{LOG_FOLDER}/" in info.path for info in infos)


def _contents(files: pafs.FileSystem, folder: str) -> set[str]:
    """Return the names in a folder under which there is any file that is not empty: on a store, those mark folders."""
    return _names(_paths_with_content(_list_files(files, folder)), folder)


def _paths_with_content(infos: Iterable[pafs.FileInfo]) -> list[str]:
    return [info.path for info in infos if info.size]


def _names(paths: Iterable[str], folder: str) -> set[str]:
    """Return the names directly in the folder that these paths begin with."""
    names = set()
    for path in paths:
        path_in_folder = path.removeprefix(f"{folder}/")
        names.add(path_in_folder.split("/", 1)[0])
    return names


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


# ---- whether the target refers to a folder


def has_reference(uri: str, folder: str) -> bool:
    """Return whether the table refers to the folder, or has since it was staged."""
    in_log = _find_in_entries(uri, folder)
    if in_log is None:
        return _is_in_files(uri, folder)
    return in_log


def _find_in_entries(uri: str, folder: str) -> bool | None:
    """Return whether a log entry names the folder; None: they do not say."""
    try:
        files = table_files.open_folder(uri)
        versions = _list_versions_since(uri, _find_staged_version(files, folder))
        if versions is None:
            return None
        with ThreadPoolExecutor(log_summary.MAX_PARALLEL_READS) as pool:
            return any(pool.map(lambda version: _has_folder(files, version, folder), versions))
    except log_summary.LOG_ERRORS:
        return None


def _find_staged_version(files: pafs.FileSystem, folder: str) -> dict[str, Any] | None:
    """Find the target's version as the folder's own log has it, if the target has that very version."""
    identity = None
    for line in table_files.read_lines(files, f"{folder}/{log_files.entry_path(0)}"):
        action = json.loads(line)
        if "commitInfo" in action:
            identity = action["commitInfo"].get(staged_table.TARGET_VERSION_KEY)
            break
    if not identity or table_files.identify_version(files, identity["version"]) != identity:
        return None
    return dict(identity)


def _list_versions_since(uri: str, identity: dict[str, Any] | None) -> range | None:
    """Return the versions that were written since; None: not all of them are there, or too many."""
    names = table_files.list_log(uri)
    newest = log_files.find_newest_version(names)
    if identity is None or newest - identity["version"] > MAX_ENTRIES_SEARCHED:
        return None
    versions = range(identity["version"] + 1, newest + 1)
    return versions if set(map(log_files.entry_name, versions)) <= set(names) else None


def _has_folder(files: pafs.FileSystem, version: int, folder: str) -> bool:
    """Return whether that log entry names a file in the folder."""
    prefix = f"{folder}/".encode()
    return any(prefix in line for line in table_files.read_lines(files, log_files.entry_path(version)))


def _is_in_files(uri: str, folder: str) -> bool:
    table = table_files.open_table(uri)
    return table is not None and bool(table_files.select_in_folder(table_files.list_active_files(table), folder))
