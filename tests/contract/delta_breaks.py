"""What can change between stage and commit of a Delta sink, in a folder or on an object store."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import log_files, table_files
from onceonly.sinks.delta import staged_table
from onceonly.sinks.delta.errors import TRANSACTION_RETENTION
from onceonly.storage.paths import local_path
from onceonly.testing.contract import Break
from onceonly.testing.targets import Undo

EIGHT_DAYS = 8 * 24 * 3600


def uri_of(target: Any) -> str:
    uri: str = target.sink().uri
    return uri


def folder_of(target: Any) -> Path:
    folder = local_path(uri_of(target))
    if folder is None:
        pytest.skip("only a folder can be moved")
    return folder


def staged_file(target: Any, handle: Handle) -> str:
    add = staged_table.read_adds(uri_of(target), handle["folder"], 1)[0]
    return f"{handle['folder']}/{add['path']}"


def remove_file(target: Any, handle: Handle, txn: Transaction) -> None:
    table_files.open_folder(uri_of(target)).delete_file(staged_file(target, handle))


def truncate_file(target: Any, handle: Handle, txn: Transaction) -> None:
    table_files.write_text(table_files.open_folder(uri_of(target)), staged_file(target, handle), "PAR1")


def remove_log(target: Any, handle: Handle, txn: Transaction) -> None:
    files = table_files.open_folder(uri_of(target))
    for version in (0, 1):
        files.delete_file(f"{handle['folder']}/{log_files.entry_path(version)}")


def move_away(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """A volume that is not mounted any more."""
    folder = folder_of(target)
    aside = folder.with_name(f"{folder.name}-unmounted")
    folder.rename(aside)

    def mount() -> None:
        if folder.exists():
            shutil.rmtree(folder)
        aside.rename(folder)

    return mount


def restore_older(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """A copy from before the last publication."""
    entry = folder_of(target) / log_files.entry_path(DeltaTable(uri_of(target)).version())
    content = entry.read_bytes()
    entry.unlink()
    return lambda: _write(entry, content)


def recreate(target: Any, handle: Handle, txn: Transaction) -> Undo:
    schema = DeltaTable(uri_of(target)).schema()
    mount = move_away(target, handle, txn)
    DeltaTable.create(uri_of(target), schema)
    return mount


def let_evidence_expire(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """The owner lets the table forget transaction identifiers."""
    set_property(target, TRANSACTION_RETENTION, "interval 1 hour")
    return lambda: pytest.skip("delta-rs cannot unset a property")


def set_property(target: Any, name: str, value: str) -> None:
    DeltaTable(uri_of(target)).alter.set_table_properties({name: value}, raise_if_not_exists=False)


def age_files(target: Any, handle: Handle, txn: Transaction) -> None:
    """Held by its gate for eight days: a VACUUM may have the files on its list."""
    old = time.time() - EIGHT_DAYS
    for path in (folder_of(target) / handle["folder"]).rglob("*"):
        os.utime(path, (old, old))


def optimize(target: Any, handle: Handle, txn: Transaction) -> None:
    """Others put the files of published rows together."""
    DeltaTable(uri_of(target)).optimize.compact()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


DELTA_BREAKS = (
    Break("staged file removed", remove_file, "again", first=True),
    Break("staged file truncated", truncate_file, "again", first=True),
    Break("staged log removed", remove_log, "again", first=True),
    Break("volume not mounted", move_away, "action", first=True),
    Break("older copy restored", restore_older, "action"),
    Break("table recreated", recreate, "action"),
    Break("transaction identifiers expire", let_evidence_expire, "action", first=True),
    Break("published rows optimized", optimize, "passes"),
    Break("files old enough for VACUUM", age_files, "passes", first=True),
)
