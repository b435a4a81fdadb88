"""What the file sink does where the store itself copies files to their names: Azure and Google."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from codes import raises
from integration.faults.s3_proxy import proxy
from integration.projects.store_lake import StoreLake, transaction
from integration.services import azurite
from integration.services.store_server import StoreServer
from integration.services.stores import SERVERS, running

from onceonly.checkpoint.model import Handle
from onceonly.checkpoint.transaction_names import manifest_path
from onceonly.errors import CannotPublish, Fenced, InvalidPipeline, OutcomeUnknown
from onceonly.sinks.files.handle import staging_of
from onceonly.sinks.files.sink import FileWriter
from onceonly.storage import arbitration, manifests
from onceonly.storage.copies import CopiedFiles
from onceonly.storage.object_files import FOLDER_MARKER, UnmetCondition
from onceonly.storage.own_paths import OwnPath
from onceonly.testing.fakes import FakeReceipts

pytestmark = pytest.mark.integration
numbers = count()


@dataclass(frozen=True)
class Lake(StoreLake):
    def listed(self) -> list[int]:
        return sorted(manifests.dataset(self.uri).to_table()["n"].to_pylist()) if manifests.files(self.uri) else []

    def staged_key(self, handle: Handle, number: int = 0) -> str:
        return f"{self.name}/.lake.staged/{transaction().name}/data/{handle['files'][number]['staged']}"


@pytest.fixture(scope="module", params=[name for name in SERVERS if name != "s3"])
def store(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    with running(request, request.param) as made:
        yield made


@pytest.fixture
def lake(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Lake:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    return Lake(store.uri("").rstrip("/"), f"copied-{next(numbers)}")


def hanging(lake: Lake, others: Callable[[], Any], of: str) -> FileWriter:
    """Of a process that hangs before it lets the store copy such a file, and meanwhile others do what they do."""
    sink = lake.sink
    store, waiting = sink._file_system._store, [others]  # type: ignore[attr-defined]
    copy = store.copy

    def late(old: str, found: Any, new: str, mark: str) -> None:
        if of in new and waiting:
            waiting.pop()()
        copy(old, found, new, mark)

    store.copy = late
    return sink


@pytest.mark.parametrize("of", [".jsonl", ".manifest"])
def test_who_wakes_up_after_its_rows_were_replaced_publishes_nothing(lake: Lake, of: str) -> None:
    """The names of its files and of its manifest are free again by then."""
    handle = lake.stage(1, 1, 2)

    def others() -> None:
        lake.commit(handle)
        lake.commit({**lake.stage(2, 3, 4), "replaces": {"manifest": handle["manifest"], "files": handle["files"]}}, 2)

    with pytest.raises((CannotPublish, OutcomeUnknown)):
        hanging(lake, others, of).commit(handle, 1, FakeReceipts(Path("unused")))
    assert lake.numbers() == lake.listed() == [3, 4]
    assert manifest_path(transaction(1)) not in str(lake.shown.keys(lake.name))


@pytest.mark.parametrize("of", [".jsonl", ".manifest"])
def test_who_wakes_up_after_it_was_given_up_publishes_nothing(lake: Lake, of: str) -> None:
    handle = lake.stage(1, 1, 2)
    with raises(Fenced, "sink-given-up", match="given up"):
        hanging(lake, lambda: lake.sink.fence(handle, 1), of).commit(handle, 1, FakeReceipts(Path("unused")))
    assert lake.numbers() == lake.listed() == []
    kept = [key for key in lake.shown.keys(f"{lake.name}/.lake.staged/") if "/given-up/" in key]
    assert len(kept) == 2, "the rows are kept"


def test_a_staged_file_that_was_changed_is_not_published(lake: Lake) -> None:
    handle = lake.stage(1, 1, 2)
    lake.shown.put(lake.staged_key(handle), '{"n": 7}\n')
    with raises(CannotPublish, "staged-files-missing", match="a staged file no longer exists"):
        lake.commit(handle)
    assert lake.listed() == [] and 7 not in lake.numbers()


def test_a_staged_file_that_is_changed_before_the_store_copies_it_is_not_published(lake: Lake) -> None:
    handle = lake.stage(1, 1)
    with raises(CannotPublish, "staged-files-missing", match="a staged file no longer exists"):
        hanging(lake, lambda: lake.shown.put(lake.staged_key(handle), '{"n": 7}\n'), ".jsonl").commit(
            handle, 1, FakeReceipts(Path("unused"))
        )
    assert lake.numbers() == []


def test_a_name_that_is_free_again_after_a_refusal_is_no_missing_file(lake: Lake) -> None:
    """It was taken when the store answered: asking again is right, and nobody has to resolve anything."""
    handle, sink = lake.stage(1, 1), lake.sink
    lake.shown.put(lake.key(handle), "another's")
    store = sink._file_system._store  # type: ignore[attr-defined]
    ask = store._ask

    def freed(uri: str, request: Any) -> Any:
        try:
            return ask(uri, request)
        finally:
            published = uri.endswith(".jsonl") and "/.lake.staged/" not in uri
            if published and lake.key(handle) in lake.shown.keys(lake.name):
                store._ask = ask
                lake.shown.delete(lake.key(handle))

    store._ask = freed
    with suppress(OutcomeUnknown):  # or it has asked again by itself
        sink.commit(handle, 1, FakeReceipts(Path("unused")))
    lake.commit(handle)
    assert lake.numbers() == lake.listed() == [1]


def test_a_file_of_another_with_such_a_name_stays(lake: Lake) -> None:
    handle = lake.stage(1, 1, 2)
    lake.shown.put(lake.key(handle), "another's")
    with raises(CannotPublish, "name-taken", match="another file already has the name"):
        lake.commit(handle)
    assert lake.listed() == [] and lake.shown.text(lake.key(handle)) == "another's"
    lake.shown.delete(lake.key(handle))
    assert not lake.commit(handle).already and lake.numbers() == lake.listed() == [1, 2]


def test_a_manifest_is_written_only_beside_a_transaction_that_is_there(lake: Lake) -> None:
    handle = lake.stage(1, 1)
    sink = lake.sink
    lake.sink.discard(transaction(), None)
    folder = OwnPath(staging_of(sink._target), transaction().name)
    with pytest.raises(FileNotFoundError):
        sink._file_system.create(f"{sink._target}/{handle['manifest']}", "{}", folder)
    assert lake.shown.keys(f"{lake.name}/lake") == []
    assert [key for key in lake.shown.keys(f"{lake.name}/.lake") if not key.endswith("/.tried")] == []


def test_a_folder_that_is_removed_while_a_manifest_is_written_takes_it_along(lake: Lake) -> None:
    """Its sign goes before anything is listed: so what is written later is either found, or finds no sign."""
    lake.stage(1, 1)
    on = lake.sink._file_system
    folder = OwnPath(staging_of(lake.sink._target), transaction().name)
    seen: list[bool] = []
    list_names = on._store.list_names  # type: ignore[attr-defined]

    def listing(path: str) -> Any:
        seen.append(on.exists(f"{path}/{FOLDER_MARKER}"))
        return list_names(path)

    on._store.list_names = listing  # type: ignore[attr-defined]
    on.delete(folder)
    assert seen == [False]


def test_a_store_that_gives_one_name_to_two_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a client whose condition the store does not see."""
    monkeypatch.setattr(arbitration, "_buckets_that_passed", set())
    sink = lake.sink
    store = sink._file_system._store  # type: ignore[attr-defined]
    copy = store.copy

    def unconditional(old: str, found: Any, new: str, mark: str) -> None:
        while True:
            store.unlink([new])
            try:
                return copy(old, found, new, mark)
            except (FileExistsError, UnmetCondition):  # another writer came between; Google does not say which it was
                continue

    store.copy = unconditional
    with raises(InvalidPipeline, "store-not-arbitrating", match="of them were told that they succeeded"):
        sink.check()
    assert lake.sink.check() == [f"lake: moves json files to {sink._target}"]


