"""A Delta sink that stages through deltalake, so that tests of its commits need no Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.delta import log_summary, table_files, table_snapshot, txn_identifiers
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink, Merge
from onceonly.sinks.delta import changes, in_process_writer, staged_table
from onceonly.sinks.delta.handle import store_merge
from onceonly.sinks.delta.sink import DeltaWriter

STATE = "5e1f" * 8


def no_spark() -> Any:
    raise AssertionError("this needs no Spark")


def append(uri: str, rows: pa.Table) -> None:
    """Write rows, by delta-rs, as the next version of a table that is being staged."""
    with in_process_writer.open_locally(uri) as table:
        write_deltalake(table, rows, mode="append", commit_properties=in_process_writer.SINGLE_TRY)


class LightDelta(DeltaWriter):
    """Rows are numbers, in column n."""

    def __init__(self, uri: Path, name: str = "lake", **options: Any) -> None:
        super().__init__(DeltaSink(name, str(uri), **options), str(uri), no_spark)

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        return pa.table({"n": pa.array(list(rows), pa.int64())})

    def stage(self, txn: Transaction, rows: Any) -> Handle:
        data, column = self.rows(txn, rows), self.config.checkpoint_column
        if column:
            data = data.append_column(column, pa.array([txn.name] * len(data), pa.string()))
        target, self._newest_look = self._newest_look or log_summary.open_snapshot(self.uri), None
        if target is None:
            target = DeltaTable.create(
                self.uri, Schema.from_arrow(data.schema), partition_by=list(self.config.partition_by)
            )
        folder = txn_identifiers.STAGED_PREFIX + txn.name
        staged = staged_table.create(target, folder, True, [], {})
        append(staged, data)
        adds = staged_table.read_adds(self.uri, folder, 1)
        changes.check_staged(self.config, target, adds)
        count, size = table_files.count_rows_and_bytes(adds, staged)
        return {
            "kind": "delta",
            "uri": self.uri,
            "table_id": target.metadata().id,
            "fingerprint": table_snapshot.fingerprint(target),
            "added": [],
            "app_id": txn.app_id,
            "folder": folder,
            "publish": "delta-rs",
            **{"files": len(adds), "rows": count, "bytes": size},
            **({"where": self.config.replace} if self.config.replace else {}),
            **({"merge": store_merge(self.config.merge)} if self.config.merge else {}),
            **({"checkpoint_column": column} if column else {}),
        }

    def numbers(self) -> list[int]:
        return sorted(DeltaTable(self.uri).to_pyarrow_table()["n"].to_pylist())


class LightReplace(LightDelta):
    """Rows are numbers, each in a partition of its own; they replace what is there."""

    def __init__(self, uri: Path, name: str = "lake") -> None:
        super().__init__(uri, name, partition_by=["day"], replace="partitions")

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        return super().rows(txn, rows).append_column("day", pa.array([str(number) for number in rows]))


class LightMerge(LightDelta):
    """Rows are keys, in column n, or (key, order, text, day); by default the order is the epoch."""

    def __init__(self, uri: Path, name: str = "lake", **options: Any) -> None:
        super().__init__(uri, name, **{"merge": Merge(keys=["n"], order_by=["at"]), **options})

    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        whole = [row if isinstance(row, tuple) else (row, txn.epoch, "", "") for row in rows]
        columns = list(zip(*whole, strict=True)) if whole else [(), (), (), ()]
        kinds = {"n": pa.int64(), "at": pa.int64(), "text": pa.string(), "day": pa.string()}
        data = {name: pa.array(column, kind) for (name, kind), column in zip(kinds.items(), columns, strict=True)}
        return pa.table(data)

    def content(self) -> dict[int, tuple[int, str]]:
        """Key -> (order, text)."""
        rows = DeltaTable(self.uri).to_pyarrow_table().to_pylist()
        found = {row["n"]: (row["at"], row["text"]) for row in rows}
        assert len(found) == len(rows), "a key is there more than once"
        return found


class LightParts:
    """The parts of a pipeline whose sinks are such tables; everything else as `rest` has it."""

    def __init__(self, folder: Path, rest: Any) -> None:
        self.folder, self._rest = folder, rest

    def sink(self, pipeline: Pipeline, name: str) -> LightDelta:
        return LightDelta(self.folder / name, name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rest, name)


def transaction(epoch: int = 1, attempt: int = 1, state: str = STATE) -> Transaction:
    return Transaction(state, "flights", "lake", epoch, attempt, f"{epoch:04x}{attempt:04x}0000")
