"""Files on an object store: what does not depend on how it gives a file its final name.

There are no folders. That of a transaction exists as long as a small object in it (`FOLDER_MARKER`), which is its sign.
What a store has acknowledged is durable, so nothing is synced.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from io import UnsupportedOperation
from typing import NamedTuple, Protocol

from onceonly.documentation import name_page
from onceonly.errors import NotCommitted
from onceonly.storage.interface import (
    SINK_LOG,
    FileSystem,
    Fingerprint,
    PlannedMove,
    PreparedFile,
    UnsuitableTarget,
    is_hidden,
    probe_in,
    query_folder_error,
)
from onceonly.storage.own_paths import OwnPath

FOLDER_MARKER = ".folder"  # the object that is the sign of a transaction's folder
NONCE = "nonce"  # in a fingerprint: what the object's metadata has to say
MARK_KEY = "onceonly"  # of an object's metadata: the value says which file it is


class StoredObject(NamedTuple):
    """An object: its size, its version, and the mark in its metadata; empty if it has none."""

    bytes: int
    etag: str
    mark: str


class Store(Protocol):
    """Requests to one bucket, with the errors of a local file system. Paths are URIs below `root`.

    FileNotFoundError: no such object or bucket. FileExistsError: the condition was not met. PermissionError: it is not
    allowed, or there are no credentials. Any other OSError: the effect is not known.
    """

    name: str
    root: str

    @property
    def endpoint(self) -> str: ...

    def find(self, uri: str) -> StoredObject | None: ...

    def get(self, uri: str) -> bytes: ...

    def put(self, uri: str, content: bytes) -> None: ...

    def list_names(self, folder: str) -> Iterator[str]:
        """Yield the names of all objects below a folder, relative to it; of what marks one, with a slash at the end."""

    def list_entries(self, folder: str, most: int | None = None) -> list[str]:
        """Return the names in a folder: of objects and of folders.

        Args:
            most: how many are enough.
        """

    def unlink(self, uris: Sequence[str]) -> None:
        """Delete these objects, as far as they exist."""


class UnmetCondition(OSError):
    """A condition of a copy was not met; which one, the answer does not say."""


class CopyingStore(Store, Protocol):
    server: str  # in errors: what names the server

    def copy(self, old: str, source: StoredObject, new: str, mark: str) -> None:
        """Copy an object whole, with that mark in place of its metadata; on the store's side.

        Args:
            source: the object as it was seen; another one is not copied.
        Raises:
            FileExistsError: the name is taken. It may be by this very copy, whose first answer was lost.
            FileNotFoundError: the object no longer exists, or is another one.
            UnmetCondition: one of both.
        """


class ObjectFiles(FileSystem):
    """Files of one store. Whoever extends it says how a file is moved."""

    server = "the connection"  # in errors: what may name another server

    def __init__(self, store: Store) -> None:
        self._store = store

    def check(self, target: str) -> None:
        """Refuse a target that cannot take files.

        Raises:
            UnsuitableTarget: also a store that gives one name to two files; that is tried once.
            NotCommitted: no response.
        """
        try:
            if self._store.list_entries(f"{target}/_delta_log", most=2):  # the first one may be what marks the folder
                raise UnsuitableTarget(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
            if self._store.list_entries(f"{target}/{SINK_LOG}", most=2):
                raise query_folder_error(target)
            if self.exists(target):
                raise UnsuitableTarget(f"{target} is not a folder.", "Choose another path.")
            self.try_out(target)
        except PermissionError as error:
            todo = f"Allow this login to list, read, write and delete there ({name_page('object-stores')})."
            raise UnsuitableTarget(f"{error}.", todo, code="target-not-writable") from error
        except FileNotFoundError as error:
            raise UnsuitableTarget(
                f"{error}.", "Create the bucket, or correct the path.", code="bucket-missing"
            ) from error
        except UnsupportedOperation as error:
            todo = f"Use a store with conditional writes ({name_page('object-stores')}), a disk, or HDFS."
            raise UnsuitableTarget(
                f"The store does not know a request: {error}.", todo, code="store-not-arbitrating"
            ) from error
        except OSError as error:
            raise NotCommitted(
                f"{target} cannot be reached.",
                f"{error}.",
                f"Start the server, or correct {self.server}. Nothing was published.",
                code="store-unreachable",
            ) from error

    def try_out(self, target: str) -> None:
        """Try whether the store honours conditions.

        Raises:
            UnsuitableTarget: two processes could publish other files under one name.
        """

    def is_same_folder(self, one: str, other: str) -> bool:
        return one == other

    def probe(self, folder: OwnPath, target: str) -> None:
        """Create the staging folder; `check` has tried what matters."""
        self.begin(folder)

    def begin(self, folder: OwnPath) -> None:
        self._store.put(f"{folder.path}/{FOLDER_MARKER}", b"")

    def has_begun(self, folder: OwnPath) -> bool:
        return self.exists(f"{folder.path}/{FOLDER_MARKER}")

    def check_staged(self, old: OwnPath, ready: PreparedFile) -> None:
        """Check that the staged object has the version of which its upload or its copy is made.

        It has to be there even if its upload is complete but for the last step: uploads expire.
        """
        staged = self._store.find(old.path)
        version = ready.upload.source if ready.upload else ""
        if staged is None or staged.bytes != ready.fingerprint.bytes or (version and staged.etag != version):
            raise FileNotFoundError(f"{old.path} is not the object that was staged")

    def check_names(self, folder: OwnPath, files: Collection[PlannedMove], target: str, text: str) -> None:
        """Write a small object into the staged folder and into the target, and remove both."""
        try:
            for probe in (folder.join(f".{uuid.uuid4().hex}"), probe_in(target, "", folder)):
                self.write(probe.path, text)
                self.remove(probe)
        except OSError as error:
            if refusal := self.find_refusal(error):
                raise refusal from error
            raise

    def find_refusal(self, error: OSError) -> UnsuitableTarget | None:
        if not isinstance(error, PermissionError):
            return None
        todo = f"Allow this login to list, read, write and delete there ({name_page('object-stores')})."
        return UnsuitableTarget(f"{error}.", todo, code="target-not-writable")

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        """Rename file by file: repeating it continues where it ended."""
        for name in list(self._store.list_names(old.path)):
            if name and not name.endswith("/"):
                self._finish_move(old.join(name), new.join(name))

    def _finish_move(self, old: OwnPath, new: OwnPath) -> None:
        """Move a file, or finish a move that a process began before it died.

        The new object exists before the old one is removed; another process may do the same at the same time.
        """
        try:
            with suppress(FileExistsError):
                self.move(old, new.path)
            self.remove(old)
        except FileNotFoundError:
            if self.exists(old.path):
                raise

    def read_fingerprint(self, path: str) -> Fingerprint:
        obj = self._store.find(path)
        if obj is None:
            raise FileNotFoundError(path)
        return Fingerprint(obj.bytes, NONCE, obj.mark)

    def exists(self, path: str) -> bool:
        return self._store.find(path) is not None

    def find_size(self, path: str) -> int | None:
        obj = self._store.find(path)
        return obj.bytes if obj else None

    def read(self, path: str) -> str:
        return self._store.get(path).decode()

    def write(self, path: str, text: str) -> None:
        self._store.put(path, text.encode())

    def make_folder(self, folder: str, root: str) -> None:
        return

    def sync_names(self, folder: str) -> None:
        return

    def make_durable(self, folder: str) -> None:
        return

    def list_visible(self, folder: str) -> Iterator[str]:
        for name in self._store.list_names(folder):
            if name and not name.endswith("/") and not any(map(is_hidden, name.split("/"))):
                yield name

    def list_names(self, folder: str) -> list[str]:
        return self._store.list_entries(folder)

    def remove(self, file: OwnPath) -> None:
        self._store.unlink([file.path])

    def remove_empty(self, folder: str) -> None:
        return

    def delete(self, folder: OwnPath) -> None:
        self._store.unlink([f"{folder.path}/{name}" for name in self._store.list_names(folder.path)])
