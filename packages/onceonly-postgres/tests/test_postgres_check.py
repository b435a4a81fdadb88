"""What the sink says of a table, a server or a role that does not fit."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import psycopg
import pytest
from arrow_rows import number_rows
from codes import raises
from integration.services.postgres import Postgres
from plain_client import execute
from targets import CONNECTION, NumberTable, connection_variable, marked_table, merged_table, open_sink, plain_table

from onceonly import Merge
from onceonly.errors import ActionNeeded, CannotPublish, InvalidPipeline, NotCommitted, OutcomeUnknown
from onceonly.sinks import Handle, Transaction
from onceonly.testing.contract import Committer
from onceonly_postgres import PostgresSink, server

pytestmark = pytest.mark.integration
SECRET = "open-sesame"


@pytest.fixture
def target(database: Postgres) -> NumberTable:
    return plain_table(database.port, new_name())


@pytest.fixture
def committer(target: NumberTable, tmp_path: Path) -> Committer:
    return Committer(target, str(tmp_path))


def new_name() -> str:
    return f"checked_{uuid.uuid4().hex[:12]}"


def stage(target: NumberTable, *numbers: int, epoch: int = 1) -> Handle:
    handle: Handle = json.loads(json.dumps(target.sink().stage(transaction(target, epoch), number_rows(*numbers))))
    return handle


def transaction(target: NumberTable, epoch: int = 1) -> Transaction:
    return Transaction(target.table.replace("_", ""), "flights", "lake", epoch, 1, "a")


@pytest.mark.parametrize(
    "options",
    [
        {"table": ""},
        {"table": "a.b.c"},
        {"table": "a."},
        {"table": "n" * 64},
        {"schema": ""},
        {"connection": "postgresql://ann:secret@host/db"},
        {"merge": Merge(["n"], ["at"]), "checkpoint_column": "checkpoint"},
    ],
)
def test_definition_is_refused(options: dict[str, Any]) -> None:
    with raises(InvalidPipeline, "option-invalid") as refused:
        PostgresSink("lake", **{"table": "numbers", "connection": CONNECTION, **options})
    assert "secret" not in str(refused.value)


def test_table_is_in_a_schema(database: Postgres) -> None:
    schema = new_name()
    execute(database.port, f'CREATE SCHEMA "{schema}"')
    execute(database.port, f'CREATE TABLE "{schema}"."Of 100%" (n int)')
    [note, *_] = open_sink(PostgresSink("lake", f"{schema}.Of 100%", CONNECTION)).check()
    assert f"{schema}.Of 100%" in note


@pytest.mark.parametrize("name", ["no_such_table", "no_such_schema.numbers", "pg_catalog.pg_views"])
def test_missing_table_is_refused(database: Postgres, name: str) -> None:
    with raises(InvalidPipeline, "postgres-table-missing"):
        open_sink(PostgresSink("lake", name, CONNECTION)).check()
    with raises(InvalidPipeline, "postgres-table-missing"):
        open_sink(PostgresSink("lake", name, CONNECTION)).stage(transaction(NumberTable(0, "x")), number_rows(1))


@pytest.mark.parametrize(
    ("definition", "options", "why"),
    [
        ("n int, at int NOT NULL", {"merge": Merge(["n"], ["at"])}, "no unique index on n alone"),
        ("n int UNIQUE, at int NOT NULL", {"merge": Merge(["n"], ["at"])}, "'n' of merge is no column that is NOT"),
        ("n int PRIMARY KEY, at int", {"merge": Merge(["n"], ["at"])}, "'at' of merge"),
        ("n int, m int, at int NOT NULL, PRIMARY KEY (n, m)", {"merge": Merge(["n"], ["at"])}, "no unique index"),
        ("n int", {"checkpoint_column": "checkpoint"}, "'checkpoint' is no text column"),
        ("n int, checkpoint varchar(9)", {"checkpoint_column": "checkpoint"}, "'checkpoint' is no text column"),
        ("n int, address inet NOT NULL", {}, "'address' is inet"),
    ],
)
def test_unsuitable_table_is_refused(database: Postgres, definition: str, options: dict[str, Any], why: str) -> None:
    table = new_name()
    execute(database.port, f'CREATE TABLE "{table}" ({definition})')
    with raises(InvalidPipeline, "postgres-table-unsuitable") as refused:
        NumberTable(database.port, table, options).sink().check()
    assert why in refused.value.why


def test_rights_that_are_missing_are_named(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    target = marked_table(database.port, new_name())
    target.sink().check()
    role = new_name()
    execute(database.port, f'CREATE ROLE "{role}" LOGIN')
    execute(database.port, f'GRANT INSERT ON "{target.table}" TO "{role}"')
    execute(database.port, f'GRANT USAGE ON SCHEMA "{target.ledger_schema}" TO "{role}"')
    monkeypatch.setenv(*connection_variable(database.port, user=role))
    with raises(InvalidPipeline, "postgres-table-unsuitable") as refused:
        target.sink().check()
    assert "may not DELETE" in refused.value.why
    assert f"may not create tables in the schema '{target.ledger_schema}'" in refused.value.why
    with raises(NotCommitted, "postgres-stage-refused"):
        stage(target, 1)


def test_role_needs_these_rights_alone(
    database: Postgres, monkeypatch: pytest.MonkeyPatch, committer: Committer, target: NumberTable
) -> None:
    """It neither owns the table nor the schema, nor may it create schemas."""
    target.sink().check()
    role = new_name()
    execute(database.port, f'CREATE ROLE "{role}" LOGIN')
    execute(database.port, f'GRANT INSERT ON "{target.table}" TO "{role}"')
    execute(database.port, f'GRANT USAGE, CREATE ON SCHEMA "{target.ledger_schema}" TO "{role}"')
    execute(database.port, f'GRANT SELECT, INSERT, UPDATE ON "{target.ledger_schema}".ledger TO "{role}"')
    monkeypatch.setenv(*connection_variable(database.port, user=role))
    target.sink().check()
    committer.commit(committer.rehearse(stage(target, 1, 2), 1), 1)
    assert target.published() == [1, 2]


def test_setting_that_libpq_lacks_is_refused(target: NumberTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*connection_variable(target.port, schema="shop", password=SECRET))
    with raises(InvalidPipeline, "postgres-connection-invalid", match="'schema'") as refused:
        target.sink()
    assert SECRET not in str(refused.value)


def test_server_that_does_not_answer(target: NumberTable, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = stage(target, 1)
    monkeypatch.setenv(*connection_variable(1, password=SECRET))
    with raises(OutcomeUnknown, "postgres-unreachable") as refused:
        Committer(target, "").target.sink().fence(handle, 1)
    assert SECRET not in str(refused.value)


def test_password_is_shown_nowhere(target: NumberTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*connection_variable(target.port, password=SECRET))
    sink = target.sink()
    handle = sink.stage(transaction(target), number_rows(1))
    assert SECRET not in json.dumps(handle) + repr(sink._sink._server) + repr(target.config())  # type: ignore[attr-defined]
    assert SECRET not in "".join(sink.check() + sink.evidence(handle))


# ---- between the stage and the commit


def test_key_that_is_taken_is_found_before_the_decision(database: Postgres, tmp_path: Path) -> None:
    target = plain_table(database.port, new_name())
    target.query(f'ALTER TABLE "{target.table}" ADD PRIMARY KEY (n)')
    committer, handle = Committer(target, str(tmp_path)), stage(target, 1, 2)
    target.query(f'INSERT INTO "{target.table}" VALUES (2)')
    with raises(ActionNeeded, "postgres-publication-refused"):
        committer.rehearse(handle, 1)
    check_refusal_by_a_row(target, committer, handle)


def check_refusal_by_a_row(target: NumberTable, committer: Committer, handle: Handle) -> None:
    """The commit of 1 and 2 is refused as long as another's 2 is there."""
    with raises(CannotPublish, "postgres-publication-refused"):
        committer.commit(handle, 1)
    assert target.published() == [2]
    target.query(f'DELETE FROM "{target.table}"')
    assert not committer.commit(handle, 1).already
    assert target.published() == [1, 2]


