"""What can change between stage and commit of a state sink, on a disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.testing.contract import Break
from onceonly.testing.targets import Undo


def run_files(target: Any, txn: Transaction) -> list[Path]:
    return sorted(Path(target.folder, txn.name).glob("*/*.parquet"))


def remove_file(target: Any, handle: Handle, txn: Transaction) -> None:
    run_files(target, txn)[0].unlink()


def truncate_file(target: Any, handle: Handle, txn: Transaction) -> None:
    file = run_files(target, txn)[0]
    file.write_bytes(file.read_bytes()[:-5])


def remove_transaction(target: Any, handle: Handle, txn: Transaction) -> None:
    shutil.rmtree(Path(target.folder, txn.name))


def move_last_run(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """As in a folder that was restored from an older copy."""
    [run] = Path(target.folder).glob(f"{txn.prefix}-1-1-*")
    return move(run, f"{target.folder}-away")


def move_root(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """As on a volume that is not mounted."""
    return move(Path(target.folder), f"{target.folder}-away")


def move(folder: Path, away: str) -> Undo:
    shutil.move(folder, away)

    def undo() -> None:
        shutil.move(away, folder)

    return undo


STATE_BREAKS = (
    Break("staged file removed", remove_file, "again", first=True),
    Break("staged file truncated", truncate_file, "again", first=True),
    Break("staged folder removed", remove_transaction, "again"),
    Break("last run removed", move_last_run, "action"),
    Break("volume not mounted", move_root, "action", first=True),
)
