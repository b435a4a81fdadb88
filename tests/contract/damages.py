"""What may become of a target after rows were published to it, by sink: for the suite's `damages`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from contract.delta_breaks import folder_of, uri_of
from contract.fake_breaks import published_file
from deltalake import DeltaTable, write_deltalake

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta.log_files import entry_path
from onceonly.sinks.state.runs import DONE
from onceonly.testing.contract import Damage

# ---- the fake sink


def change_entries(target: Any, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    content = json.loads(published_file(target).read_text())
    published_file(target).write_text(json.dumps({**content, "entries": change(content["entries"])}))


def remove_entry(target: Any, handle: Handle, txn: Transaction) -> None:
    change_entries(target, lambda entries: [entry for entry in entries if entry["txn"] != txn.name])


def double_entry(target: Any, handle: Handle, txn: Transaction) -> None:
    change_entries(target, lambda entries: [*entries, *(entry for entry in entries if entry["txn"] == txn.name)])


def remove_a_row(target: Any, handle: Handle, txn: Transaction) -> None:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "rows": entry["rows"][1:]} if entry["txn"] == txn.name else entry for entry in entries]

    change_entries(target, change)


def change_decision(target: Any, handle: Handle, txn: Transaction) -> None:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "decision": 77} if entry["txn"] == txn.name else entry for entry in entries]

    change_entries(target, change)


def change_name(target: Any, handle: Handle, txn: Transaction) -> None:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**entry, "txn": "another"} if entry["txn"] == txn.name else entry for entry in entries]

    change_entries(target, change)


FAKE_DAMAGES = (
    Damage("entry removed", remove_entry, ("commit-missing",)),
    Damage("entry doubled", double_entry, ("rows-twice",)),
    Damage("row removed", remove_a_row, ("row-count",)),
    Damage("decision changed", change_decision, ("record-differs",)),
    Damage("transaction renamed", change_name, ("commit-unrecorded",)),
)

# ---- Delta


def published_files(target: Any, txn: Transaction) -> list[Path]:
    return sorted((folder_of(target) / f"staged-{txn.name}").glob("*.parquet"))


def remove_table_file(target: Any, handle: Handle, txn: Transaction) -> None:
    published_files(target, txn)[0].unlink()


def truncate_table_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = published_files(target, txn)[0]
    file.write_bytes(file.read_bytes()[:-9])


def corrupt_table_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = published_files(target, txn)[0]
    content = bytearray(file.read_bytes())
    content[4:40] = bytes(36)
    file.write_bytes(bytes(content))


def delete_a_row(target: Any, handle: Handle, txn: Transaction) -> None:
    DeltaTable(uri_of(target)).delete("n = 3")


def update_a_row(target: Any, handle: Handle, txn: Transaction) -> None:
    DeltaTable(uri_of(target)).update(updates={"n": "33"}, predicate="n = 3")


def restore_table(target: Any, handle: Handle, txn: Transaction) -> None:
    DeltaTable(uri_of(target)).restore(1)


def overwrite_table(target: Any, handle: Handle, txn: Transaction) -> None:
    rows = DeltaTable(uri_of(target)).to_pyarrow_table().slice(0, 1)
    write_deltalake(uri_of(target), rows, mode="overwrite")


def drop_table(target: Any, handle: Handle, txn: Transaction) -> None:
    shutil.rmtree(folder_of(target))


def cut_log(target: Any, handle: Handle, txn: Transaction) -> None:
    (folder_of(target) / entry_path(DeltaTable(uri_of(target)).version())).unlink()


def rename_application(target: Any, handle: Handle, txn: Transaction) -> None:
    entry = folder_of(target) / entry_path(2)
    entry.write_text(entry.read_text().replace(txn.app_id, "onceonly/nobody/flights/lake"))


def copy_table_file(target: Any, handle: Handle, txn: Transaction) -> None:
    table, folder = DeltaTable(uri_of(target)), folder_of(target)
    shutil.copy(published_files(target, txn)[0], folder / "part-copy.parquet")
    for line in (folder / entry_path(2)).read_text().splitlines():
        add = json.loads(line).get("add")
        if add:
            action = json.dumps({"add": {**add, "path": "part-copy.parquet"}})
            (folder / entry_path(table.version() + 1)).write_text(f"{action}\n")
            return


def optimize_table(target: Any, handle: Handle, txn: Transaction) -> None:
    DeltaTable(uri_of(target)).optimize.compact()


def append_by_others(target: Any, handle: Handle, txn: Transaction) -> None:
    rows: pa.Table = DeltaTable(uri_of(target)).to_pyarrow_table().slice(0, 1)
    for number, column in enumerate(rows.schema):
        if column.name != "n":
            rows = rows.set_column(number, column, pa.nulls(1, column.type))
    write_deltalake(uri_of(target), rows, mode="append")


def expire_log(target: Any, handle: Handle, txn: Transaction) -> None:
    optimize_table(target, handle, txn)
    table = DeltaTable(uri_of(target))
    table.create_checkpoint()
    for version in range(table.version()):
        (folder_of(target) / entry_path(version)).unlink()


MERGE_DAMAGES = (
    Damage("row deleted", delete_a_row, ("rows-deleted",)),
    Damage("row updated", update_a_row, ("rows-changed",)),
    Damage("table restored", restore_table, ("table-restored",)),
    Damage("table overwritten", overwrite_table, ("rows-overwritten",)),
    Damage("table dropped", drop_table, ("target-missing",)),
    Damage("log cut off", cut_log, ("target-went-back",)),
    Damage("application renamed", rename_application, ("commit-changed",)),
    Damage("rows of others appended", append_by_others, heals=True),
    Damage("published rows optimized", optimize_table, heals=True),
    Damage("log expired", expire_log, ("history-gone",), unknown=True),
)
DELTA_DAMAGES = (
    *MERGE_DAMAGES,
    Damage("published file removed", remove_table_file, ("file-missing",)),
    Damage("published file truncated", truncate_table_file, ("file-size",)),
    Damage("published file corrupted", corrupt_table_file, ("file-unreadable",), deep=True),
    Damage("published file copied", copy_table_file, ("rows-twice",)),
)

# ---- files


def moved_files(target: Any, txn: Transaction) -> list[Path]:
    return sorted(Path(target.folder).glob(f"{txn.pipeline}-{txn.sink}-{txn.epoch:06}-*"))


def manifest_of(target: Any, txn: Transaction) -> Path:
    (manifest,) = Path(target.folder).glob(f"_onceonly/{txn.pipeline}-{txn.sink}-{txn.epoch:06}-*.manifest")
    return manifest


def remove_moved_file(target: Any, handle: Handle, txn: Transaction) -> None:
    moved_files(target, txn)[0].unlink()


def truncate_moved_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = moved_files(target, txn)[0]
    file.write_bytes(file.read_bytes()[:-2])


def change_moved_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = moved_files(target, txn)[0]
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(bytes(content))


def copy_moved_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = moved_files(target, txn)[0]
    shutil.copy(file, file.with_name(f"copy{file.suffix}"))


def add_file_with_own_name(target: Any, handle: Handle, txn: Transaction) -> None:
    file = moved_files(target, txn)[0]
    shutil.copy(file, file.with_name(file.name.replace("-00000.", "-00099.")))


def remove_manifest(target: Any, handle: Handle, txn: Transaction) -> None:
    manifest_of(target, txn).unlink()


def edit_manifest(target: Any, handle: Handle, txn: Transaction) -> None:
    manifest = manifest_of(target, txn)
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "rows": 99}))


def remove_target_folder(target: Any, handle: Handle, txn: Transaction) -> None:
    shutil.rmtree(target.folder)


def add_foreign_file(target: Any, handle: Handle, txn: Transaction) -> None:
    Path(target.folder, "notes.txt").write_text("of somebody else")


FILE_DAMAGES = (
    Damage("published file removed", remove_moved_file, ("file-missing",)),
    Damage("published file truncated", truncate_moved_file, ("file-size",)),
    Damage("published file changed", change_moved_file, ("file-changed",), deep=True),
    Damage("published file copied", copy_moved_file, ("rows-twice",)),
    Damage("file with a name of ours added", add_file_with_own_name, ("file-unpublished",)),
    Damage("manifest removed", remove_manifest, ("commit-missing",)),
    Damage("manifest edited", edit_manifest, ("commit-changed",)),
    Damage("folder removed", remove_target_folder, ("target-missing",)),
    Damage("file of somebody else added", add_foreign_file, heals=True),
)

# ---- state


def remove_run_file(target: Any, handle: Handle, txn: Transaction) -> None:
    sorted(Path(target.folder, txn.name).glob("*/*.parquet"))[0].unlink()


def truncate_run_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = sorted(Path(target.folder, txn.name).glob("*/*.parquet"))[0]
    file.write_bytes(file.read_bytes()[:-2])


def remove_mark(target: Any, handle: Handle, txn: Transaction) -> None:
    Path(target.folder, txn.name, DONE).unlink()


STATE_DAMAGES = (
    Damage("file of a run removed", remove_run_file, ("file-missing",)),
    Damage("file of a run truncated", truncate_run_file, ("file-changed",)),
    Damage("mark removed", remove_mark, ("commit-missing",)),
    Damage("folder removed", remove_target_folder, ("target-missing",)),
)