def test_deferred_constraint_is_found_before_the_decision(database: Postgres, tmp_path: Path) -> None:
    """It is checked at the end of a transaction, which a rehearsal never reaches."""
    parent, target = plain_table(database.port, new_name()), plain_table(database.port, new_name())
    execute(database.port, f'ALTER TABLE "{parent.table}" ADD PRIMARY KEY (n)')
    target.query(
        f'ALTER TABLE "{target.table}" ADD FOREIGN KEY (n) REFERENCES "{parent.table}" DEFERRABLE INITIALLY DEFERRED'
    )
    with raises(ActionNeeded, "postgres-publication-refused"):
        Committer(target, str(tmp_path)).rehearse(stage(target, 1), 1)


def test_deferred_constraint_refuses_at_the_end_of_the_commit(database: Postgres, tmp_path: Path) -> None:
    """Another writer may be faster than the decision. The server has answered: nothing is published."""
    target = plain_table(database.port, new_name())
    target.query(f'ALTER TABLE "{target.table}" ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED')
    target.query(f'INSERT INTO "{target.table}" VALUES (2)')
    committer, handle = Committer(target, str(tmp_path)), stage(target, 1, 2)
    check_refusal_by_a_row(target, committer, handle)


def test_staged_rows_that_are_gone_are_named(target: NumberTable, committer: Committer) -> None:
    handle = stage(target, 1, 2)
    target.sink().discard(transaction(target), handle)
    with raises(CannotPublish, "postgres-staged-rows-missing", match="is not there"):
        committer.commit(handle, 1)


