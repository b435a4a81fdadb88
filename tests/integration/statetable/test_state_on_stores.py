"""The state table on object stores: what it promises on a disk, it promises there.

On those that this machine has: an S3 server, and emulators of Azure Blob Storage and Google Cloud Storage.
"""

import inspect
import os
import signal
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import count

import pytest
import unit.statetable.test_state_contract as contract
from codes import raises
from deltalake import DeltaTable
from integration.faults.s3_kills import dies
from integration.faults.s3_proxy import FORK, Always, Fault, FirstCommit, OneChange, Proxy, Rule, proxy
from integration.projects.s3_writers import FEW, Rival, merge, merge_when, race, race_on, reach, write
from integration.services.store_server import BUCKET, StoreServer
from integration.services.stores import MOST, everywhere, running
from patience import PATIENCE
from unit.statetable.test_compaction import an_hour_passes

from onceonly.checkpoint.model import Event
from onceonly.errors import InvalidPipeline, OutcomeUnknown
from onceonly.statetable import location
from onceonly.statetable import table as state
from onceonly.statetable.table import Conflict, StateTable

pytestmark = pytest.mark.integration
survives_sigkill = pytest.mark.parametrize("store", ["s3"], indirect=True)  # while it writes
can_ignore_conditions = pytest.mark.parametrize(
    "store", ["s3", pytest.param("gcs", marks=pytest.mark.heavy)], indirect=True
)
numbers = count()


@pytest.fixture(scope="module", params=MOST)
def store(request) -> Iterator[StoreServer]:
    with running(request, request.param) as server:
        yield server


@pytest.fixture
def uri(store, monkeypatch) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.uri(f"state-{next(numbers)}")


@pytest.fixture
def table(uri) -> StateTable:
    return StateTable.make(uri)


@pytest.fixture
def between(store, table, monkeypatch) -> Iterator[Proxy]:
    """A proxy, through which everything goes from now on."""
    with proxy(store) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


# Every demand of the contract that can be made of any table.
globals().update(
    (name, test)
    for name, test in vars(contract).items()
    if name.startswith("test_") and not {"stored", "tmp_path"} & set(inspect.signature(test).parameters)
)


@everywhere
@pytest.mark.parametrize(("writers", "tries"), [(2, 3), pytest.param(16, 6, marks=pytest.mark.heavy)])
def test_of_many_writers_exactly_one_is_first_each_time(store, uri, table, writers, tries):
    with ProcessPoolExecutor(writers, FORK, reach, (store.environment,)) as pool:
        won = [id for found in pool.map(race, [uri] * writers, range(writers), [tries] * writers) for id in found]
    rows = table.history("flights")
    assert sorted(won) == sorted(row.id for row in rows)
    assert [row.seq for row in rows] == list(range(1, len(won) + 1))
    assert len(won) >= tries


def test_a_table_that_is_tidied_while_others_write_keeps_every_row(uri, table, monkeypatch):
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", 5)
    for _ in range(4):
        contract.pin(table, 4)
        stale = StateTable(uri).view("flights")
        table.tidy(table.view("flights"))
        StateTable(uri).append(stale, contract.planned(stale, start=stale.head.epoch, event=Event.EMPTY))
    assert [row.seq for row in table.history("flights")] == list(range(1, 21))
    assert [row.seq for row in StateTable(uri).history("flights")] == list(range(1, 21))


def merged_once(uri, table, monkeypatch) -> None:
    """Five rows in one file, which an hour ago took the place of others, and five more."""
    monkeypatch.setattr(state, "MAX_UNMERGED_ROWS", FEW)
    contract.pin(table, 5)
    table.tidy(table.view("flights"))
    an_hour_passes(location.table_folder(uri, "flights"))
    contract.pin(table, 5)


def check_merged(uri) -> None:
    """By delta-rs, and by processes that know nothing; whoever comes next merges what is left."""
    for rows in (10, 15):
        found = DeltaTable(location.table_folder(uri, "flights")).to_pyarrow_table()
        assert sorted(found["seq"].to_pylist()) == list(range(1, rows + 1))
        assert [row.seq for row in StateTable(uri).history("flights")] == list(range(1, rows + 1))
        if rows == 10:
            contract.pin(StateTable(uri), 5)
            merge("", uri)
    assert len(DeltaTable(location.table_folder(uri, "flights")).file_uris()) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.heavy) for number in (1, 3, 4, 5))])
def test_who_merges_may_die_at_any_change(uri, table, between, monkeypatch, number, after):
    """At the merged file, its entry, what it deletes, the log checkpoint, and what names that."""
    merged_once(uri, table, monkeypatch)
    assert dies(between, merge, "", uri, number, after)
    check_merged(uri)


@pytest.mark.parametrize("number", [2, *(pytest.param(number, marks=pytest.mark.heavy) for number in (1, 3, 4, 5))])
@pytest.mark.parametrize("what", [Fault.LOST, pytest.param(Fault.BUSY_AFTER, marks=pytest.mark.heavy)])
def test_any_answer_to_who_merges_may_be_lost(uri, table, between, monkeypatch, number, what):
    merged_once(uri, table, monkeypatch)
    between.let(OneChange(number, what))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # it may be told that it was not first
        merge("", uri)
    between.let(Rule())
    check_merged(uri)


