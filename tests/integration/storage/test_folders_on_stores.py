"""Folders of transactions on object stores: whatever their path is called, and whatever the store answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pyarrow as pa
import pytest
from codes import raises
from integration.faults.s3_proxy import Always, Fault, proxy
from integration.projects.light_stores import Reader
from integration.services.store_server import StoreServer
from integration.services.stores import MOST, running

from onceonly.checkpoint.model import Transaction
from onceonly.checkpoint.transaction_names import list_transactions
from onceonly.errors import InvalidPipeline
from onceonly.sinks.kafka import spool
from onceonly.storage.folders import Folders, arrow_file_system
from onceonly.storage.objects import Objects

pytestmark = pytest.mark.integration
numbers = count()
TXN = Transaction("0123456789abcdef0123456789abcdef", "flights", "lake", 1, 1, "nonce1")
STRANGE = ("a b+c", "p%20q", "h#1", "q?x", "ü€", "~(1)'!,;@&=")


@pytest.fixture(scope="module", params=MOST)
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with running(request, request.param) as made:
        yield made


@pytest.fixture
def root(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return store.uri(f"folders-{next(numbers)}")


@pytest.mark.parametrize("name", STRANGE)
def test_a_folder_is_the_one_that_its_path_names_and_no_other(store: StoreServer, root: str, name: str) -> None:
    shown, here = Reader(store.uri("").rstrip("/")), root.rpartition("/")[2]
    beside = [f"{here}/{name[0]}/{TXN.name}/kept", f"{here}/{name[0]}/kept", f"{here}/p q/{TXN.name}/kept"]
    for key in beside:
        shown.put(key, "another's")
    folders = Folders(f"{root}/{name}")
    assert not folders.has(TXN.name)
    file = spool.SpoolFile(folders.path(TXN.name), 1)
    file.write(pa.RecordBatch.from_pylist([{"topic": "t", "partition": 0, "timestamp": 7}], spool.SPOOL_SCHEMA))
    file.close()
    assert f"{here}/{name}/{TXN.name}/{file.name}" in shown.keys(here)
    assert [row["timestamp"] for b in spool.read(folders.path(TXN.name), file.name) for row in b.to_pylist()] == [7]
    assert not folders.has(f"{TXN.name}/_published") and folders.create_mark(f"{TXN.name}/_published", "{}")
    assert folders.has(f"{TXN.name}/_published") and folders.read_text(f"{TXN.name}/_published") == "{}"
    assert list_transactions(folders.list_names(), TXN.prefix) == [TXN]
    folders.delete(TXN.name)
    assert not folders.has(TXN.name) and list_transactions(folders.list_names(), TXN.prefix) == []
    assert [key for key in shown.keys(here) if key.rpartition("/")[2] == "kept"] == sorted(beside)


@pytest.mark.parametrize("name", ["h#1", "q?x", "h#", "q?"])
def test_objects_are_not_looked_for_where_delta_rs_would_look_elsewhere(root: str, name: str) -> None:
    with raises(InvalidPipeline, "uri-invalid"):
        Objects(f"{root}/{name}")


def test_what_is_not_answered_is_no_missing_file(
    store: StoreServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = Folders(root)
    files, path = arrow_file_system(folders.path("mark"))
    with files.open_output_stream(path) as out:
        out.write(b"here")
    with proxy(store) as between:
        for name, value in between.environment.items():
            monkeypatch.setenv(name, value)
        between.let(Always(Fault.DENIED))
        for ask in (folders.has, folders.read_text, lambda name: list(spool.read(root, name))):
            with pytest.raises(OSError) as told:
                ask("mark")
            assert not isinstance(told.value, FileNotFoundError)
        with pytest.raises(OSError):
            folders.list_names()
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    assert folders.read_text("mark") == "here"
    with pytest.raises(FileNotFoundError):
        folders.read_text("missing")
