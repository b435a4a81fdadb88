"""What servers do on a bad day: deadlocks, full disks, no free connection, replicas that lag or take over."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from codes import raises
from integration.readers.kafka_reader import until
from integration.services.postgres import Postgres
from own_server import own_server
from patience import PATIENCE
from plain_client import execute
from publisher import Publisher
from targets import connection_variable, plain_table

from onceonly.errors import CannotPublish, Fenced, NotCommitted, OutcomeUnknown, StageAgain, TargetWentBack
from onceonly.sinks import Answer, Outcome, Publication
from onceonly_postgres.ledger import Ledger, LedgerKey, LedgerRow
from onceonly_postgres.server import Cursor

pytestmark = [pytest.mark.integration, pytest.mark.timeout(4 * PATIENCE)]

# Whoever waits for a lock looks for a deadlock once, after that time.
LATE, NEVER = "-c deadlock_timeout=5s", "-c deadlock_timeout=1h"
DISK_MB = 150
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"
CLIENTS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'onceonly'"
WAITING = f"{CLIENTS} AND wait_event_type = 'Lock'"


def new_publisher(port: int, receipts: Path) -> Publisher:
    return Publisher(plain_table(port, f"numbers_{uuid.uuid4().hex[:8]}"), receipts)


def connect(port: int, options: str = "") -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(host="127.0.0.1", port=port, dbname="postgres", user="airflow", options=options)


def test_second_committer_waits_for_the_first(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a publication that is not the sink's first: only the lock of the ledger's row keeps it waiting."""
    port, publisher, lock = database.port, new_publisher(database.port, tmp_path), Ledger.lock
    first = publisher.publish(1, None)
    second = publisher.stage(2)
    others: list[Future[Outcome]] = []

    def lock_and_let_another_come(ledger: Ledger, cursor: Cursor, key: LedgerKey) -> LedgerRow:
        row = lock(ledger, cursor, key)
        if not others:
            others.append(pool.submit(publisher.committer.commit, second, 2, first))
            until(lambda: others[0].done() or execute(port, WAITING) == [(1,)], PATIENCE, "the other")
        return row

    monkeypatch.setattr(Ledger, "lock", lock_and_let_another_come)
    with ThreadPoolExecutor() as pool:
        assert not publisher.committer.commit(second, 2, first).already
        assert others[0].result(PATIENCE).already
    assert publisher.target.published() == [1, 2]


