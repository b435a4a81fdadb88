"""What can change between stage and commit of an Iceberg sink, and what may become of what it has published."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import iceberg_deletes
from iceberg_tables import TABLE, create_table
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table import Transaction as TableTransaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import StringType

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.testing.contract import Break, Damage
from onceonly.testing.targets import Undo


def data_folder(target: Any) -> Path:
    path: Path = target.path_of(target.table().location())
    return path / "data"


def staged_file(target: Any, txn: Transaction) -> Path:
    return next((data_folder(target) / txn.name).rglob("*.parquet"))


def staged_uri(target: Any, txn: Transaction) -> str:
    path = staged_file(target, txn).relative_to(data_folder(target))
    return f"{target.table().location()}/data/{path}"


def remove_file(target: Any, handle: Handle, txn: Transaction) -> None:
    staged_file(target, txn).unlink()


def cut_file(target: Any, handle: Handle, txn: Transaction) -> None:
    staged_file(target, txn).write_bytes(b"PAR1")


def garble_file(target: Any, handle: Handle, txn: Transaction) -> None:
    """Other bytes, as many."""
    path = staged_file(target, txn)
    path.write_bytes(b"\0" * path.stat().st_size)


def remove_list(target: Any, handle: Handle, txn: Transaction) -> None:
    (data_folder(target) / "onceonly-staged" / f"{txn.name}.json").unlink()


def partition_anew(target: Any, handle: Handle, txn: Transaction) -> None:
    with target.table().update_spec() as update:
        update.add_identity("n")


def add_column(target: Any, handle: Handle, txn: Transaction) -> None:
    with target.table().update_schema() as update:
        update.add_column("remark", StringType())


def drop_table(target: Any, handle: Handle, txn: Transaction) -> Undo:
    location = target.table().metadata_location
    catalog = target.catalog()
    catalog.drop_table(TABLE)

    def register() -> None:
        catalog.register_table(TABLE, location)

    return register


def replace_table(target: Any, handle: Handle, txn: Transaction) -> Undo:
    register = drop_table(target, handle, txn)
    create_table(target.folder, catalog_properties=target.catalog_properties())

    def bring_back() -> None:
        target.catalog().drop_table(TABLE)
        register()

    return bring_back


def roll_back(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """The branch goes back to before its last snapshot, and the properties stay."""
    head = target.table().metadata.snapshot_by_name(target.branch)
    _set_branch(target, head.parent_snapshot_id)
    return lambda: _set_branch(target, head.snapshot_id)


def _set_branch(target: Any, snapshot_id: int | None) -> None:
    table = target.table()
    if snapshot_id is None:
        table.manage_snapshots().remove_branch(target.branch).commit()
        return
    with table.transaction() as transaction:
        transaction._apply(*transaction._set_ref_snapshot(snapshot_id, target.branch, "branch"))


def restore_older_metadata(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """The catalog was restored from a copy of before the last publication."""
    table = target.table()
    now, before = table.metadata_location, table.metadata.metadata_log[-1].metadata_file
    catalog = target.catalog()
    catalog.drop_table(TABLE)
    catalog.register_table(TABLE, before)

    def bring_back() -> None:
        catalog.drop_table(TABLE)
        catalog.register_table(TABLE, now)

    return bring_back


def unset_evidence(target: Any, handle: Handle, txn: Transaction) -> Undo:
    table = target.table()
    names = {name: text for name, text in table.properties.items() if name.startswith("onceonly.")}
    with table.transaction() as transaction:
        transaction.remove_properties(*names)

    def set_again() -> None:
        with target.table().transaction() as transaction:
            transaction.set_properties(names)

    return set_again


def append_by_another(target: Any, handle: Handle, txn: Transaction) -> None:
    """Another writer commits to the branch."""
    rows = target.table().scan().to_arrow().slice(0, 0)
    target.table().append(rows, branch=target.branch)


def lose_catalog(target: Any, handle: Handle, txn: Transaction) -> Undo:
    place = Path(target.folder) / "catalog.db"
    aside = place.with_suffix(".aside")
    place.rename(aside)
    place.mkdir()

    def bring_back() -> None:
        shutil.rmtree(place)
        aside.rename(place)

    return bring_back


# ---- what may become of what was published


class Rewrite(_OverwriteFiles):
    """Says that it is another operation: PyIceberg itself rewrites no files."""

    told: Operation

    def _summary(self, *arguments: Any) -> Summary:
        summary = super()._summary(*arguments)
        return Summary(operation=self.told, **summary.additional_properties)


def rewrite(target: Any, operation: Operation, rows: int | None = None) -> None:
    """Put one file in place of those of the second publication, as a rewrite or an overwrite does."""
    table: Table = target.table()
    tasks = list(table.scan(snapshot_id=table.metadata.snapshot_by_name(target.branch).snapshot_id).plan_files())
    content = table.scan(snapshot_id=table.metadata.snapshot_by_name(target.branch).snapshot_id).to_arrow()
    kept = content if rows is None else content.slice(0, rows)
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    transaction = TableTransaction(table)
    producer = Rewrite(Operation.OVERWRITE, transaction, table.io, branch=target.branch)
    producer.told = operation
    old: list[DataFile] = [task.file for task in tasks]
    for file in old:
        producer.delete_data_file(file)
    for file in _dataframe_to_data_files(table.metadata, kept, table.io):
        producer.append_data_file(file)
    producer.commit()
    transaction.commit_transaction()


def compact(target: Any, handle: Handle, txn: Transaction) -> None:
    rewrite(target, Operation.REPLACE)


def compact_badly(target: Any, handle: Handle, txn: Transaction) -> None:
    rewrite(target, Operation.REPLACE, rows=3)


def overwrite(target: Any, handle: Handle, txn: Transaction) -> None:
    rewrite(target, Operation.OVERWRITE)


def delete_rows(target: Any, handle: Handle, txn: Transaction) -> None:
    target.table().delete("n = 3", branch=target.branch)


def delete_file_of_rows(target: Any, handle: Handle, txn: Transaction) -> None:
    target.table().delete("n >= 3 and n <= 4", branch=target.branch)


def delete_by_position(target: Any, handle: Handle, txn: Transaction) -> None:
    iceberg_deletes.delete_by_position(target.table(), target.branch, staged_uri(target, txn), 0)


def delete_by_value(target: Any, handle: Handle, txn: Transaction) -> None:
    iceberg_deletes.delete_by_value(target.table(), target.branch, "n", 3)


def add_files_again(target: Any, handle: Handle, txn: Transaction) -> None:
    """The rows of the second publication once more."""
    path = staged_uri(target, txn)
    target.table().add_files([path], check_duplicate_files=False, branch=target.branch)


def expire(target: Any, handle: Handle, txn: Transaction) -> None:
    """All snapshots but the head."""
    table: Table = target.table()
    head = table.metadata.snapshot_by_name(target.branch)
    for snapshot in table.metadata.snapshots:
        if head is not None and snapshot.snapshot_id != head.snapshot_id:
            table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
            table = target.table()


ICEBERG_BREAKS = (
    Break("staged file removed", remove_file, "again", first=True),
    Break("staged file cut", cut_file, "again", first=True),
    Break("list of files removed", remove_list, "again", first=True),
    Break("partitioned anew", partition_anew, "again", first=True),
    Break("column added", add_column, "passes", first=True),
    Break("another writer was first", append_by_another, "passes"),
    Break("data files rewritten", compact, "passes"),
    Break("table dropped", drop_table, "action", first=True),
    Break("another table in its place", replace_table, "action", first=True),
    Break("branch rolled back", roll_back, "action"),
    Break("catalog restored from a copy", restore_older_metadata, "action"),
    Break("evidence unset", unset_evidence, "action"),
    Break("catalog does not answer", lose_catalog, "no answer", first=True),
)
ICEBERG_DAMAGES = (
    Damage("file removed", remove_file, ("file-missing",)),
    Damage("file cut", cut_file, ("file-size",)),
    Damage("file garbled", garble_file, ("file-unreadable",), deep=True),
    Damage("row deleted", delete_rows, ("rows-deleted",)),
    Damage("rows of a file deleted", delete_file_of_rows, ("rows-deleted",)),
    Damage("row deleted by its position", delete_by_position, ("rows-deleted",)),
    Damage("rows deleted by a value", delete_by_value, ("rows-in-doubt",), unknown=True),
    Damage("overwritten", overwrite, ("rows-changed",)),
    Damage("compacted", compact, heals=True),
    Damage("compacted with a loss", compact_badly, ("rows-lost-in-rewrite",)),
    Damage("snapshots expired", expire, heals=True),
    Damage("table dropped", drop_table, ("target-missing",)),
    Damage("another table in its place", replace_table, ("target-replaced",)),
    Damage("branch rolled back", roll_back, ("target-went-back",)),
    Damage("catalog restored", restore_older_metadata, ("target-went-back", "evidence-behind")),
    Damage("evidence unset", unset_evidence, ("evidence-behind",)),
    Damage("files added again", add_files_again, ("rows-twice",)),
)
