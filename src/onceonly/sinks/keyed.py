"""Application state: rows by key, as runs of changes.

Each checkpoint adds a run: one folder of Parquet with the rows it changed. Its handle lists the runs that make up the
state, oldest first, so the state table says which state a checkpoint left, and nothing has to be moved at commit. Runs
are merged when they are many, the small ones with the new one, so that what is written follows the number of changed
keys (times the logarithm of the number held). The first run holds whole rows only; in the others `_deleted` marks keys
that are gone. Source: O'Neil et al., The Log-Structured Merge-Tree (1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from onceonly.checkpoint import Handle, Outcome, Transaction
from onceonly.errors import CannotPublish, InvalidPipeline
from onceonly.pipeline import StateSink
from onceonly.protocols import Receipts, Sink
from onceonly.sinks import sparkfiles
from onceonly.sinks.folders import Folders, file_system
from onceonly.sinks.localfiles import LocalFiles
from onceonly.statestore import local_path

RUNS = 8  # of which the state is made before the youngest are merged
KEPT = 100  # checkpoints for which a run that was merged away is kept: readers of an older state may be at work
DONE = "_published"  # marks the folder of a transaction that was published


@dataclass(frozen=True)
class Changes:
    """What the transform wants changed, and the state that it was given."""

    rows: Any
    before: Handle | None


class StateWriter(Sink):
    """The live side of a `StateSink`.

    Args:
        uri: its folder's absolute path or URI.
    """

    def __init__(self, config: StateSink, uri: str) -> None:
        self.name, self.config, self._folders = config.name, config, Folders(uri)

    def check(self) -> list[str]:
        return [f"{self.name}: keeps {self.config.schema} by {', '.join(self.config.key)} in {self._folders.uri}"]

    def read(self, spark: Any, before: Handle | None) -> Any:
        """The state that `before` left, as a DataFrame of the schema; empty for None."""
        self._check_same(before)
        runs = before["runs"] if before else []
        state = self._merged(spark, runs).where("NOT _deleted").drop("_deleted", "_epoch")
        for name, about in _metadata(before).items():
            state = state.withMetadata(name, about)
        return state

    def stage(self, txn: Transaction, rows: Changes) -> Handle:
        changes, before = self._changes(rows.rows, txn.epoch), rows.before
        runs = list(before["runs"]) if before else []
        run = self._write(changes, self._folders.path(f"{txn.name}/changes"))
        self._check_keys(changes.sparkSession, run)
        merged = runs[len(runs) - self._to_merge(runs, run["rows"]) :]
        kept = runs[: len(runs) - len(merged)]
        if merged:
            newest = self._merged(changes.sparkSession, [*merged, run])
            whole = newest if kept else newest.where("NOT _deleted")
            both = self._write(whole, self._folders.path(f"{txn.name}/merged"))
            self._folders.delete(f"{txn.name}/changes")  # they are in it
        retired = [*(before["retired"] if before else []), *({**old, "since": txn.epoch} for old in merged)]
        return {
            "kind": "state",
            "txn": txn.name,
            "schema": self.config.schema,
            "key": list(self.config.key),
            "metadata": _metadata(before) | {field.name: field.metadata for field in changes.schema if field.metadata},
            "runs": [*kept, both if merged else run],
            "retired": [old for old in retired if old["since"] > txn.epoch - KEPT],
            "forget": [old["folder"] for old in retired if old["since"] <= txn.epoch - KEPT],
            "rows": run["rows"],
        }

    def commit(self, handle: Handle, decision: int, receipts: Receipts) -> Outcome:
        """The recorded handle is the publication; here only what is left over is told from what counts."""
        if handle["txn"] is None:  # a rewind: nothing was staged for it
            self._forget(handle)
            return Outcome(detail={"rows": 0})
        if not self._folders.has(handle["txn"]):
            raise CannotPublish(
                f"sink '{self.name}': the state that was staged is gone.",
                f"{self._folders.path(handle['txn'])} is missing.",
                f"Restore it and recover; --give-up {self.name} would leave the pipeline without state.",
            )
        already = self._folders.has(f"{handle['txn']}/{DONE}")
        if not already:
            files, path = file_system(self._folders.path(f"{handle['txn']}/{DONE}"))
            files.open_output_stream(path).close()
        self._forget(handle)
        return Outcome(already=already, detail={"rows": handle["rows"]})

    def _forget(self, handle: Handle) -> None:
        """Each transaction's folder holds one run."""
        for folder in handle["forget"]:
            self._folders.delete(self._name(folder).split("/")[0])

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        """The state as `held` left it; what was written since is deleted."""
        runs = list(held["runs"]) if held else []
        if gone := [run["folder"] for run in runs if not self._folders.has(self._name(run["folder"]))]:
            raise InvalidPipeline(
                f"sink '{self.name}': the state of then is gone.",
                f"{gone[0]} is missing: what was merged away is kept for {KEPT} checkpoints.",
                "Go back less far. Nothing was changed.",
            )
        same = (
            {name: held[name] for name in ("schema", "key", "retired")} | {"metadata": _metadata(held)} if held else {}
        )
        ours = {"schema": self.config.schema, "key": list(self.config.key), "retired": []}
        forget = [self._folders.path(old["txn"]) for old in olds if old["txn"]]
        return {"kind": "state", "txn": None, **ours, **same, "runs": runs, "forget": forget, "rows": 0}

    def _name(self, folder: str) -> str:
        return folder.removeprefix(f"{self._folders.uri}/")

    def abort(self, txn: Transaction, handle: Handle | None) -> None:
        if not self._folders.has(f"{txn.name}/{DONE}"):
            self._folders.delete(txn.name)

    def leftovers(self, prefix: str) -> list[Transaction]:
        return [txn for txn in self._folders.holding(prefix) if not self._folders.has(f"{txn.name}/{DONE}")]

    # ---- how

    @property
    def _kept(self) -> str:
        return f"{self.config.schema}, _deleted BOOLEAN, _epoch BIGINT"

    def _merged(self, spark: Any, runs: list[Mapping[str, Any]]) -> Any:
        """One row per key, the youngest; deleted ones are still marked."""
        from pyspark.sql import functions as F

        if not runs:
            return spark.createDataFrame([], self._kept)
        first, *later = (spark.read.schema(self._kept).parquet(sparkfiles.uri(run["folder"])) for run in runs)
        if not later:
            return first
        key, every = list(self.config.key), reduce(lambda one, other: one.unionByName(other), later)
        youngest = every.groupBy(*key).agg(F.max_by(F.struct(*every.columns), "_epoch").alias("row")).select("row.*")
        return first.join(youngest.select(*key), key, "left_anti").select(*every.columns).unionByName(youngest)

    def _changes(self, rows: Any, epoch: int) -> Any:
        """With the columns of a run, in their order."""
        from pyspark.sql import functions as F

        wanted = rows.sparkSession.createDataFrame([], self.config.schema).schema
        have = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        problems = [
            f"the schema has no '{name}', which is in the key" for name in self.config.key if name not in wanted.names
        ]
        for field in wanted.fields:
            kind = field.dataType.simpleString()
            if have.get(field.name) != kind:
                problems.append(f"'{field.name}' is {have.get(field.name, 'missing')}, the state has {kind}")
        problems += [f"'{name}' is not in the state" for name in have if name not in [*wanted.names, "deleted"]]
        if have.get("deleted", "boolean") != "boolean":
            problems.append(f"'deleted' is {have['deleted']}, not boolean")
        if problems:
            raise InvalidPipeline(
                f"sink '{self.name}': the changes do not fit the state.",
                f"Columns: {'; '.join(problems)}.",
                "Change what the transform returns (select, cast), or the schema. Nothing was staged.",
            )
        deleted = F.coalesce(F.col("deleted"), F.lit(False)) if "deleted" in have else F.lit(False)
        return rows.select(*wanted.names, deleted.alias("_deleted"), F.lit(epoch).cast("bigint").alias("_epoch"))

    def _check_keys(self, spark: Any, run: Mapping[str, Any]) -> None:
        """Asked of what was written: the transform's work is not done twice."""
        from pyspark.sql import functions as F

        key = list(self.config.key)
        written = spark.read.schema(self._kept).parquet(sparkfiles.uri(run["folder"])).groupBy(*key).count()
        null = reduce(lambda one, other: one | other, (F.col(name).isNull() for name in key))
        wrong = written.where(null | (F.col("count") > 1)).limit(3).collect()
        if wrong:
            shown = "; ".join(f"{[row[name] for name in key]} {row['count']} times" for row in wrong)
            raise InvalidPipeline(
                f"sink '{self.name}': the changes name a key twice, or none.",
                f"{', '.join(key)}: {shown}.",
                "Return one row per key, and no null in it. Nothing was published.",
            )

    def _check_same(self, before: Handle | None) -> None:
        if before and (before["schema"], before["key"]) != (self.config.schema, list(self.config.key)):
            raise InvalidPipeline(
                f"sink '{self.name}': the state is kept otherwise.",
                f"As {before['schema']} by {', '.join(before['key'])}; the pipeline now says {self.config.schema} by "
                f"{', '.join(self.config.key)}.",
                "Go back to that, or give the sink a new name, which starts with an empty state. Nothing was staged.",
            )

    def _to_merge(self, runs: list[Mapping[str, Any]], new: int) -> int:
        """How many of the youngest runs go into one with the new rows: those that are not much larger than it all."""
        if len(runs) < RUNS:
            return 0
        number, rows = 0, new
        while number < len(runs) and (number < RUNS // 2 or runs[-1 - number]["rows"] <= 2 * rows):
            number, rows = number + 1, rows + runs[-1 - number]["rows"]
        return number

    def _write(self, rows: Any, folder: str) -> dict[str, Any]:
        count = sparkfiles.write(rows, folder)
        if local := local_path(folder):
            LocalFiles().make_durable(str(local))
        return {"folder": folder, "rows": count}


def _metadata(handle: Handle | None) -> dict[str, Any]:
    """What the transform has said of columns of the state, by Spark's metadata, which the state keeps."""
    return dict(handle.get("metadata", {})) if handle else {}
