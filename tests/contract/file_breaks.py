"""What can change between stage and commit of a file sink, on each file system."""

from __future__ import annotations

from typing import Any

import pytest

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.sinks.files.handle import staging_of
from onceonly.storage.interface import FileSystem
from onceonly.storage.own_paths import OwnPath
from onceonly.testing.contract import Break
from onceonly.testing.targets import Undo


def storage(target: Any) -> FileSystem:
    on: FileSystem = target.sink()._file_system
    return on


def staged_file(handle: Handle) -> OwnPath:
    return OwnPath(staging_of(handle["target"]), f"{handle['txn']}/data/{handle['files'][0]['staged']}")


def write(target: Any, path: OwnPath, text: str) -> Undo:
    """Write a file, also in place of another one; to undo it is to remove it."""
    on = storage(target)
    on.remove(path)
    above = path.path.rpartition("/")[0]
    if not on.exists(path.root):
        on.make_folder(path.root, path.root.rpartition("/")[0])
    if above != path.root:
        on.make_folder(above, path.root)
    on.write(path.path, text)
    return lambda: on.remove(path)


def remove_file(target: Any, handle: Handle, txn: Transaction) -> None:
    storage(target).remove(staged_file(handle))


def empty_file(target: Any, handle: Handle, txn: Transaction) -> None:
    write(target, staged_file(handle), "")


def replace_file(target: Any, handle: Handle, txn: Transaction) -> None:
    """By another one of the same size."""
    size = storage(target).find_size(staged_file(handle).path) or 0
    write(target, staged_file(handle), "x" * size)


def remove_transaction(target: Any, handle: Handle, txn: Transaction) -> None:
    storage(target).delete(OwnPath(staging_of(handle["target"]), txn.name))


def take_name(target: Any, handle: Handle, txn: Transaction) -> Undo:
    return write(target, OwnPath(handle["target"], handle["files"][0]["final"]), "of another")


def take_manifest(target: Any, handle: Handle, txn: Transaction) -> Undo:
    return write(target, OwnPath(handle["target"], handle["manifest"]), "of another")


def remove_last_manifest(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """As in a target that was restored from an older copy."""
    on, path = storage(target), OwnPath(handle["target"], manifest_path(first_of(txn)))
    text = on.read(path.path)
    on.remove(path)
    return lambda: on.write(path.path, text)


def change_last_manifest(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """As in another target, to which a checkpoint of the same numbers was published."""
    on, path = storage(target), OwnPath(handle["target"], manifest_path(first_of(txn)))
    text = on.read(path.path)
    write(target, path, text.replace('"rows": 1', '"rows": 2'))

    def undo() -> None:
        write(target, path, text)

    return undo


def first_of(txn: Transaction) -> Transaction:
    """The transaction that the suite has published before."""
    return Transaction(txn.state_id, txn.pipeline, txn.sink, 1, 1, txn.nonce)


def end_uploads(target: Any, handle: Handle, txn: Transaction) -> None:
    """As a rule of the bucket does after a week. The commit begins others."""
    if not handle["target"].startswith("s3://"):
        pytest.skip("there are no uploads")
    storage(target).end_uploads(handle["target"], "")


FILE_BREAKS = (
    Break("staged file removed", remove_file, "again", first=True),
    Break("staged file emptied", empty_file, "again", first=True),
    Break("staged file replaced", replace_file, "again", first=True),
    Break("staged folder removed", remove_transaction, "again", first=True),
    Break("final name taken", take_name, "action", first=True),
    Break("manifest's name taken", take_manifest, "action", first=True),
    Break("last manifest removed", remove_last_manifest, "action"),
    Break("last manifest changed", change_last_manifest, "action"),
    Break("uploads ended", end_uploads, "passes", first=True),
)
