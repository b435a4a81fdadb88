"""The runs of a state: how they are written, read and merged with Spark, and whether one is as it was written.

By the newest run of its last publication, a folder shows that it still has the state that was published to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import Any

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.sink import Answer, History, Publication
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import StateSink
from onceonly.spark import row_files
from onceonly.spark.row_files import require_rows, strict_reader
from onceonly.storage.folders import Folders
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import has_transaction_name
from onceonly.storage.paths import local_path

MAX_RUNS = 8  # before the newest are merged
DONE = "_published"  # marks the folder of a published transaction
MAX_TRANSACTIONS_READ = 64  # published ones that are read for the last decision that a folder shows
Run = Mapping[str, Any]


def describe_files(folders: Folders, name: str) -> dict[str, Any]:
    """Return what a run is recognised by: how many files it has, their bytes, and a digest of names and sizes."""
    sizes = folders.list_files(name)
    lines = "".join(f"{path} {size}\n" for path, size in sorted(sizes.items()))
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return {"files": len(sizes), "bytes": sum(sizes.values()), "listing": digest}


def find_changed_runs(folders: Folders, runs: Iterable[Run]) -> list[Run]:
    """Return the runs that are not there as they were written."""

    def is_changed(run: Run) -> bool:
        return bool(describe_files(folders, run["folder"])["listing"] != run["listing"])

    all_runs = list(runs)
    with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
        answers = pool.map(is_changed, all_runs)
        return [run for run, changed in zip(all_runs, answers, strict=True) if changed]


def count_to_merge(runs: Sequence[Mapping[str, Any]], new_rows: int) -> int:
    """Return how many of the newest runs to merge with the new rows.

    Those that are at most twice as large as what is merged by then, and half of the maximum in any case.
    """
    if len(runs) < MAX_RUNS:
        return 0
    number, rows = 0, new_rows
    while number < len(runs):
        next_rows = runs[-1 - number]["rows"]
        if number >= MAX_RUNS // 2 and next_rows > 2 * rows:
            break
        number, rows = number + 1, rows + next_rows
    return number


class RunFiles:
    """The files of the runs of one sink, as Spark reads and writes them.

    Args:
        folders: of the sink's transactions; each has one run.
    """

    def __init__(self, config: StateSink, folders: Folders) -> None:
        self._sink, self._config, self._folders = config.name, config, folders

    @property
    def _run_schema(self) -> str:
        """The schema of a run, in Spark's DDL."""
        return f"{self._config.schema}, _deleted BOOLEAN, _epoch BIGINT"

    def merge(self, spark: Any, runs: Sequence[Mapping[str, Any]]) -> Any:
        """Return the newest row of each key. Deleted keys are still marked."""
        from pyspark.sql import functions as F

        if not runs:
            return spark.createDataFrame([], self._run_schema)
        first, *later = frames = [self._read_run(spark, run) for run in runs]
        self._require_all_rows(frames, runs)
        if not later:
            return first
        key, changes = list(self._config.key), reduce(lambda one, other: one.unionByName(other), later)
        newest_row = F.max_by(F.struct(*changes.columns), "_epoch").alias("row")
        newest = changes.groupBy(*key).agg(newest_row).select("row.*")
        # Each run has one row per key. So of the first one, only the rows are left out that later ones replace.
        return first.join(newest.select(*key), key, "left_anti").select(*changes.columns).unionByName(newest)

    def _read_run(self, spark: Any, run: Mapping[str, Any]) -> Any:
        folder = self._folders.path(run["folder"])
        return strict_reader(spark).schema(self._run_schema).parquet(row_files.folder_uri(folder))

    def _require_all_rows(self, frames: Sequence[Any], runs: Sequence[Mapping[str, Any]]) -> None:
        """Compare the rows of these runs with what was written. One job, which reads only the footers of the files."""
        rows = reduce(lambda one, other: one.unionAll(other), frames).count()
        written = sum(run["rows"] for run in runs)
        require_rows(rows, written, f"sink '{self._sink}': the rows of the state in {self._folders.uri}")

    def conform(self, rows: Any, epoch: int) -> Any:
        """Return the changes with the columns of a run, in their order.

        Raises:
            InvalidPipeline: they do not match the schema of the state; names each column.
        """
        from pyspark.sql import functions as F

        schema = rows.sparkSession.createDataFrame([], self._config.schema).schema
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        problems = self._list_problems(schema, types)
        if problems:
            raise InvalidPipeline(
                f"sink '{self._sink}': the changes do not match the schema of the state.",
                f"Columns: {'; '.join(problems)}.",
                "Change what the transform returns (select, cast), or the schema. Nothing was staged.",
                code="columns-unsuitable",
            )
        deleted = F.lit(False)
        if "deleted" in types:
            deleted = F.coalesce(F.col("deleted"), F.lit(False))
        return rows.select(*schema.names, deleted.alias("_deleted"), F.lit(epoch).cast("bigint").alias("_epoch"))

    def _list_problems(self, schema: Any, types: Mapping[str, str]) -> list[str]:
        """Say what is wrong with changes of these types, by column; empty: nothing."""
        problems = []
        for name in self._config.key:
            if name not in schema.names:
                problems.append(f"'{name}' is in the key and not in the schema")
        for field in schema.fields:
            kind = field.dataType.simpleString()
            if types.get(field.name) != kind:
                problems.append(f"'{field.name}' is {types.get(field.name, 'missing')}, the schema has {kind}")
        for name in types:
            if name not in [*schema.names, "deleted"]:
                problems.append(f"'{name}' is not in the schema")
        if types.get("deleted", "boolean") != "boolean":
            problems.append(f"'deleted' is {types['deleted']}, not boolean")
        return problems

    def check_keys(self, spark: Any, run: Mapping[str, Any]) -> None:
        """Check the keys of the written run, so that the transform is not computed twice."""
        from pyspark.sql import functions as F

        key = list(self._config.key)
        times_by_key = self._read_run(spark, run).groupBy(*key).count()
        has_null = reduce(lambda one, other: one | other, [F.col(name).isNull() for name in key])
        wrong = times_by_key.where(has_null | (F.col("count") > 1)).limit(3).collect()
        if wrong:
            examples = []
            for row in wrong:
                values = [row[name] for name in key]
                examples.append(f"{values} {count(row['count'], 'time')}")
            raise InvalidPipeline(
                f"sink '{self._sink}': in the changes, a key is null or occurs more than once.",
                f"{', '.join(key)}: {'; '.join(examples)}.",
                "Return one row per key, without null in the key. Nothing was published.",
                code="state-key-invalid",
            )

    def write(self, rows: Any, name: str) -> dict[str, Any]:
        folder = self._folders.path(name)
        written = row_files.write_files(rows, folder)
        if local := local_path(folder):
            LocalFiles().make_durable(str(local))
        return {"folder": name, "rows": written, **describe_files(self._folders, name)}


