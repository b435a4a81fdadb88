"""A state table of an older Onceonly, one Delta table for all pipelines, becomes one table for each."""

import shutil
from pathlib import Path

import pytest
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from onceonly.checkpoint.model import Event, Row, State
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.statetable import location, migration, row_format
from onceonly.statetable.arrow_format import to_arrow
from onceonly.statetable.table import StateTable
from onceonly.statetable.view import View

pytestmark = pytest.mark.slow
BODY = {"definition": {"name": "flights", "sinks": []}, "ranges": []}


@pytest.fixture
def uri(tmp_path) -> str:
    return str(tmp_path / "state")


@pytest.fixture
def rows(tmp_path) -> dict[str, list[Row]]:
    """Of a pipeline that has an open checkpoint, of one that has settled ones, and of one with a single row."""
    table = StateTable.make(str(tmp_path / "elsewhere"))
    write(table, "flights", Event.PLANNED, settled=3)
    write(table, "trains", Event.EMPTY, settled=8)
    write(table, "ships", Event.EMPTY, settled=0)
    return {name: table.history(name) for name in table.pipelines()}


def write(table: StateTable, name: str, last: Event, settled: int) -> View:
    view = table.view(name)
    for _ in range(settled):
        view = table.append(view, view.row(view.head.epoch + 1, Event.EMPTY, 0, owner="run", body=BODY))
    return table.append(view, view.row(view.head.epoch + 1, last, 0, owner="run", body=BODY))


@pytest.fixture
def old(uri, rows) -> str:
    """As the older version has written it."""
    configuration = {"delta.appendOnly": "true", location.FORMAT_KEY: "2", location.ID: "an-id", location.PLACE: ""}
    schema = Schema.from_json(row_format.schema_json())
    named = {"configuration": configuration, "partition_by": ["pipeline"], "raise_if_key_not_exists": False}
    DeltaTable.create(uri, schema, **named)
    DeltaTable(uri).alter.set_table_properties({location.PLACE: location.place(uri)}, raise_if_not_exists=False)
    for each in sorted((row for found in rows.values() for row in found), key=lambda row: row.seq):
        append(DeltaTable(uri), each)
    return uri


def append(table: DeltaTable, row: Row) -> None:
    stamp = CommitProperties(app_transactions=[Transaction(row.pipeline, row.seq)])
    write_deltalake(
        table, to_arrow([row_format.record(row)]), mode="append", partition_by=["pipeline"], commit_properties=stamp
    )


def test_every_row_is_carried_over_and_the_pipelines_go_on(old, rows):
    assert migration.migrate(old) == {"flights": 4, "ships": 1, "trains": 9}
    table = StateTable(old)
    assert table.id == "an-id"
    assert {name: table.history(name) for name in table.pipelines()} == rows
    assert [checkpoint.state for checkpoint in table.view("flights").open] == [State.PLANNED]
    view = table.view("flights")
    for event in (Event.ABORTING, Event.ABORTED):
        view = table.append(view, view.row(4, event, 0))
    assert [row.seq for row in StateTable(old).history("flights")] == [1, 2, 3, 4, 5, 6]
    assert len(DeltaTable(location.folder(old, "flights")).to_pyarrow_table()) == 6


def test_a_second_time_there_is_nothing_to_do(old):
    migration.migrate(old)
    view = StateTable(old).view("ships")
    StateTable(old).append(view, view.row(2, Event.EMPTY, 0, owner="run", body=BODY))
    assert migration.migrate(old) == {}
    assert StateTable(old).view("ships").head.seq == 2


def test_until_then_it_is_refused_with_the_command(old):
    with pytest.raises(InvalidPipeline, match=r"by an older Onceonly(.|\n)*onceonly state migrate"):
        StateTable(old)


def test_what_was_interrupted_begins_again(old, rows, monkeypatch):
    real, copied = migration._copy, []

    def dies(table, uri, name):
        copied.append(real(table, uri, name))
        if len(copied) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(migration, "_copy", dies)
    with pytest.raises(KeyboardInterrupt):
        migration.migrate(old)
    with pytest.raises(InvalidPipeline, match="by an older Onceonly"):
        StateTable(old)
    monkeypatch.undo()
    migration.migrate(old)
    assert {name: StateTable(old).history(name) for name in rows} == rows


def test_a_row_that_an_older_version_writes_meanwhile_is_carried_over(old, rows, monkeypatch):
    real, late = migration._copy, []

    def overtaken(table, uri, name):
        copied = real(table, uri, name)
        if name == "trains" and not late:
            late.append(following(rows["ships"][-1]))
            append(DeltaTable(uri), late[0])
        return copied

    monkeypatch.setattr(migration, "_copy", overtaken)
    assert migration.migrate(old)["ships"] == 2
    assert StateTable(old).history("ships") == [*rows["ships"], *late]


def following(row: Row) -> Row:
    head = {**row.head, "seq": row.seq + 1, "epoch": row.epoch + 1, "latest": row.seq + 1}
    return Row(row.pipeline, row.seq + 1, row.epoch + 1, Event.EMPTY, 0, "run", body=BODY, head=head)


def test_a_writer_of_the_older_version_cannot_write_afterwards(old, rows):
    stale = DeltaTable(old)
    migration.migrate(old)
    with pytest.raises(DeltaError, match=r"(?i)metadata"):
        append(stale, following(rows["ships"][-1]))


def test_a_damaged_table_is_not_converted(old):
    DeltaTable(old).alter.set_table_properties({"delta.appendOnly": "false"}, raise_if_not_exists=False)
    DeltaTable(old).delete("pipeline = 'trains' AND seq = 3")
    with pytest.raises(OutcomeUnknown, match=r"trains: the state table at .* is damaged"):
        migration.migrate(old)
    with pytest.raises(InvalidPipeline, match="by an older Onceonly"):
        StateTable(old)


def test_a_copy_is_not_converted_before_it_is_declared(old, tmp_path):
    Path(old).rename(tmp_path / "moved")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "moved", copy)
    with pytest.raises(InvalidPipeline, match="is a copy, or was moved"):
        migration.migrate(str(copy))
    with pytest.raises(InvalidPipeline, match="there is no state table"):
        migration.migrate(str(tmp_path / "nothing"))
