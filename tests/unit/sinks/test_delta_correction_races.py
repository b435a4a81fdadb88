"""Corrections of checkpoints, published while others compact, delete and append, in threads.

What is there in the end is compared with what each of them has been told was done: by deltalake, and by DuckDB.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import CommitFailedError
from unit.lightdelta import STATE, LightDelta

from onceonly.checkpoint.model import Handle, Transaction
from onceonly.checkpoint.sink import Outcome
from onceonly.errors import CannotPublish, InvalidPipeline, OutcomeUnknown

pytestmark = pytest.mark.slow

NEVER: Any = None
COLUMN = "published_by"
PIPELINES = ("flights", "trains")
CORRECTIONS = 3  # by each pipeline
RECOVERIES = 10  # each tries ten times to be the next commit
WORKS = 12  # by each of the others: without an end, they might leave no turn to a correction
Rows = Counter[tuple[int, str]]  # (n, who has written it)


class Lake:
    """A table of numbers by day, that two pipelines and others write to; and what should be in it."""

    def __init__(self, folder: Path, partition_by: list[str]) -> None:
        self.uri, self.partition_by = str(folder), partition_by
        self.expected: Rows = Counter()
        self.commits: Counter[str] = Counter()  # by whom
        self._lock = Lock()

    def sink(self) -> LightDelta:
        return _Days(Path(self.uri), checkpoint_column=COLUMN, partition_by=self.partition_by)

    def note(self, who: str, added: Rows, removed: Rows) -> None:
        with self._lock:
            self.expected = self.expected + added - removed
            self.commits[who] += 1

    def read_by_deltalake(self) -> Rows:
        found = QueryBuilder().register("lake", DeltaTable(self.uri)).execute(f"SELECT n, {COLUMN} FROM lake")
        return Counter((row["n"], row[COLUMN]) for row in pa.table(found.read_all()).to_pylist())

    def read_by_duckdb(self) -> Rows:
        select = f"SELECT n, {COLUMN} FROM read_parquet(?, union_by_name = true, hive_partitioning = false)"
        return Counter(duckdb.execute(select, [DeltaTable(self.uri).file_uris()]).fetchall())


class _Days(LightDelta):
    def rows(self, txn: Transaction, rows: Any) -> pa.Table:
        return super().rows(txn, rows).append_column("day", _days(rows))


def _days(numbers: Any) -> pa.Array:
    return pa.array([str(number % 3) for number in numbers], pa.string())


class Pipeline:
    """One of those that share the table: it corrects its checkpoints, one after the other."""

    def __init__(self, lake: Lake, name: str) -> None:
        self.lake, self.name, self.epoch = lake, name, 0
        self.in_force: list[tuple[Handle, Rows]] = []

    def publish(self, numbers: list[int], old: Handle | None = None, twice: bool = False) -> tuple[Handle, Rows]:
        self.epoch += 1
        txn = Transaction(STATE, self.name, "lake", self.epoch, 1, f"{self.epoch:08x}0000")
        sink = self.lake.sink()
        if old:
            sink.check_replace(old)
        handle = {**sink.stage(txn, numbers), **({"replaces": old} if old else {})}
        handle = sink.rehearse(json.loads(json.dumps(handle)), self.epoch)
        with ThreadPoolExecutor(2) as pool:  # the run, and a recovery beside it
            tries = [pool.submit(_commit, each, handle, self.epoch) for each in (sink, self.lake.sink())[: 1 + twice]]
            outcomes = [each.result() for each in tries]
        assert sum(not outcome.already for outcome in outcomes) <= 1
        return handle, Counter((number, txn.name) for number in numbers)

    def begin(self, numbers: list[int]) -> None:
        handle, rows = self.publish(numbers)
        self.lake.note(self.name, rows, Counter())
        self.in_force.append((handle, rows))

    def correct(self, number: int) -> None:
        place = number % len(self.in_force)
        old, rows = self.in_force[place]
        self.in_force[place] = new, mended = self.publish([100 * self.epoch + each for each in range(4)], old, True)
        self.lake.note(self.name, mended, rows)
        assert new["replaces"] == old


def _commit(sink: LightDelta, handle: Handle, decision: int) -> Outcome:
    """As recoveries do it, until the outcome is known."""
    for _ in range(RECOVERIES):
        with suppress(OutcomeUnknown):
            return sink.commit(handle, decision, NEVER)
    return sink.commit(handle, decision, NEVER)


# ---- others


def compact(lake: Lake) -> None:
    with suppress(CommitFailedError):
        if DeltaTable(lake.uri).optimize.compact()["numFilesRemoved"]:
            lake.note("compact", Counter(), Counter())


def append_and_delete(lake: Lake) -> None:
    """Rows of its own, of which half are deleted again: by then they may share their file with rows of anybody."""
    number = random.randrange(10**6, 10**9)
    numbers = [number, number + 1]
    names = pa.array(["somebody"] * 2, pa.string())
    rows = pa.table({"n": pa.array(numbers, pa.int64()), "day": _days(numbers), COLUMN: names})
    with suppress(CommitFailedError):
        write_deltalake(lake.uri, rows, mode="append")
        lake.note("append", Counter((each, "somebody") for each in numbers), Counter())
        done = DeltaTable(lake.uri).delete(f"n = {number}")
        assert done["num_deleted_rows"] == 1
        lake.note("delete", Counter(), Counter([(number, "somebody")]))


@contextmanager
def at_work(lake: Lake, *works: Callable[[Lake], None]) -> Iterator[None]:
    """Others do these meanwhile, each in a thread; what went wrong there is raised at the end."""

    def repeat(work: Callable[[Lake], None]) -> None:
        for _ in range(WORKS):
            work(lake)

    with ThreadPoolExecutor(len(works)) as pool:
        threads = [pool.submit(repeat, work) for work in works]
        yield
    for thread in threads:
        thread.result()


# ---- tests


@pytest.fixture(params=[[], ["day"]], ids=["flat", "by day"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", request.param)


def test_two_pipelines_correct_their_days_beside_others(lake: Lake) -> None:
    pipelines = [Pipeline(lake, name) for name in PIPELINES]
    for pipeline in pipelines:
        for number in range(3):
            pipeline.begin([10 * number, 10 * number + 1])
    compact(lake)

    def correct(pipeline: Pipeline) -> None:
        for number in range(CORRECTIONS):
            pipeline.correct(number)

    with at_work(lake, compact, append_and_delete), ThreadPoolExecutor(len(pipelines)) as pool:
        list(pool.map(correct, pipelines))
    assert lake.read_by_deltalake() == lake.expected
    assert lake.read_by_duckdb() == lake.expected
    for name in PIPELINES:
        assert lake.commits[name] == 3 + CORRECTIONS
    assert lake.commits["compact"] and lake.commits["append"] and lake.commits["delete"]


def test_a_delete_of_the_rows_comes_before_the_correction_or_finds_nothing(lake: Lake) -> None:
    """If it comes before, the correction is refused, since it would undo that."""
    pipeline = Pipeline(lake, "flights")
    for number in range(4):
        pipeline.begin([10 * number, 10 * number + 1])
    compact(lake)
    for place, (old, rows) in enumerate(pipeline.in_force):
        start = Barrier(2)

        def delete(number: int = 10 * place, start: Barrier = start) -> int:
            start.wait()
            with suppress(CommitFailedError):
                return int(DeltaTable(lake.uri).delete(f"n = {number}")["num_deleted_rows"])
            return 0

        with ThreadPoolExecutor(1) as pool:
            deletion = pool.submit(delete)
            start.wait()
            try:
                _, mended = pipeline.publish([1000 + place], old)
            except (InvalidPipeline, CannotPublish) as error:
                assert error.code in ("published-rows-edited", "replaced-rows-changed")
                mended = None
            deleted = deletion.result()
        assert deleted == (0 if mended else 1)
        gone = Counter({row: 1 for row in rows if mended or row[0] == 10 * place})
        lake.note("flights", mended or Counter(), gone)
        assert lake.read_by_deltalake() == lake.read_by_duckdb() == lake.expected
