"""A storage as the product uses it: the calls of the state table's log, and those of a sink that publishes files.

Each place has a folder of its own on the storage, which `remove_folder` removes with everything in it.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.probe import folders, mounts
from onceonly.storage import durability, objects
from onceonly.storage.file_systems import open_file_system
from onceonly.storage.interface import FileSystem
from onceonly.storage.own_paths import OwnPath
from onceonly.storage.paths import (
    AZURE_SCHEMES,
    GOOGLE_SCHEMES,
    HDFS_PREFIX,
    S3_SCHEMES,
    AzureFolder,
    local_path,
    split_google_uri,
)

DISK, HDFS, S3, AZURE, GOOGLE = "a file system", "HDFS", "S3", "Azure Blob Storage", "Google Cloud Storage"
MAX_REMOVALS = 20  # of one folder
STAGING, PUBLISHED, ENTRIES = ".files.staged", "files", "entries"


class Place(ABC):
    """The folder of one probe.

    Args:
        uri: of the folder in which it is, as the user has named it.
        name: of the folder of the probe.
        files: the file system by which sinks publish.
        path: of `uri`, as that file system calls it.
    """

    kind: str
    has_overwrites = True  # Onceonly overwrites files there
    has_delta = True  # delta-rs writes tables there
    has_conditional_copies = False

    def __init__(self, uri: str, name: str, files: FileSystem, path: str) -> None:
        self.uri, self.name, self.files = uri.rstrip("/"), folders.require_name(name), files
        self.parent, self.root = path, f"{path}/{self.name}"
        self.staging, self.target = f"{self.root}/{STAGING}", f"{self.root}/{PUBLISHED}"

    @property
    def table_uri(self) -> str:
        """The folder for tables, as delta-rs calls it."""
        return f"{self.uri}/{self.name}/tables"

    def staged_path(self, transaction: str) -> OwnPath:
        return OwnPath(self.staging, transaction)

    def published_path(self, transaction: str) -> OwnPath:
        return OwnPath(self.target, transaction)

    @abstractmethod
    def begin(self) -> None:
        """Create the folder of the probe."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Create an entry. Raises FileExistsError: there is one."""

    @abstractmethod
    def write(self, name: str, content: bytes) -> None:
        """Write an entry, or overwrite it where `has_overwrites`."""

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    @abstractmethod
    def list_entries(self, after: str = "") -> dict[str, float]:
        """Return when each entry was changed by the storage's clock, by name; a store lists only those behind one."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove an entry, if it exists."""

    def copy_changed(self, source: str, change: bytes, new: str, mark: str) -> None:
        """Overwrite a file between the look at it and the conditional copy. Raises OSError: it is not copied."""
        raise NotImplementedError

    def measure_sync(self, name: str) -> Mapping[str, Any]:
        """Sync a file and its folder; return the seconds that took, and what the mount says against it."""
        raise NotImplementedError

    @abstractmethod
    def list_folders(self) -> list[str]:
        """Return the names beside the folder of the probe."""

    @abstractmethod
    def remove_folder(self, name: str) -> None:
        """Remove the folder of a probe with everything in it, as far as it exists."""


class DiskPlace(Place):
    """A local or mounted disk."""

    kind = DISK

    def begin(self) -> None:
        for folder in (self.root, self.target, self.staging, self._entry("")):
            self.files.make_folder(folder.rstrip("/"), self.parent)

    def create(self, name: str, content: bytes) -> None:
        """Create an entry as the log of the state table does: by a link to a draft that is on disk."""
        draft = Path(f"{self.staging}/.draft-{uuid.uuid4().hex}")
        try:
            draft.write_bytes(content)
            durability.sync(draft)
            os.link(draft, self._entry(name))
        finally:
            draft.unlink(missing_ok=True)

    def write(self, name: str, content: bytes) -> None:
        durability.write(Path(self._entry(name)), content)

    def read(self, name: str) -> bytes:
        return Path(self._entry(name)).read_bytes()

    def list_entries(self, after: str = "") -> dict[str, float]:
        entries = {}
        for name in os.listdir(self._entry("")):
            with suppress(FileNotFoundError):
                entries[name] = os.stat(self._entry(name)).st_mtime
        return entries

    def remove(self, name: str) -> None:
        Path(self._entry(name)).unlink(missing_ok=True)

    def measure_sync(self, name: str) -> Mapping[str, Any]:
        path, began = Path(self._entry(name)), time.perf_counter()
        path.write_bytes(b"synced")
        for synced in (path, path.parent):
            descriptor = os.open(synced, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        mount = mounts.find_mount(self.root)
        return {"seconds": time.perf_counter() - began, "objection": mounts.find_objection(mount)}

    def list_folders(self) -> list[str]:
        return os.listdir(self.parent)

    def remove_folder(self, name: str) -> None:
        folder = Path(self.parent) / folders.require_name(name)
        for _ in range(MAX_REMOVALS):  # a worker that is being ended may still create a file
            if not folder.exists():
                return
            shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder)

    def _entry(self, name: str) -> str:
        return f"{self.root}/{ENTRIES}/{name}"