def make_proof(folders: Folders, runs: Sequence[Run], prefix: str) -> dict[str, Any]:
    """Return the proof of a publication: the place, whose it is, and the newest run of the state; None: it is empty."""
    newest = None
    if runs:
        newest = {"folder": runs[-1]["folder"], "listing": runs[-1]["listing"]}
    return {"target": folders.uri, "prefix": prefix, "run": newest}


def compare_runs(folders: Folders, last: Publication) -> History:
    """Look for the newest run of the last publication. The run decides, and not the path, which may have changed."""
    run = last.proof["run"]
    if folders.exists() and (run is None or not find_changed_runs(folders, [run])):
        return History(Answer.SAME)
    if not _is_same(str(last.proof["target"]), folders.uri):
        return History(Answer.ELSEWHERE, f"it was published to {last.proof['target']}, and this is {folders.uri}")
    if run is None or not folders.exists():
        return History(Answer.WENT_BACK, f"the folder {folders.uri} does not exist; perhaps its volume is not mounted")
    why = "has other files than were written" if folders.has(run["folder"]) else "does not exist"
    earlier_decision = 0
    for decision, _ in _list_newest_published(folders, str(last.proof["prefix"])):
        if decision < last.decision:
            earlier_decision = max(earlier_decision, decision)
    return History(Answer.WENT_BACK, f"{folders.path(run['folder'])} {why}", earlier_decision)


def find_last_published(folders: Folders, last: Publication) -> Publication | None:
    """Return the last publication that the folder shows, with a proof of it as it is; None: there is no folder."""
    if not folders.exists():
        return None
    prefix = str(last.proof["prefix"])
    published = _list_newest_published(folders, prefix)
    if not published:
        return Publication(0, 0, {"target": folders.uri, "prefix": prefix, "run": None})
    decision, txn = max(published, key=lambda entry: entry[0])
    folder = f"{txn.name}/merged"
    if not folders.has(folder):
        folder = f"{txn.name}/changes"
    run = {"folder": folder, "listing": describe_files(folders, folder)["listing"]}
    return Publication(txn.epoch, decision, {"target": folders.uri, "prefix": prefix, "run": run})


def list_published(folders: Folders, txns: Iterable[Transaction]) -> list[tuple[int, Transaction]]:
    """Select the transactions that are marked as published, with their decisions."""
    published = []
    for txn in txns:
        if folders.has(f"{txn.name}/{DONE}"):
            published.append((_read_decision(folders, txn), txn))
    return published


def _list_newest_published(folders: Folders, prefix: str) -> list[tuple[int, Transaction]]:
    """List the published transactions of the newest epochs: a pipeline with state decides them in order."""
    txns = [txn for txn in list_transactions(folders.list_names(), prefix) if has_transaction_name(txn.name)]
    return list_published(folders, sorted(txns, key=lambda txn: txn.epoch)[-MAX_TRANSACTIONS_READ:])


def _read_decision(folders: Folders, txn: Transaction) -> int:
    """Read the decision in the mark; 0 if the mark is empty."""
    text = folders.read_text(f"{txn.name}/{DONE}")
    return int(json.loads(text)["decision"]) if text else 0


def _is_same(one: str, other: str) -> bool:
    """Return whether two locations are the same folder."""
    first, second = local_path(one), local_path(other)
    if first and second:
        return LocalFiles().is_same_folder(str(first), str(second))
    return one == other
