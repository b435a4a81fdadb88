"""What can change between stage and commit of the fake sink."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.testing.contract import Break
from onceonly.testing.targets import Undo


def published_file(target: Any) -> Path:
    return Path(target.folder) / "published.json"


def remove_rows(target: Any, handle: Handle, txn: Transaction) -> None:
    (Path(target.folder) / f"{txn.name}.staged.json").unlink()


def truncate_rows(target: Any, handle: Handle, txn: Transaction) -> None:
    staged = Path(target.folder) / f"{txn.name}.staged.json"
    staged.write_text(staged.read_text()[:-5])


def remove_one_row(target: Any, handle: Handle, txn: Transaction) -> None:
    staged = Path(target.folder) / f"{txn.name}.staged.json"
    staged.write_text(json.dumps(json.loads(staged.read_text())[:-1]))


def remove_target(target: Any, handle: Handle, txn: Transaction) -> Undo:
    content = published_file(target).read_bytes()
    published_file(target).unlink()
    return lambda: restore(target, content)


def restore(target: Any, content: bytes) -> None:
    published_file(target).write_bytes(content)


def empty_target(target: Any, handle: Handle, txn: Transaction) -> Undo:
    content = published_file(target).read_bytes()
    published_file(target).write_text(json.dumps({"entries": [], "last": {}}))
    return lambda: restore(target, content)


def show_later_decision(target: Any, handle: Handle, txn: Transaction) -> Undo:
    """The state table was restored from an older copy."""
    content = published_file(target).read_bytes()
    shown = json.loads(content)
    shown["last"][txn.app_id] = [9, txn.name.replace(f"-{txn.epoch}-", "-9-")]
    published_file(target).write_text(json.dumps(shown))
    return lambda: restore(target, content)


def stop_answering(target: Any, handle: Handle, txn: Transaction) -> Undo:
    target.sink().fail("rehearse", "before")
    return lambda: None


def ask_for_a_person(target: Any, handle: Handle, txn: Transaction) -> Undo:
    target.sink().fail("rehearse", "action")
    return lambda: None


def age_rows(target: Any, handle: Handle, txn: Transaction) -> None:
    target.sink().fail("rehearse", "copied")


FAKE_BREAKS = (
    Break("staged rows removed", remove_rows, "again", first=True),
    Break("staged rows truncated", truncate_rows, "again", first=True),
    Break("one row missing", remove_one_row, "again"),
    Break("target removed", remove_target, "action"),
    Break("target emptied", empty_target, "action"),
    Break("state table restored", show_later_decision, "action"),
    Break("no connection", stop_answering, "no answer", first=True),
    Break("person needed", ask_for_a_person, "action", first=True),
    Break("rows copied", age_rows, "passes", first=True),
)