def test_two_who_merge_at_once_lose_no_row(store, uri, table, monkeypatch):
    merged_once(uri, table, monkeypatch)
    go = FORK.Event()
    both = [FORK.Process(target=merge_when, args=(go, store.environment, uri)) for _ in range(2)]
    for process in both:
        process.start()
    go.set()
    for process in both:
        process.join(PATIENCE)
    assert [process.exitcode for process in both] == [0, 0]
    check_merged(uri)


def test_a_server_that_is_killed_leaves_each_row_written_or_not(store, uri, table):
    contract.pin(table, 3)
    view = table.view("flights")
    store.kill()
    try:
        with raises(OutcomeUnknown, "row-unknown") as refused:
            table.append(view, contract.planned(view, start=3, event=Event.EMPTY))
        assert len(str(refused.value).splitlines()) == 3
    finally:
        store.start()
    after = StateTable(uri).view("flights")
    assert after.head.seq == 3
    assert StateTable(uri).append(after, contract.planned(after, start=3, event=Event.EMPTY)).head.seq == 4


def test_a_writer_that_is_killed_leaves_each_row_written_or_not(store, uri, table):
    contract.pin(table, 1)
    child = FORK.Process(target=race_on, args=(uri, store.environment))
    child.start()
    while len(table.history("flights")) < 10:
        assert child.is_alive()
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(PATIENCE)
    rows = table.history("flights")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    view = table.view("flights")
    assert table.append(view, contract.planned(view, start=len(rows), event=Event.EMPTY)).head.seq == len(rows) + 1


@survives_sigkill
@pytest.mark.heavy
def test_writers_whose_server_is_killed_agree_with_the_log(store, uri, table):
    kills = 5
    with ProcessPoolExecutor(3, FORK, reach, (store.environment,)) as pool:
        told = [pool.submit(write, uri, writer, 10 * kills + 10) for writer in range(3)]
        for kill in range(kills):
            while table.view("flights").head.seq < 10 * kill + 5:
                assert not any(future.done() for future in told)
            store.kill()
            store.start()
        results = [future.result() for future in told]
    won, unknown = ({id for result in results for id in result[which]} for which in (0, 1))
    rows = StateTable(uri).history("flights")
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert won <= {row.id for row in rows} <= won | unknown


# ---- answers that are lost


@pytest.mark.parametrize("fault", [Fault.LOST_BEFORE, Fault.LOST, Fault.BUSY, Fault.BUSY_AFTER, Fault.HELD])
def test_a_row_lands_once_whatever_becomes_of_the_answer(store, table, between, monkeypatch, fault):
    if fault is Fault.HELD:
        monkeypatch.setenv(store.timeout, "3s")  # the client gives up; a slow one may do so at another request, too
    view = contract.pin(table, 2)
    between.let(FirstCommit(fault))
    row = contract.planned(view, start=2, event=Event.EMPTY)
    assert table.append(view, row).head.seq == 3
    assert [(each.seq, each.id == row.id) for each in table.history("flights")] == [(1, False), (2, False), (3, True)]


def test_where_another_writer_was_first_a_lost_answer_is_no_success(store, uri, table, between):
    view = contract.pin(table)
    between.let(Rival(uri, store.environment))
    with pytest.raises(Conflict):
        table.append(view, contract.planned(view, "late", start=1, event=Event.EMPTY))
    assert [row.owner for row in table.history("flights")] == ["run", "rival"]


def test_what_cannot_be_read_back_is_not_known(uri, table, between):
    view = contract.pin(table)
    between.let(FirstCommit(Fault.LOST, then=Fault.DENIED))
    row = contract.planned(view, start=1, event=Event.EMPTY)
    with raises(OutcomeUnknown, "row-unknown"):
        table.append(view, row)
    between.let(Rule())
    assert [row.id for row in StateTable(uri).history("flights")][1:] == [row.id]


# ---- a store that does not arbitrate


@can_ignore_conditions
def test_a_store_without_conditional_put_is_found_out_by_trying(store, uri, table, between):
    between.let(Always(Fault.UNCONDITIONAL))
    with raises(InvalidPipeline, "store-not-arbitrating") as refused:
        StateTable.make(f"{uri}-b")
    assert len(str(refused.value).splitlines()) == 3
    assert not list((store.data / BUCKET).glob(f"{uri.rpartition('/')[2]}-b/**/*.json"))


@can_ignore_conditions
def test_a_table_of_an_earlier_version_is_tried_before_it_is_planned_on(uri, table, between, monkeypatch):
    monkeypatch.setattr(location, "_place_properties", lambda uri: {location.PLACE: location.locate(uri)})
    StateTable.make(f"{uri}-b")
    location.check_writable(f"{uri}-b")
    monkeypatch.setattr("onceonly.storage.arbitration._stores_that_passed", set())
    between.let(Always(Fault.UNCONDITIONAL))
    with raises(InvalidPipeline, "store-not-arbitrating"):
        location.check_writable(f"{uri}-b")
    location.check_writable(uri)  # this one has it recorded


def test_a_store_that_was_tried_is_not_tried_again(uri, table, between):
    StateTable(uri)
    location.check_writable(uri)
    assert not [request for request in between.seen if request.changes]
