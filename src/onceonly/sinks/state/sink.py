"""Application state: rows by key, stored as runs of changes.

Each checkpoint adds a run: a folder of Parquet files with the rows that it changed. Its handle lists the runs that make
up the state, oldest first. So the state table determines the state after a checkpoint, and commit moves nothing. If
there are many runs, the small ones are merged with the new one. So the amount written is proportional to the number of
changed keys (times the logarithm of the number of keys). The first run has no deleted rows; in the others, `_deleted`
marks deleted keys. Source: O'Neil et al., The Log-Structured Merge-Tree (1996).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from onceonly.checkpoint.model import Handle, Outcome, Transaction
from onceonly.checkpoint.sink import (
    Changes,
    History,
    KeepsState,
    ProvesHistory,
    Publication,
    Receipts,
    Replaceable,
    Sink,
    Trace,
    Traced,
    cannot_take_back,
)
from onceonly.counts import count
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown, StateBehind
from onceonly.filesystems import confined
from onceonly.filesystems.folders import Folders
from onceonly.filesystems.local import LocalFiles
from onceonly.filesystems.paths import local_path
from onceonly.pipeline.sinks import StateSink
from onceonly.sinks.context import Context
from onceonly.sinks.staging import handles, spark_files
from onceonly.sinks.staging import history as histories
from onceonly.sinks.state import handle as staterun
from onceonly.sinks.state import history, rehearsal
from onceonly.sinks.state.history import DONE
from onceonly.spark.strict_reading import require_rows, strict_reader

RUNS = 8  # the maximum number of runs before the newest are merged
KEPT = 100  # checkpoints for which a merged run is kept, because readers of an older state may need it
GIVEN_UP = "_given_up"  # marks the folder of a transaction that was given up
NOTE = "onceonly.note"  # key in the metadata of a changed column: a sentence for people, such as that of `windows`
_SHOWN = {"kind": "state", "unit": "changed key", "target": "the pipeline's state"}
LOOKED_AT = 8  # published transactions that are read for a trace


class StateWriter(Sink, KeepsState, Traced, ProvesHistory, Replaceable):
    """Writes the state of a `StateSink`.

    Args:
        uri: its folder's absolute path or URI.
    """

    handle_shape = handles.State

    def __init__(self, config: StateSink, uri: str) -> None:
        self.name, self.config, self._folders = config.name, config, Folders(uri)

    @classmethod
    def make(cls, config: StateSink, context: Context) -> StateWriter:
        return cls(config, context.locate(config.path or f"appstate/{context.pipeline.name}/{config.name}"))

    def check(self) -> list[str]:
        return [f"{self.name}: keeps {self.config.schema} by {', '.join(self.config.key)} in {self._folders.uri}"]

    def read(self, spark: Any, before: Handle | None) -> Any:
        """The state after the handle `before`, as a DataFrame of the schema; empty for None."""
        self._check_same(before)
        runs = self._runs(before)
        state = self._merged(spark, runs).where("NOT _deleted").drop("_deleted", "_epoch")
        for name, about in _metadata(before).items():
            state = state.withMetadata(name, about)
        return state

    def stage(self, txn: Transaction, rows: Changes) -> Handle:
        changes, before = self._changes(rows.rows, txn.epoch), rows.before
        runs = self._runs(before)
        run = self._write(changes, f"{txn.name}/changes")
        self._check_keys(changes.sparkSession, run)
        merged = runs[len(runs) - self._to_merge(runs, run["rows"]) :]
        kept = runs[: len(runs) - len(merged)]
        if merged:
            newest = self._merged(changes.sparkSession, [*merged, run])
            whole = newest if kept else newest.where("NOT _deleted")
            both = self._write(whole, f"{txn.name}/merged")
            self._folders.delete(f"{txn.name}/changes")  # included in `merged`
        retired = [*self._runs(before, "retired"), *({**old, "since": txn.epoch} for old in merged)]
        notes = [field.metadata[NOTE] for field in changes.schema if NOTE in field.metadata]
        return {
            **_SHOWN,
            "txn": txn.name,
            "schema": self.config.schema,
            "key": list(self.config.key),
            "metadata": _metadata(before) | _kept_metadata(changes),
            "runs": [*kept, both if merged else run],
            "retired": [old for old in retired if old["since"] > txn.epoch - KEPT],
            "forget": [old["folder"] for old in retired if old["since"] <= txn.epoch - KEPT],
            "rows": run["rows"],
            **({"note": "; ".join(notes)} if notes else {}),
        }

    def rehearse(self, handle: Handle, decision: int, last: Publication | None = None) -> Handle:
        """Look at every run that makes up the state, and try a mark. Raises as `commit` and `rehearsal.rehearse`."""
        forget = staterun.forgotten(self.name, handle)
        if handle["txn"] is None:  # a rewind begins with the decision
            return handle
        txn = staterun.transaction(self.name, handle["txn"])
        with rehearsal.explained(self._folders, self.name, txn.pipeline):
            if self._is_marked(txn, DONE):
                return handle
            self._refuse_given_up(txn)
            self._refuse_behind(txn)
            histories.require(self, last)
        rehearsal.rehearse(self._folders, self.name, txn, handle, forget)
        return handle

    def commit(self, handle: Handle, decision: int, receipts: Receipts, last: Publication | None = None) -> Outcome:
        """Mark the folder as published. Only the record in the state table publishes; the mark protects from cleanup.

        Raises:
            Fenced: the transaction was given up.
            StateBehind: another transaction has published this epoch.
            TargetWentBack: the folder lacks the last published run.
            CannotPublish: the staged state no longer exists, or the handle is damaged.
        """
        forget = staterun.forgotten(self.name, handle)
        if handle["txn"] is None:
            return self._go_back(handle, forget, last)
        txn = staterun.transaction(self.name, handle["txn"])
        already = self._publish(txn, handle, decision, last)
        self._forget(forget)
        return Outcome(already, {"rows": handle["rows"]}, history.proof(self._folders, self.name, handle, txn.prefix))

    def _go_back(self, handle: Handle, forget: list[Transaction], last: Publication | None) -> Outcome:
        """A rewind, for which nothing was staged. Its first try may have deleted the last published run already."""
        run = last.proof.get("run") if last else None
        if last and not (run and run["folder"].split("/")[0] in {txn.name for txn in forget}):
            histories.require(self, last)
        runs = staterun.runs(self.name, handle)
        if changed := history.changed_runs(self._folders, runs):
            raise self._lost(self._folders.path(changed[0]["folder"]), "Restore it and recover.")
        if last and not self._folders.exists():
            raise self._lost(self._folders.uri, "Mount or restore it and recover.")
        self._forget(forget)
        owners = [staterun.transaction(self.name, each["folder"].split("/")[0]) for each in runs] + forget
        proof = history.proof(self._folders, self.name, handle, owners[0].prefix) if owners else {}
        return Outcome(detail={"rows": 0}, proof=proof)

    def _lost(self, path: str, todo: str) -> CannotPublish:
        what = f"sink '{self.name}': a part of the state no longer exists."
        return CannotPublish(what, f"{path} is missing, or was changed.", todo, "state-run-missing")

    def compare(self, last: Publication) -> History:
        try:
            return history.compare(self._folders, last)
        except OSError as error:
            raise self._silent(error) from error

    def proof_now(self, last: Publication) -> Publication | None:
        try:
            return history.proof_now(self._folders, last)
        except OSError as error:
            raise self._silent(error) from error

    def _silent(self, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"sink '{self.name}': {self._folders.uri} does not answer.",
            f"{type(error).__name__}: {error}",
            "Nothing was changed. Try again when it can be reached.",
            "no-answer",
        )

    def _publish(self, txn: Transaction, handle: Handle, decision: int, last: Publication | None) -> bool:
        """Whether it was already published."""
        if self._is_marked(txn, DONE):
            return True
        histories.require(self, last)
        if not self._folders.has(txn.name):
            raise CannotPublish(
                f"sink '{self.name}': the staged state no longer exists.",
                f"{self._folders.path(txn.name)} is missing.",
                f"Restore it and recover. With onceonly resolve {txn.pipeline} {txn.epoch} --give-up {self.name} "
                "--reason …, the pipeline would continue without state.",
                "staged-files-missing",
            )
        self._refuse_given_up(txn)
        self._refuse_behind(txn)
        if changed := history.changed_runs(self._folders, staterun.runs(self.name, handle)):
            raise self._lost(self._folders.path(changed[0]["folder"]), "Restore it and recover.")
        return not self._folders.mark(f"{txn.name}/{DONE}", json.dumps({"decision": decision}))

    def _refuse_given_up(self, txn: Transaction) -> None:
        if self._is_marked(txn, GIVEN_UP):
            raise Fenced(
                f"sink '{self.name}': the state of epoch {txn.epoch} was given up.",
                f"A person gave it up, as {self._folders.path(txn.name)}/{GIVEN_UP} shows.",
                f"If the state table still waits for it: onceonly resolve {txn.pipeline} {txn.epoch} "
                f"--give-up {self.name} --reason …",
            )

    def _refuse_behind(self, txn: Transaction) -> None:
        """Another published transaction of the same epoch shows that the state table assigns numbers a second time."""
        same = (other for other in self._folders.holding(txn.prefix) if other.epoch == txn.epoch and other != txn)
        for other in same:
            if self._is_marked(other, DONE):
                raise StateBehind(
                    f"sink '{self.name}': another transaction has already published epoch {txn.epoch}.",
                    f"{self._folders.path(other.name)} exists, and the state table names {txn.name}. The state table "
                    "was restored from an older copy and assigns the same numbers again.",
                    f"Nothing was published. Continue after what is published: onceonly state forward {txn.pipeline} … "
                    "(docs/operations.md, Backup and restore)",
                )

    def _forget(self, forget: list[Transaction]) -> None:
        """Delete these folders. Each contains one run."""
        for txn in forget:
            self._folders.delete(txn.name)

    def fence(self, handle: Handle, decision: int) -> Outcome | None:
        """Write a mark that a commit checks for. A commit that checked before the mark was written does no harm.

        Only the row in the state table publishes a state, and there "published" and "given up" exclude each other. The
        next checkpoint never continues from a state that was given up, whatever its folder contains.
        """
        if handle["txn"] is None:  # a rewind: there is only its row in the state table
            return None
        txn = staterun.transaction(self.name, handle["txn"])
        if not self._folders.exists():
            raise OutcomeUnknown(
                f"sink '{self.name}': whether the state of epoch {txn.epoch} was published is not known.",
                f"{self._folders.uri} does not exist. Perhaps its volume is not mounted.",
                "Mount it, and give it up again. If the state is permanently lost, create that folder, empty, and give "
                "it up again. Nothing was changed.",
                "target-missing",
            )
        try:
            if not self._is_marked(txn, DONE) and self._folders.has(txn.name):
                self._folders.mark(f"{txn.name}/{GIVEN_UP}", json.dumps({"decision": decision}))
            published = self._is_marked(txn, DONE)
        except OSError as error:
            raise OutcomeUnknown(
                f"sink '{self.name}': whether the state of epoch {txn.epoch} was published is not known.",
                f"{type(error).__name__}: {error}",
                f"Nothing was deleted. Give it up again when {self._folders.uri} can be reached.",
            ) from error
        return Outcome(already=True, detail={"rows": handle["rows"]}) if published else None

    def traces(self, pipeline: str) -> list[Trace]:
        """The last decisions are in the last epochs: a pipeline with state decides its epochs in order."""
        by_table: dict[str, list[Transaction]] = {}
        for name in self._folders.names():
            txn = confined.parsed(name)
            if txn and (txn.pipeline, txn.sink) == (pipeline, self.name):
                by_table.setdefault(txn.state_id, []).append(txn)
        latest = {id: sorted(txns, key=lambda txn: txn.epoch)[-LOOKED_AT:] for id, txns in by_table.items()}
        shown = {id: history.published(self._folders, txns) for id, txns in latest.items()}
        where = f"state {self._folders.uri}"
        return [Trace(id, max(decision for decision, _ in marked), where) for id, marked in shown.items() if marked]

    def _is_marked(self, txn: Transaction, mark: str) -> bool:
        return self._folders.has(f"{txn.name}/{mark}")

    def check_replace(self, old: Handle) -> None:
        """A single checkpoint cannot be replaced, because later ones depend on it. A rewind takes back all of them."""
        raise cannot_take_back(self.name)

    def retraction(self, txn: Transaction, olds: Sequence[Handle], held: Handle | None) -> Handle:
        """A handle of the state after `held`. Later runs are deleted."""
        runs = self._runs(held)
        if gone := [run["folder"] for run in runs if not self._folders.has(run["folder"])]:
            raise InvalidPipeline(
                f"sink '{self.name}': the state at that epoch no longer exists.",
                f"{self._folders.path(gone[0])} is missing. After a merge, runs are kept for {KEPT} checkpoints.",
                "Go back to a later epoch. Nothing was changed.",
            )
        same = {**{name: held[name] for name in ("schema", "key")}, "metadata": _metadata(held)} if held else {}
        ours = {"schema": self.config.schema, "key": list(self.config.key)}
        retired = self._runs(held, "retired")
        forget = [old["txn"] for old in olds if old["txn"]]
        plain = {**_SHOWN, "txn": None, **ours, **same, "retired": retired}
        return {**plain, "runs": runs, "forget": forget, "rows": 0}

    def _runs(self, handle: Handle | None, which: str = "runs") -> list[dict[str, Any]]:
        with confined.refused_early():
            return staterun.runs(self.name, handle, which)

    def discard(self, txn: Transaction, handle: Handle | None) -> None:
        if not self._is_marked(txn, DONE):
            self._folders.delete(txn.name)

    def leftovers(self, prefix: str) -> list[Transaction]:
        return [txn for txn in self._folders.holding(prefix) if not self._is_marked(txn, DONE)]

    # ---- runs

    @property
    def _kept(self) -> str:
        return f"{self.config.schema}, _deleted BOOLEAN, _epoch BIGINT"

    def _merged(self, spark: Any, runs: Sequence[Mapping[str, Any]]) -> Any:
        """The newest row of each key. Deleted keys are still marked."""
        from pyspark.sql import functions as F

        if not runs:
            return spark.createDataFrame([], self._kept)
        first, *later = frames = [self._run(spark, run) for run in runs]
        self._require_whole(frames, runs)
        if not later:
            return first
        key, every = list(self.config.key), reduce(lambda one, other: one.unionByName(other), later)
        youngest = every.groupBy(*key).agg(F.max_by(F.struct(*every.columns), "_epoch").alias("row")).select("row.*")
        return first.join(youngest.select(*key), key, "left_anti").select(*every.columns).unionByName(youngest)

    def _run(self, spark: Any, run: Mapping[str, Any]) -> Any:
        folder = self._folders.path(run["folder"])
        return strict_reader(spark).schema(self._kept).parquet(spark_files.uri(folder))

    def _require_whole(self, frames: Sequence[Any], runs: Sequence[Mapping[str, Any]]) -> None:
        """Compare the rows of these runs with what was written. One job, which reads only the footers of the files."""
        rows = reduce(lambda one, other: one.unionAll(other), frames).count()
        written = sum(run["rows"] for run in runs)
        require_rows(rows, written, f"sink '{self.name}': the rows of the state in {self._folders.uri}")

    def _changes(self, rows: Any, epoch: int) -> Any:
        """The changes with the columns of a run, in their order."""
        from pyspark.sql import functions as F

        wanted = rows.sparkSession.createDataFrame([], self.config.schema).schema
        have = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        problems = [
            f"'{name}' is in the key and not in the schema" for name in self.config.key if name not in wanted.names
        ]
        for field in wanted.fields:
            kind = field.dataType.simpleString()
            if have.get(field.name) != kind:
                problems.append(f"'{field.name}' is {have.get(field.name, 'missing')}, the schema has {kind}")
        problems += [f"'{name}' is not in the schema" for name in have if name not in [*wanted.names, "deleted"]]
        if have.get("deleted", "boolean") != "boolean":
            problems.append(f"'deleted' is {have['deleted']}, not boolean")
        if problems:
            raise InvalidPipeline(
                f"sink '{self.name}': the changes do not match the schema of the state.",
                f"Columns: {'; '.join(problems)}.",
                "Change what the transform returns (select, cast), or the schema. Nothing was staged.",
            )
        deleted = F.coalesce(F.col("deleted"), F.lit(False)) if "deleted" in have else F.lit(False)
        return rows.select(*wanted.names, deleted.alias("_deleted"), F.lit(epoch).cast("bigint").alias("_epoch"))

    def _check_keys(self, spark: Any, run: Mapping[str, Any]) -> None:
        """Checks the written run, so that the transform is not computed twice."""
        from pyspark.sql import functions as F

        key = list(self.config.key)
        written = self._run(spark, run).groupBy(*key).count()
        null = reduce(lambda one, other: one | other, (F.col(name).isNull() for name in key))
        wrong = written.where(null | (F.col("count") > 1)).limit(3).collect()
        if wrong:
            shown = "; ".join(f"{[row[name] for name in key]} {count(row['count'], 'time')}" for row in wrong)
            raise InvalidPipeline(
                f"sink '{self.name}': in the changes, a key is null or occurs more than once.",
                f"{', '.join(key)}: {shown}.",
                "Return one row per key, without null in the key. Nothing was published.",
            )

    def _check_same(self, before: Handle | None) -> None:
        if before and (before["schema"], before["key"]) != (self.config.schema, list(self.config.key)):
            raise InvalidPipeline(
                f"sink '{self.name}': the existing state has another schema or key.",
                f"It is {before['schema']} by {', '.join(before['key'])}. The pipeline now has {self.config.schema} by "
                f"{', '.join(self.config.key)}.",
                "Use the former schema and key, or a new name for the sink, which starts with an empty state. "
                "Nothing was staged.",
            )

    def _to_merge(self, runs: Sequence[Mapping[str, Any]], new: int) -> int:
        """How many of the newest runs to merge with the new rows: those at most twice as large as what is merged."""
        if len(runs) < RUNS:
            return 0
        number, rows = 0, new
        while number < len(runs) and (number < RUNS // 2 or runs[-1 - number]["rows"] <= 2 * rows):
            number, rows = number + 1, rows + runs[-1 - number]["rows"]
        return number

    def _write(self, rows: Any, name: str) -> dict[str, Any]:
        folder = self._folders.path(name)
        written = spark_files.write(rows, folder)
        if local := local_path(folder):
            LocalFiles().make_durable(str(local))
        return {"folder": name, "rows": written, **history.content(self._folders, name)}


def _kept_metadata(changes: Any) -> dict[str, Any]:
    """Spark's metadata of the changed columns, without the notes, which are about this checkpoint alone."""
    kept = {field.name: {k: v for k, v in field.metadata.items() if k != NOTE} for field in changes.schema}
    return {name: metadata for name, metadata in kept.items() if metadata}


def _metadata(handle: Handle | None) -> dict[str, Any]:
    """Spark's metadata of the columns, which the transform has set and the state keeps."""
    return dict(handle.get("metadata", {})) if handle else {}
