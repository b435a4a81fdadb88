"""A process whose Spark stages rows on a real S3 server is killed, with its Spark, at a request of either."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from deltalake import DeltaTable
from integration.faults.s3_proxy import Kill, Proxy
from integration.programs import children
from integration.programs.children import output, without_spark
from integration.readers.kafka_reader import until
from integration.services import spark_on_stores
from integration.services.s3 import BINARY, MISSING, S3
from integration.victims import mortal_s3, mortal_s3_spark
from patience import PATIENCE

from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import Fenced
from onceonly.statetable.table import StateTable
from onceonly.testing.fakes import FakeSource

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(BINARY is None, reason=MISSING),
]
TESTS = Path(__file__).parents[2]
PARTS = 4
RECORDS = 12


@pytest.fixture(scope="module")
def spark(s3: S3, spark_server: str) -> Iterator[Any]:
    if why := spark_on_stores.unfetched(s3):
        pytest.skip(why)
    session = spark_on_stores.session(spark_server, s3)
    yield session
    session.stop()


def new_bucket(server: S3) -> str:
    """Of a bucket, Spark knows one server as long as it lives, and other tests have others of that name."""
    name = f"spark-{uuid.uuid4().hex[:12]}"
    (server.data / name).mkdir()
    return name


def records(folder: Path, root: str) -> Path:
    """A source with records, and an empty state table."""
    folder.mkdir()
    StateTable.make(f"{root}/state")
    FakeSource("flights", folder).append(0, *((mortal_s3.NOON, value) for value in range(RECORDS)))
    return folder


def start(between: Proxy, folder: Path, root: str) -> subprocess.Popen[str]:
    """A process with a Spark of its own, which waits to be told."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    env = {**without_spark(os.environ), **between.environment, "PYTHONPATH": path, "SPARK_REMOTE": ""}
    env |= {"ONCEONLY_HOME": str(folder / "home"), "SPARK_LOCAL_IP": "127.0.0.1"}
    child = children.start(mortal_s3_spark.__file__, str(folder), root, env=env, stdin=subprocess.PIPE)
    lines = iter(child.stdout or ())
    assert any(line == "ready\n" for line in lines)
    return child


def dies(between: Proxy, folder: Path, root: str, number: int, after: bool) -> bool:
    """Let a process run until its change of that number; whether it came so far."""
    victim = start(between, folder, root)
    between.let(Kill(victim.pid, number, after, group=True))
    assert victim.stdin
    victim.stdin.write("go\n")
    victim.stdin.flush()
    printed = output(victim)
    assert victim.returncode in (-signal.SIGKILL, 0), printed
    changes = [request for request in between.seen if request.changes]
    print(f"{number} of {len(changes)}, {after=}: {changes[number - 1 : number]}")
    markers = [change.path for change in changes if change.method == "PUT" and change.path.endswith("/")]
    assert markers == [], "empty objects in place of folders: delta-rs does not list them, so nobody would delete them"
    return victim.returncode != 0


def check_truth(folder: Path, root: str, spark: Any) -> None:
    """By a reader that is not Spark; and nothing is left of what was not published."""
    for name in mortal_s3.SINKS:
        rows = DeltaTable(f"{root}/{name}").to_pyarrow_table()
        assert sorted(rows["n"].to_pylist()) == list(range(RECORDS))
    through = mortal_s3_spark.coordinator(folder, root, spark)
    assert through.state_table.view("flights").open == []
    through.sweep("flights")
    sinks: list[Any] = [through.parts.sink(mortal_s3.flights(*mortal_s3.SINKS), name) for name in mortal_s3.SINKS]
    assert [sink.leftovers(f"{through.state_table.id}-flights") for sink in sinks] == [[], []]


@pytest.mark.crash
@pytest.mark.parametrize(("number", "after"), [(16, True)])
def test_rows_of_spark_arrive_once_when_it_dies_on_s3(
    server: S3, between: Proxy, spark: Any, tmp_path: Path, number: int, after: bool
) -> None:
    root = f"s3://{new_bucket(server)}/lake"
    folder = records(tmp_path / "source", root)
    assert dies(between, folder, root, number, after)
    mortal_s3_spark.settle(folder, root, spark)
    check_truth(folder, root, spark)


def test_who_is_taken_for_ended_while_spark_writes_is_told_so(server: S3, spark: Any, tmp_path: Path) -> None:
    """Another one removes what its Spark is writing, and publishes the rows itself."""
    root = f"s3://{new_bucket(server)}/lake"
    folder = records(tmp_path / "source", root)
    through = mortal_s3_spark.coordinator(folder, root, spark)
    planned = through.plan(mortal_s3.flights(*mortal_s3.SINKS), "slow", lambda checkpoint: False).checkpoint
    assert planned
    slowly = waiting(str(tmp_path))

    def produce(checkpoint: Checkpoint) -> dict[str, Any]:
        made = through.parts.produce(checkpoint)  # type: ignore[attr-defined]
        return {name: rows.coalesce(1).mapInPandas(slowly, rows.schema) for name, rows in made.items()}

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(through.stage, "flights", planned.epoch, produce, "slow")
        until((tmp_path / "at-work").exists, PATIENCE, "a task of it")
        try:
            mortal_s3_spark.settle(folder, root, spark)
        finally:
            (tmp_path / "go-on").touch()
        with raises(Fenced, "ownership-lost", match=r"(?s)ownership was lost.*This process stops") as caught:
            slow.result()
    print(f"what it met: {caught.value.__cause__!r}")
    check_truth(folder, root, spark)


def waiting(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """It is sent to workers, which do not know this module."""

    def slowly(batches: Iterator[Any]) -> Iterator[Any]:
        import pathlib
        import time

        pathlib.Path(folder, "at-work").touch()
        while not pathlib.Path(folder, "go-on").exists():
            time.sleep(0.05)
        yield from batches

    return slowly


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_of_spark_arrive_once_whichever_change_it_dies_at(
    server: S3, between: Proxy, spark: Any, tmp_path: Path, part: int
) -> None:
    """After each change that the server has made, and before the first. Before any other one, it is as after the last.

    What it left is settled by another one; two at once are tried with few rows, in test_s3_crash.py.
    """
    for number in count(part, PARTS):
        root = f"s3://{new_bucket(server)}/lake"
        folder = records(tmp_path / f"source-{number}", root)
        if not dies(between, folder, root, max(number, 1), after=number > 0):
            break
        mortal_s3_spark.settle(folder, root, spark)
        check_truth(folder, root, spark)
    assert number > 30
    print(f"killed at every change up to {number - PARTS}, in steps of {PARTS}")