def test_column_of_another_type_is_never_converted(database: Postgres, tmp_path: Path) -> None:
    """PostgreSQL would round a numeric without an error."""
    target = plain_table(database.port, new_name())
    handle = stage(target, 1)
    target.query(f'ALTER TABLE "{target.table}" ALTER n TYPE numeric(3,0)')
    with raises(CannotPublish, "postgres-table-changed", match="integer"):
        Committer(target, str(tmp_path)).commit(handle, 1)
    assert target.published() == []


def test_lock_of_another_ends_the_commit(
    target: NumberTable, committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = stage(target, 1, 2)
    monkeypatch.setenv(*connection_variable(target.port, options="-c lock_timeout=50ms"))
    with psycopg.connect(host="127.0.0.1", port=target.port, dbname="postgres", user="airflow") as other:
        other.execute(f'LOCK TABLE "{target.table}"')
        with raises(OutcomeUnknown, "postgres-locked"):
            committer.commit(handle, 1)
        with raises(OutcomeUnknown, "postgres-locked"):
            committer.rehearse(handle, 1)
    assert target.published() == []
    assert not committer.commit(handle, 1).already
    assert target.published() == [1, 2]


def test_lock_of_another_ends_the_commit_where_nobody_set_a_limit(
    target: NumberTable, committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = stage(target, 1)
    monkeypatch.setattr(server, "TIMEOUT", "50ms")  # a minute, otherwise
    with psycopg.connect(host="127.0.0.1", port=target.port, dbname="postgres", user="airflow") as other:
        other.execute(f'LOCK TABLE "{target.table}"')
        with raises(OutcomeUnknown, "postgres-locked"):
            committer.commit(handle, 1)
    assert not committer.commit(handle, 1).already


def test_handle_of_another_table_is_refused(target: NumberTable, committer: Committer) -> None:
    handle = stage(target, 1)
    others = [{**handle, "target": "public.other"}]
    others.append({**handle, "tables": [{"name": f"s_{'0' * 24}_{'0' * 12}", "rows": 1}]})
    for other in others:
        with raises(CannotPublish, "postgres-handle-foreign"):
            committer.commit(other, 1)


def test_rows_without_a_mark_are_not_taken_back(database: Postgres) -> None:
    for target in (plain_table(database.port, new_name()), merged_table(database.port, new_name())):
        old = {"txn": "a-b-c-1-1-a", "target": f"public.{target.table}"}
        sink = target.sink()._sink  # type: ignore[attr-defined]
        with raises(InvalidPipeline, "postgres-rows-not-marked"):
            sink.check_replace(old)
