"""A server, or a table, that went back is noticed, and what is accepted as lost is never taken for published."""

from __future__ import annotations

import json
import signal
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from codes import raises
from integration.services import postgres
from integration.services.postgres import Postgres
from own_server import own_server
from publisher import Publisher
from targets import plain_table

from onceonly.errors import TargetWentBack
from onceonly.sinks import Answer, Handle, Transaction

pytestmark = pytest.mark.integration


@pytest.fixture
def server_with_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Postgres, Path]]:
    with TemporaryDirectory(prefix="onceonly-postgres-") as folder, own_server(folder, monkeypatch) as server:
        yield server, Path(folder)


def copy_data(server: Postgres, old: Path, new: Path) -> None:
    """Put a copy of the folder in place of another one, while the server is down."""
    server.stop(signal.SIGINT)
    subprocess.run(["rm", "-rf", new], check=True)
    subprocess.run(["cp", "-a", old, new], check=True)
    server.start()


def test_restored_server_is_noticed(server_with_copies: tuple[Postgres, Path], tmp_path: Path) -> None:
    server, folder = server_with_copies
    publisher = Publisher(plain_table(server.port, "numbers"), tmp_path)
    first = publisher.publish(1, None)
    second = publisher.publish(2, first)
    copy_data(server, folder / "data", folder / "copy")
    third = publisher.publish(3, second)
    assert [publisher.compare(one) for one in (first, second, third)] == [Answer.SAME] * 3
    copy_data(server, folder / "copy", folder / "data")

    fourth = publisher.stage(4)
    for step in (publisher.committer.rehearse, publisher.committer.commit):
        with raises(TargetWentBack, "target-went-back"):
            step(fourth, 4, third)
    assert publisher.target.published() == [1, 2]
    history = publisher.history.compare(third)
    assert (history.answer, history.decision) == (Answer.WENT_BACK, 2)

    accepted = publisher.history.find_current_publication(third)
    assert accepted is not None
    assert (accepted.epoch, accepted.decision, publisher.compare(accepted)) == (2, 2, Answer.SAME)
    assert not publisher.committer.commit(fourth, 4, replace(accepted, lost=(third,))).already
    assert publisher.target.published() == [1, 2, 4]
    answers = [publisher.compare(one) for one in (first, second, third)]
    assert answers == [Answer.SAME, Answer.SAME, Answer.WENT_BACK]


def test_lost_rows_that_are_back_are_noticed(database: Postgres, tmp_path: Path) -> None:
    publisher = Publisher(plain_table(database.port, f"numbers_{uuid.uuid4().hex[:8]}"), tmp_path)
    first = publisher.publish(1, None)
    second = publisher.publish(2, first)
    with raises(TargetWentBack, "target-is-back"):
        publisher.committer.rehearse(publisher.stage(3), 3, replace(first, lost=(second,)))


def test_dropped_table_is_noticed(database: Postgres, tmp_path: Path) -> None:
    table = f"numbers_{uuid.uuid4().hex[:8]}"
    publisher = Publisher(plain_table(database.port, table), tmp_path)
    first = publisher.publish(1, None)
    second = publisher.publish(2, first)
    publisher.target.query(f'DROP TABLE "{table}"')
    assert publisher.history.find_current_publication(second) is None
    with raises(TargetWentBack, "target-went-back"):
        publisher.committer.commit({**json.loads(json.dumps(_empty(publisher, table)))}, 3, second)
    plain_table(database.port, table)
    assert publisher.compare(second) is Answer.WENT_BACK
    accepted = publisher.history.find_current_publication(second)
    assert accepted is not None
    assert (accepted.decision, publisher.compare(accepted)) == (0, Answer.SAME)
    third = publisher.publish(3, replace(accepted, lost=(first, second)))
    assert publisher.target.published() == [3]
    answers = [publisher.compare(one) for one in (first, second, third)]
    assert answers == [Answer.WENT_BACK, Answer.WENT_BACK, Answer.SAME]


def _empty(publisher: Publisher, table: str) -> Handle:
    """Return the handle of an attempt that was staged before the table was dropped."""
    txn = Transaction(publisher.state_id, "flights", "lake", 3, 1, "a")
    empty = {"tables": [], "columns": [], "schema": {}, "rows": 0, "bytes": 0}
    return {"kind": "postgres", "target": f"public.{table}", "txn": txn.name, **empty}


def test_table_of_another_name_has_a_history_of_its_own(database: Postgres, tmp_path: Path) -> None:
    here = plain_table(database.port, f"numbers_{uuid.uuid4().hex[:8]}")
    elsewhere = replace(plain_table(database.port, f"numbers_{uuid.uuid4().hex[:8]}"))
    last = Publisher(here, tmp_path).publish(1, None)
    assert Publisher(elsewhere, tmp_path).compare(last) is Answer.ELSEWHERE


def test_dumped_and_restored_table_is_the_same(database: Postgres, tmp_path: Path) -> None:
    """A dump names the table; its id is another one in the new database."""
    programs = postgres.programs()
    assert programs is not None
    table = f"numbers_{uuid.uuid4().hex[:8]}"
    publisher = Publisher(plain_table(database.port, table), tmp_path)
    last = publisher.publish(1, None)
    schema = publisher.target.ledger_schema
    options = ["-h", "127.0.0.1", "-p", str(database.port), "-U", "airflow"]
    parts = ["-t", table, "-t", f"{schema}.ledger"]
    dump = subprocess.run([programs / "pg_dump", *options, *parts, "postgres"], check=True, capture_output=True).stdout
    publisher.target.query(f'DROP TABLE "{table}", "{schema}".ledger')
    psql = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", *options, "postgres"]
    subprocess.run(psql, check=True, input=dump, stdout=subprocess.DEVNULL)
    assert publisher.compare(last) is Answer.SAME
    publisher.publish(2, last)
    assert publisher.target.published() == [1, 2]