@pytest.mark.parametrize("how", [azurite.Late, azurite.Failing])
def test_a_copy_that_azure_makes_later_is_waited_for(
    store: StoreServer, lake: Lake, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    if store.scheme != "az":
        pytest.skip("Google copies at once")
    handle = lake.stage(1, 1, 2)
    monkeypatch.setattr(store, "handler", how)
    with proxy(store) as between:
        for name, value in between.environment.items():
            monkeypatch.setenv(name, value)
        if how is azurite.Late:
            assert not lake.commit(handle).already
        else:
            with raises(OutcomeUnknown, "no-answer", match="publishing again is safe"):
                lake.commit(handle)
            assert lake.numbers() == [], "what is left of it is removed"
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    lake.commit(handle)
    assert lake.numbers() == lake.listed() == [1, 2]


@pytest.mark.parametrize("how", [azurite.Late, azurite.Failing])
def test_who_waits_for_a_copy_takes_nothing_from_another_that_was_faster(
    store: StoreServer, lake: Lake, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    """What it waited for was removed meanwhile, and another commit has published the file under that name."""
    if store.scheme != "az":
        pytest.skip("Google copies at once")
    handle = lake.stage(1, 1)
    monkeypatch.setattr(store, "handler", how)
    with proxy(store) as between:
        sink = by(lake, between.environment, monkeypatch)
        waiting = sink._file_system._store  # type: ignore[attr-defined]
        ask = waiting._ask

        def late(uri: str, request: Any) -> Any:
            """The other one is faster than the first look at the copy, or than its removal."""
            first = how is azurite.Late and uri.endswith(".jsonl") and "/.lake.staged/" not in uri
            if (removes(request) or first) and lake.numbers() == [1] and not manifests.files(lake.uri):
                waiting._ask = ask
                direct(store, monkeypatch)
                lake.shown.delete(lake.key(handle))
                lake.commit(handle)
                by(lake, between.environment, monkeypatch)
            return ask(uri, request)

        waiting._ask = late
        assert sink.commit(handle, 1, FakeReceipts(Path("unused"))).already
    direct(store, monkeypatch)
    assert lake.numbers() == lake.listed() == [1]


def removes(request: Any) -> bool:
    return "delete_blob" in request.__code__.co_names


def by(lake: Lake, environment: Any, monkeypatch: pytest.MonkeyPatch) -> FileWriter:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return lake.sink


def direct(store: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


def test_each_name_of_a_place_is_the_same_folder(store: StoreServer, lake: Lake) -> None:
    if store.scheme != "az":
        pytest.skip("Google has one name")
    lake.commit(lake.stage(1, 1))
    target = lake.sink._target
    assert target.startswith("abfs://lake@") and isinstance(lake.sink._file_system, CopiedFiles)
    assert manifests.files(target) == manifests.files(lake.uri) != []