class HdfsPlace(Place):
    """HDFS, over HTTP. Onceonly overwrites no file there, and delta-rs does not know it."""

    kind, has_overwrites, has_delta = HDFS, False, False

    def __init__(self, uri: str, name: str, files: FileSystem, path: str, cluster: Any) -> None:
        super().__init__(uri, name, files, path)
        self._cluster = cluster

    def begin(self) -> None:
        for folder in (self.root, self.target, self.staging, self._entry("")):
            self.files.make_folder(folder.rstrip("/"), self.parent)

    def create(self, name: str, content: bytes) -> None:
        """Create an entry as a sink creates its manifest: by a rename that does not overwrite."""
        draft = f"{self.staging}/.draft-{uuid.uuid4().hex}"
        self._cluster.create(draft, content)
        try:
            self._cluster.rename(draft, self._entry(name))
        except OSError:
            self._cluster.fs.rm(self._cluster.path(draft))
            raise

    def write(self, name: str, content: bytes) -> None:
        self._cluster.create(self._entry(name), content)

    def read(self, name: str) -> bytes:
        return self.files.read(self._entry(name)).encode()

    def list_entries(self, after: str = "") -> dict[str, float]:
        entries = {}
        for info in self._cluster.fs.ls(self._cluster.path(self._entry("").rstrip("/")), detail=True):
            entries[str(info["pathSuffix"])] = info["modificationTime"] / 1000
        return entries

    def remove(self, name: str) -> None:
        self._cluster.fs.rm(self._cluster.path(self._entry(name)))

    def list_folders(self) -> list[str]:
        return self.files.list_names(self.parent)

    def remove_folder(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._cluster.fs.rm(self._cluster.path(f"{self.parent}/{folders.require_name(name)}"), recursive=True)

    def _entry(self, name: str) -> str:
        return f"{self.root}/{ENTRIES}/{name}"


class StorePlace(Place):
    """An object store: entries by the client that writes logs, files by the one that publishes."""

    has_conditional_copies = True

    def __init__(self, uri: str, name: str, files: FileSystem, path: str) -> None:
        super().__init__(uri, name, files, path)
        self._entries = _open_objects(f"{self.uri}/{self.name}/{ENTRIES}")

    @property
    def kind(self) -> str:  # type: ignore[override]
        scheme = urlsplit(self.uri).scheme.lower()
        if scheme in S3_SCHEMES:
            return S3
        return AZURE if scheme in AZURE_SCHEMES else GOOGLE

    def begin(self) -> None:
        """Do nothing: folders exist as long as something is in them."""

    def create(self, name: str, content: bytes) -> None:
        self._entries.create(name, content)

    def write(self, name: str, content: bytes) -> None:
        self._entries.write(name, content)

    def read(self, name: str) -> bytes:
        return self._entries.read(name)

    def list_entries(self, after: str = "") -> dict[str, float]:
        return {entry.path: entry.changed for entry in self._entries.list_objects(after=after)}

    def remove(self, name: str) -> None:
        self._entries.unlink([name])

    def copy_changed(self, source: str, change: bytes, new: str, mark: str) -> None:
        store = self._open_store()
        source_object = store.find(source)
        if source_object is None:
            raise FileNotFoundError(source)
        store.put(source, change)
        if self.kind != S3:
            store.copy(source, source_object, new, mark)
            return
        from onceonly.storage.s3 import Uploads

        uploads = Uploads(store)
        if not uploads.complete(uploads.begin_copy(source, source_object, new, mark), new):
            raise FileExistsError(new)

    def _open_store(self) -> Any:
        if self.kind == S3:
            from onceonly.storage import s3_client

            return s3_client.Bucket(self.parent.partition("://")[2].partition("/")[0])
        if self.kind == AZURE:
            from onceonly.storage.azure_client import Container

            return Container(AzureFolder.parse(self.uri))
        from onceonly.storage import google_client

        return google_client.Bucket(split_google_uri(self.uri)[0])

    def list_folders(self) -> list[str]:
        return _open_objects(self.uri).list_folders("")

    def remove_folder(self, name: str) -> None:
        """Remove all objects by listings. A store may list what is gone, or not yet what is there, for some time."""
        entries = _open_objects(f"{self.uri}/{folders.require_name(name)}")
        self.files.end_uploads(f"{self.parent}/{name}/{PUBLISHED}", "")
        for _ in range(MAX_REMOVALS):
            paths = [entry.path for entry in entries.list_objects() if entry.size]
            if not paths:
                return entries.clear()  # what marks folders
            entries.unlink(paths)
        for path in paths:
            with suppress(FileNotFoundError):
                entries.read(path)
                raise OSError(f"{path} is still there")


def _open_objects(uri: str) -> objects.Objects:
    """Open a folder as each of the two clients would: where they differ in it, as Spark does."""
    return objects.literal(uri) if set("#?") & set(uri) else objects.Objects(uri)


def open_place(uri: str, name: str, webhdfs: str | None) -> Place:
    """Return the place of a probe with that name in the folder of a path or URI.

    Raises:
        InvalidPipeline: nothing can be published there, or what is needed for it is not installed.
    """
    location = open_file_system(uri, webhdfs)
    if location is None:
        raise InvalidPipeline(
            f"{urlsplit(uri).scheme}:// cannot be probed.",
            "Onceonly publishes nothing to such a place.",
            "Name a folder as in s3://lake/path, abfss://…, gs://…, hdfs://… or /path, or kafka://HOST:PORT. "
            "Nothing was written.",
            code="probe-unknown-place",
        )
    files, path = location
    if local_path(uri) is not None:
        return DiskPlace(path, name, files, path)
    if uri.startswith(HDFS_PREFIX):
        from onceonly.storage.webhdfs import WebHdfsCluster

        return HdfsPlace(uri, name, files, path, WebHdfsCluster(uri, webhdfs))
    return StorePlace(uri, name, files, path)


def is_store(uri: str) -> bool:
    return urlsplit(uri).scheme.lower() in (*S3_SCHEMES, *AZURE_SCHEMES, *GOOGLE_SCHEMES)
