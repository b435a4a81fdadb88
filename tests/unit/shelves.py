"""Targets of every kind that are written without Spark, with what is recorded of them: for tests of `verify`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from unit.lightdelta import LightDelta, transaction
from unit.lightfiles import LightFiles

from onceonly.checkpoint.sink import Sink
from onceonly.checkpoint.verification import Judgement
from onceonly.delta.log_files import entry_path
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.state.runs import describe_files
from onceonly.sinks.state.sink import StateWriter
from onceonly.storage.folders import Folders
from onceonly.testing.ledger import Ledger, list_codes
from onceonly.testing.targets import Committer, Target

Codes = list[tuple[int | None, str]]  # (epoch, code) of findings
TAKEN_BACK: Codes = [(1, "right"), (2, "taken-out"), (3, "taken-out"), (4, "right")]  # after `take_back`


class Shelf(Target):
    """A target whose publications a ledger records. A subclass says how it is published to."""

    def __init__(self, folder: Path, receipts: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(self.sink, Committer(self, str(receipts)))

    def traces(self, txn: Any) -> list[Any]:
        return []

    def wrong(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep))

    def right(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep), Judgement.RIGHT)

    def unknown(self, deep: bool = False) -> Codes:
        return list_codes(self.ledger.verify(deep), Judgement.UNKNOWN)

    def handle_of(self, epoch: int) -> Any:
        (handle,) = [one.handle for one in self.ledger.published if one.epoch == epoch]
        return handle

    def publish(self, epoch: int, *numbers: Any) -> Any:
        raise NotImplementedError

    def remove_from_state(self, epoch: int) -> None:
        self.ledger.published = [one for one in self.ledger.published if one.epoch != epoch]

    def take_back(self) -> None:
        """Publish, as epoch 4, a rewind of three epochs to the first."""
        sink: Any = self.sink()
        back = sink.retraction(transaction(4, attempt=0), [self.handle_of(3), self.handle_of(2)], self.handle_of(1))
        self.ledger.publish(4, json.loads(json.dumps(back)))
        for epoch in (2, 3):
            self.ledger.change(epoch, taken_out_by=4)


class DeltaShelf(Shelf):
    """A table, and what is recorded of it."""

    def __init__(self, folder: Path, receipts: Path, make: Callable[[Path], LightDelta] = LightDelta) -> None:
        super().__init__(folder, receipts)
        self._make = make

    def sink(self) -> Sink:
        return self._make(self.folder)

    def published(self) -> list[int]:
        return self._make(self.folder).numbers()

    def publish(self, epoch: int, *rows: Any, **more: Any) -> Any:
        handle = {**self._make(self.folder).stage(transaction(epoch), rows), **more}
        published = self.ledger.publish(epoch, json.loads(json.dumps(handle)))
        self._make(self.folder).release(transaction(epoch))
        return published

    def replace(self, epoch: int, old: int, *rows: Any) -> None:
        self.publish(epoch, *rows, replaces=self.handle_of(old))
        self.ledger.change(old, taken_out_by=epoch)

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.folder)

    def file_of(self, epoch: int) -> Path:
        (file,) = self.folder.glob(f"staged-*-lake-{epoch}-*/*.parquet")
        return file

    def entry(self, version: int) -> Path:
        return self.folder / entry_path(version)

    def edit_entry(self, version: int, edit: Callable[[list[dict[str, Any]]], Any]) -> None:
        actions = [json.loads(line) for line in self.entry(version).read_text().splitlines()]
        edit(actions)
        self.entry(version).write_text("".join(json.dumps(action) + "\n" for action in actions))

    def append_entry(self, *actions: dict[str, Any]) -> None:
        path = self.entry(self.table.version() + 1)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))

    def add_of(self, epoch: int) -> dict[str, Any]:
        for path in sorted(self.folder.glob("_delta_log/*.json")):
            for line in path.read_text().splitlines():
                add = json.loads(line).get("add")
                if add and f"-lake-{epoch}-" in add["path"]:
                    return dict(add)
        raise AssertionError(f"epoch {epoch} is not in the log")


class FileShelf(Shelf):
    """A folder, and what is recorded of it."""

    def sink(self) -> Sink:
        return LightFiles(self.folder)

    def published(self) -> list[int]:
        return LightFiles(self.folder).values()

    def stage(self, epoch: int, *values: int) -> dict[str, Any]:
        rows = [{"value": value} for value in values]
        return dict(json.loads(json.dumps(LightFiles(self.folder).stage(transaction(epoch), rows))))

    def publish(self, epoch: int, *values: int, **more: Any) -> None:
        self.ledger.publish(epoch, {**self.stage(epoch, *values), **more})
        self.sink().release(transaction(epoch))

    def file_of(self, epoch: int) -> Path:
        (file,) = self.folder.glob(f"flights-lake-{epoch:06}-*.jsonl")
        return file

    def manifest_of(self, epoch: int) -> Path:
        (file,) = self.folder.glob(f"_onceonly/flights-lake-{epoch:06}-*.manifest")
        return file


class StateShelf(Shelf):
    """A state whose runs are written without Spark, and what is recorded of it."""

    def __init__(self, folder: Path, receipts: Path) -> None:
        super().__init__(folder, receipts)
        self.runs = list[dict[str, Any]]()

    def sink(self) -> Sink:
        return StateWriter(StateSink("lake", schema="n INT", key=["n"]), str(self.folder))

    def published(self) -> list[int]:
        return []

    def stage(self, epoch: int, *keys: int, forget: Sequence[str] = ()) -> dict[str, Any]:
        txn = transaction(epoch)
        name = f"{txn.name}/changes"
        (self.folder / name).mkdir(parents=True)
        pq.write_table(pa.table({"n": list(keys)}), self.folder / name / "part-0.parquet")
        run = {"folder": name, "rows": len(keys), **describe_files(Folders(str(self.folder)), name)}
        kept = [run for run in self.runs if run["folder"] not in forget]
        return {
            **{"kind": "state", "txn": txn.name, "schema": "n INT", "key": ["n"], "rows": len(keys)},
            **{"runs": [*kept, run], "retired": [], "forget": list(forget)},
        }

    def publish(self, epoch: int, *keys: int, forget: Sequence[str] = ()) -> None:
        handle = self.stage(epoch, *keys, forget=forget)
        self.ledger.publish(epoch, handle)
        self.runs = handle["runs"]

    def folder_of(self, epoch: int) -> Path:
        return self.folder / transaction(epoch).name

    def run_of(self, epoch: int) -> Path:
        return self.folder_of(epoch) / "changes" / "part-0.parquet"


def parametrize(damages: Sequence[tuple[Callable[..., None], Codes]]) -> dict[str, Any]:
    """Return the arguments of `pytest.mark.parametrize` for damages and what has to be found of each."""
    ids = [damage.__name__ for damage, _ in damages]
    return {"argnames": ("damage", "expected"), "argvalues": damages, "ids": ids}