def test_victim_of_a_deadlock_publishes_once(
    database: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, publisher = database.port, new_publisher(database.port, tmp_path)
    first = publisher.publish(1, None)
    second = publisher.stage(2)
    before = execute(port, DEADLOCKS)
    monkeypatch.setenv(*connection_variable(port, options=LATE))
    with connect(port, NEVER) as other, ThreadPoolExecutor() as pool:
        other.execute(f'LOCK TABLE "{publisher.target.table}"')
        commit = pool.submit(publisher.committer.commit, second, 2, first)
        until(lambda: execute(port, WAITING) == [(1,)], PATIENCE, "a commit that waits")
        other.execute(f'SELECT * FROM "{publisher.target.ledger_schema}".ledger FOR UPDATE')  # gets it from the victim
        other.commit()
        assert not commit.result(PATIENCE).already
    assert publisher.target.published() == [1, 2]
    until(lambda: execute(port, DEADLOCKS) > before, PATIENCE, "the deadlock in the server's statistics")


@pytest.mark.parametrize("step", ["rehearse", "commit"])
def test_table_that_is_altered_meanwhile(database: Postgres, step: str, tmp_path: Path) -> None:
    """What counts are its columns under the lock: PostgreSQL would convert values without an error."""
    port, publisher = database.port, new_publisher(database.port, tmp_path)
    first = publisher.publish(1, None)
    second = publisher.stage(2)
    with connect(port) as other, ThreadPoolExecutor() as pool:
        other.execute(f'ALTER TABLE "{publisher.target.table}" ALTER n TYPE numeric(3,0)')
        result = pool.submit(getattr(publisher.committer, step), second, 2, first)
        until(lambda: execute(port, WAITING) == [(1,)], PATIENCE, "a commit that waits")
        other.commit()
        with raises(StageAgain if step == "rehearse" else CannotPublish, "postgres-table-changed"):
            result.result(PATIENCE)
    assert publisher.target.published() == [1]


def test_server_without_a_free_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("max_connections=5", "superuser_reserved_connections=0", "max_wal_senders=0", "wal_level=minimal")
    with (
        TemporaryDirectory(prefix="onceonly-postgres-") as folder,
        own_server(folder, monkeypatch, *few) as server,
    ):
        publisher = new_publisher(server.port, tmp_path)
        first = publisher.publish(1, None)
        second = publisher.stage(2)
        with ExitStack() as others:
            for _ in range(5):
                others.enter_context(connect(server.port))
            with raises(NotCommitted, "postgres-unreachable"):
                publisher.stage(3)
            for step in (publisher.committer.rehearse, publisher.committer.commit):
                with raises(OutcomeUnknown, "postgres-unreachable"):
                    step(second, 2, first)
        until(lambda: can_connect(server.port), PATIENCE, "a free connection")
        assert not publisher.committer.commit(second, 2, first).already
        assert publisher.target.published() == [1, 2]


def can_connect(port: int) -> bool:
    try:
        return execute(port, "SELECT 1") == [(1,)]
    except psycopg.OperationalError:
        return False


def test_all_is_on_disk_though_the_connection_says_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is staged, published or given up is there after a crash of the server."""
    with (
        TemporaryDirectory(prefix="onceonly-postgres-") as folder,
        own_server(folder, monkeypatch, "wal_writer_delay=10s") as server,  # else it would soon be written anyway
    ):
        monkeypatch.setenv(*connection_variable(server.port, options="-c synchronous_commit=off"))
        publisher = new_publisher(server.port, tmp_path)

        def crash() -> None:
            server.kill()
            server.start()

        handles = [publisher.stage(epoch) for epoch in (1, 2)]
        crash()
        first = Publication(1, 1, publisher.committer.commit(handles[0], 1).proof)
        crash()
        assert (publisher.target.published(), publisher.compare(first)) == ([1], Answer.SAME)
        assert publisher.committer.fence(handles[1], 2) is None
        crash()
        with raises(Fenced, "sink-given-up"):
            publisher.committer.commit(handles[1], 2, first)


# ---- no room


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of its own, which a test can fill."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder:
        os.chmod(folder, 0o755)  # the server is another user
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", folder]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("this machine lets nobody mount a small disk")
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize("step", ["stage", "commit"])
def test_full_disk(small_disk: Path, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may end, as it does without room for its log. What it has confirmed is there."""
    numbers = range(2, 300_000)
    data = small_disk / "server"
    data.mkdir()
    with own_server(str(data), monkeypatch, "min_wal_size=32MB", "max_wal_size=32MB") as server:
        publisher = new_publisher(server.port, tmp_path)
        first = publisher.publish(1, None)
        second = publisher.stage(2, *numbers) if step == "commit" else None
        fill(small_disk)
        if second is None:
            with raises(NotCommitted, "postgres-unreachable"):
                publisher.stage(2, *numbers)
        else:
            with raises(OutcomeUnknown, "postgres-unreachable"):
                publisher.committer.commit(second, 2, first)
        (small_disk / "filler").unlink()
        until(lambda: can_connect(server.port) or not server.is_running, PATIENCE, "the end of its recovery")
        if not server.is_running:
            server.start()
        assert publisher.target.published() == [1]
        second = second or publisher.stage(2, *numbers)
        assert not publisher.committer.commit(second, 2, first).already
        assert publisher.target.published() == [1, *numbers]


def fill(disk: Path) -> None:
    """Write a file until there is no room."""
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


# ---- replicas


@dataclass
class Pair:
    """A primary, to which the connection leads, and its replica. Both show what was published first."""

    primary: Postgres
    replica: Postgres
    publisher: Publisher
    first: Publication


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with (
        TemporaryDirectory(prefix="onceonly-postgres-") as folder,
        own_server(folder, monkeypatch) as primary,
        TemporaryDirectory(prefix="onceonly-replica-") as copy,
    ):
        replica = Postgres(copy, primary=primary)
        replica.start()
        try:
            publisher = new_publisher(primary.port, tmp_path)
            first = publisher.publish(1, None)
            until(lambda: shows(replica, publisher, [1]), PATIENCE, "the replica")
            yield Pair(primary, replica, publisher, first)
        finally:
            if replica.is_running:
                replica.stop()


def test_replica_that_lags_is_not_asked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would not show what is published; a handle would be taken for one that is not."""
    primary, replica, publisher, first = pair.primary, pair.replica, pair.publisher, pair.first
    execute(replica.port, "SELECT pg_wal_replay_pause()")
    second = publisher.stage(2)
    last = publisher.committer.commit(second, 2, first)
    assert shows(replica, publisher, [1])

    monkeypatch.setenv(*connection_variable(replica.port))
    for step in (publisher.committer.rehearse, publisher.committer.commit, publisher.committer.fence):
        arguments = (second, 2) if step == publisher.committer.fence else (second, 2, first)
        with raises(OutcomeUnknown, "postgres-unreachable"):
            step(*arguments)
    with raises(OutcomeUnknown, "postgres-unreachable"):
        publisher.compare(first)
    with raises(NotCommitted, "postgres-unreachable"):
        publisher.target.sink().check()

    ports = f"{replica.port},{primary.port}"
    both = {"host": "127.0.0.1,127.0.0.1", "target_session_attrs": "read-write"}
    monkeypatch.setenv(*connection_variable(ports, **both))
    again = publisher.committer.commit(second, 2, first)
    assert (again.already, again.proof) == (True, last.proof)
    assert publisher.target.published() == [1, 2]


def shows(server: Postgres, publisher: Publisher, numbers: list[int]) -> bool:
    """Whether that server has these numbers."""
    try:
        rows = execute(server.port, f'SELECT n FROM "{publisher.target.table}" ORDER BY n')
    except psycopg.errors.UndefinedTable:
        return False
    return [number for (number,) in rows] == numbers


def test_replica_that_takes_over_without_the_last_publication(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    primary, replica, publisher, first = pair.primary, pair.replica, pair.publisher, pair.first
    replica.stop()
    second = publisher.publish(2, first)
    primary.kill()

    replica.start()
    execute(replica.port, "SELECT pg_promote()")
    monkeypatch.setenv(*connection_variable(replica.port))
    publisher = publisher.on(replica.port)
    assert [publisher.compare(one) for one in (first, second)] == [Answer.SAME, Answer.WENT_BACK]
    with raises(TargetWentBack, "target-went-back"):
        publisher.publish(3, second)
    assert publisher.target.published() == [1]


def test_commit_that_a_synchronous_replica_has_not_confirmed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sees the rows before the replica has them. A second commit waits for the first, until its time is over."""
    primary, replica, publisher, first = pair.primary, pair.replica, pair.publisher, pair.first
    second = publisher.stage(2)
    execute(primary.port, "ALTER SYSTEM SET synchronous_standby_names = '*'")
    execute(primary.port, "SELECT pg_reload_conf()")
    replica.stop()
    with ThreadPoolExecutor() as pool:
        commit = pool.submit(publisher.committer.commit, second, 2, first)
        waits = f"{CLIENTS} AND wait_event = 'SyncRep'"
        until(lambda: execute(primary.port, waits) == [(1,)], PATIENCE, "a commit that waits")
        monkeypatch.setenv(*connection_variable(primary.port, options="-c lock_timeout=100ms"))
        with raises(OutcomeUnknown, "postgres-locked"):
            publisher.committer.commit(second, 2, first)
        assert publisher.target.published() == [1]
        replica.start()
        assert not commit.result(PATIENCE).already
    assert publisher.committer.commit(second, 2, first).already
    assert publisher.target.published() == [1, 2]
