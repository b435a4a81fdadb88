"""What the trials make of a store, by what their writers are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import pytest
from codes import raises

from onceonly.storage import arbitration
from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.object_files import StoredObject

TARGET = "mem://lake/delays"


class Memory:
    """A store that gives a name to the first who asks."""

    name, root, endpoint = "lake", "mem://lake", "here"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.one = Lock()

    def find(self, uri: str) -> StoredObject | None:
        content, mark = self.objects.get(uri, (None, ""))
        return None if content is None else StoredObject(len(content), "1", mark)

    def get(self, uri: str) -> bytes:
        if uri not in self.objects:
            raise FileNotFoundError(uri)
        return self.objects[uri][0]

    def put(self, uri: str, content: bytes) -> None:
        self.objects[uri] = content, ""

    def list_names(self, folder: str) -> Iterator[str]:
        return iter([uri.removeprefix(f"{folder}/") for uri in self.objects if uri.startswith(f"{folder}/")])

    def list_entries(self, folder: str, most: int | None = None) -> list[str]:
        return list(self.list_names(folder))

    def unlink(self, uris: Sequence[str]) -> None:
        for uri in uris:
            self.objects.pop(uri, None)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Memory:
    monkeypatch.setattr(arbitration, "_buckets_that_passed", set())
    return Memory()


def copying(store: Memory, lost: str = "none") -> arbitration.BeginPublishing:
    """`lost`: for names that end so, the answer to the one that got it is lost, and the client asked once more."""

    def begin(source: str, found: StoredObject, new: str, mark: str) -> Callable[[], bool]:
        def copy() -> bool:
            with store.one:
                if source not in store.objects:
                    raise FileNotFoundError(source)
                if new in store.objects:
                    return False
                store.objects[new] = store.objects[source][0], mark
                return not new.endswith(lost)

        return copy

    return begin


def test_a_lost_answer_does_not_make_a_store_unsuitable(store: Memory) -> None:
    arbitration.require_one_publisher(store, TARGET, copying(store, "/0"))
    assert list(store.objects) == ["mem://lake/.delays.staged/.tried"]


def test_where_no_answer_comes_nothing_is_known(store: Memory) -> None:
    with pytest.raises(OSError, match="none succeeded"):
        arbitration.require_one_publisher(store, TARGET, copying(store, ""))
    assert store.objects == {}


def test_an_object_of_somebody_else_makes_a_store_unsuitable(store: Memory) -> None:
    def begin(source: str, found: StoredObject, new: str, mark: str) -> Callable[[], bool]:
        store.objects[new] = b"tried", "another's"
        return lambda: False

    with raises(UnsuitableTarget, "store-not-arbitrating", match="0 of them were told"):
        arbitration.require_one_publisher(store, TARGET, begin)


def test_what_was_ended_may_not_get_its_name(store: Memory) -> None:
    def begin(source: str, found: StoredObject, new: str, mark: str) -> Callable[[], bool]:
        kept = {**store.objects}

        def copy() -> bool:
            store.objects.setdefault(source, kept[source])
            return copying(store)(source, found, new, mark)()

        return copy

    with raises(UnsuitableTarget, "store-not-arbitrating"):
        arbitration.require_one_publisher(store, TARGET, begin)
    assert not [uri for uri in store.objects if uri.endswith("/late")]


# ---- puts: a store that a process has found to arbitrate is not tried again; another one under the same name is


@pytest.mark.parametrize(
    ("uri", "setting"),
    [
        ("s3://lake/state", "AWS_ENDPOINT_URL"),
        ("az://lake/state", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://lake/state", "AZURITE_BLOB_STORAGE_URL"),
        ("gs://lake/state", "GOOGLE_SERVICE_ACCOUNT"),
    ],
)
def test_each_store_is_tried_once(monkeypatch, uri, setting):
    tried = []
    monkeypatch.setattr(arbitration, "_stores_that_passed", set())
    monkeypatch.setattr(arbitration, "_count_winners", lambda trial: tried.append(trial) or 1)
    for where in ("here", "here", "there"):
        monkeypatch.setenv(setting, where)
        arbitration.require_put_if_absent(uri)
    assert len(tried) == 2
