"""HDFS over WebHDFS. A file gets its final name by the NameNode's rename, which refuses a name that exists.

Nothing has to be synced here: every DataNode with a copy has acknowledged a closed file, and the NameNode writes its
edit log to disk before it responds. The DataNodes compute the checksums, so no file is downloaded for them.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from onceonly.errors import NotCommitted
from onceonly.storage.interface import (
    SINK_LOG,
    FileSystem,
    Fingerprint,
    PlannedMove,
    PreparedFile,
    UnsuitableTarget,
    is_hidden,
    parent,
    parents,
    probe_in,
    query_folder_error,
)
from onceonly.storage.own_paths import MANIFESTS, OwnPath
from onceonly.storage.webhdfs import CONNECT_TIMEOUT_SECONDS, Unreachable, WebHdfsCluster

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # with pandas, which takes a second

LASTING = ("QuotaExceededException", "PathComponentTooLongException", "MaxDirectoryItemsExceededException")


class HdfsFiles(FileSystem):
    """Files of one cluster."""

    def __init__(self, cluster: WebHdfsCluster) -> None:
        self._cluster, self._fs = cluster, cluster.fs
        self._checked: dict[str, tuple[Any, ...]] = {}  # by path: what a staged file was when its content was checked

    def check(self, target: str) -> None:
        """Refuse a target that cannot take files.

        Raises:
            UnsuitableTarget: a person has to act.
            NotCommitted: no response within seconds, or not from a NameNode.
        """
        cluster = self._cluster
        try:
            cluster.request("get", "GETFILESTATUS", "/", seconds=CONNECT_TIMEOUT_SECONDS)
            nearest = self._nearest(target)
            if not self._is_folder(nearest):
                raise UnsuitableTarget(f"{nearest} is not a folder.", "Choose another path.")
            cluster.request("get", "CHECKACCESS", cluster.path(nearest), fsaction="-wx")
            if self.exists(f"{target}/_delta_log"):
                raise UnsuitableTarget(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
            if self.exists(f"{target}/{SINK_LOG}"):
                raise query_folder_error(target)
        except PermissionError as error:
            todo = f"Grant it to the user '{cluster.user}', or set HADOOP_USER_NAME. Kerberos is not supported."
            raise UnsuitableTarget(f"{error}.", todo, code="target-not-writable") from error
        except OSError as error:
            raise NotCommitted(
                f"{target} cannot be reached.",
                f"{error}. The address used for the NameNode is {cluster.address}.",
                "Start it, or set ONCEONLY_WEBHDFS=http://namenode:9870 to its address. Nothing was written.",
                code="store-unreachable",
            ) from error

    def is_same_folder(self, one: str, other: str) -> bool:
        return one == other

    def probe(self, folder: OwnPath, target: str) -> None:
        """Also check that a rename refuses an existing name: a gateway in front of HDFS might overwrite it."""
        first, second = (folder.join(f".{uuid.uuid4().hex}") for _ in range(2))
        third = probe_in(target, "", folder)
        try:
            for probe in (first, second):
                self._cluster.create(probe.path, b"")
            self._check_no_overwrite(first, second)
            if self.exists(target):
                self._cluster.rename(first.path, third.path)
        except (PermissionError, Unreachable):
            raise
        except OSError as error:
            raise UnsuitableTarget(
                f"{self._cluster.address} cannot rename a file atomically ({error}).",
                "Use the NameNode's own address, or a DeltaSink.",
            ) from error
        finally:
            for probe in (first, second, third):
                with suppress(OSError):  # an abort removes what is left
                    self.remove(probe)

    def _check_no_overwrite(self, first: OwnPath, second: OwnPath) -> None:
        with suppress(FileExistsError):
            self._cluster.rename(first.path, second.path)
            raise OSError("its rename overwrites an existing file")

    def check_names(self, folder: OwnPath, files: Collection[PlannedMove], target: str, text: str) -> None:
        """Rename a file into the target and remove it there. For folders in it, ask for the permission."""
        source, name = folder.join(f".{uuid.uuid4().hex}"), probe_in(target, "", folder)
        final_folders = parents([*(file.final for file in files), f"{target}/{MANIFESTS}/manifest"])
        staged_folders = parents(file.staged for file in files)
        written_folders = {self._nearest(place) for place in final_folders} | set(staged_folders)
        try:
            for place in sorted(written_folders):
                self._cluster.request("get", "CHECKACCESS", self._cluster.path(place), fsaction="-wx")
            self.write(source.path, text)
            if self.exists(target):
                self.remove(name)
                with suppress(FileExistsError):  # another process tries it, too
                    self._cluster.rename(source.path, name.path)
        except OSError as error:
            if refusal := self.find_refusal(error):
                raise refusal from error
            raise
        finally:
            for probe in (source, name):
                with suppress(OSError):  # an abort removes what is left
                    self.remove(probe)

    def find_refusal(self, error: OSError) -> UnsuitableTarget | None:
        if isinstance(error, PermissionError):
            todo = f"Grant it to the user '{self._cluster.user}', or set HADOOP_USER_NAME."
            return UnsuitableTarget(f"{error}.", todo, code="target-not-writable")
        if any(word in str(error) for word in LASTING):
            return UnsuitableTarget(
                f"{error}.", "Raise the quota, make space, or use shorter names.", code="target-full"
            )
        return None

    def check_staged(self, old: OwnPath, ready: PreparedFile) -> None:
        try:
            super().check_staged(old, ready)
            self._checked[old.path] = self._version(old.path)
        except PermissionError as error:
            raise UnsuitableTarget(
                f"{error}.", "Let Spark write as the same user.", code="files-of-another-user"
            ) from error

    def _version(self, path: str) -> tuple[Any, ...]:
        """Return what changes with the content of a file, and not with its name."""
        info = self._info(path)
        return info["fileId"], info["size"], info["modificationTime"]

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        """Rename the file. A staged one that was not checked since it was changed last is checked here."""
        is_checked = not ready or self._checked.get(old.path) == self._version(old.path)
        if ready and not is_checked and self.read_fingerprint(old.path) != ready.fingerprint:
            raise FileNotFoundError(f"{old.path} is not the file that was staged")
        try:
            self._cluster.rename(old.path, new)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) and self._is_folder(new):
                raise FileExistsError(new) from error
            raise

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        with suppress(FileNotFoundError, FileExistsError):
            self._cluster.rename(old.path, new.path)

    def read_fingerprint(self, path: str) -> Fingerprint:
        """Return HDFS's own checksum, which a rename does not change: a checksum of the checksums of the parts."""
        info = self._info(path)
        if info["type"] == "directory":
            raise IsADirectoryError(path)
        checksum = self._fs.ukey(self._cluster.path(path))
        return Fingerprint(info["size"], checksum["algorithm"], checksum["bytes"])

    def exists(self, path: str) -> bool:
        try:
            self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def find_size(self, path: str) -> int | None:
        try:
            info = self._info(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return int(info["size"]) if info["type"] == "file" else None

    def read(self, path: str) -> str:
        return str(self._fs.cat_file(self._cluster.path(path)).decode())

    def write(self, path: str, text: str) -> None:
        self._cluster.create(path, text.encode())

    def make_folder(self, folder: str, root: str) -> None:
        self._fs.mkdir(self._cluster.path(folder))

    def sync_names(self, folder: str) -> None:
        return

    def make_durable(self, folder: str) -> None:
        return

    def list_visible(self, folder: str) -> Iterator[str]:
        folders: list[str] = []
        for info in self._list(folder):
            name = info["pathSuffix"]
            if is_hidden(name):
                continue
            if info["type"] == "file":
                yield name
            elif info["type"] == "directory":
                folders.append(name)
        for name in folders:
            for path in self.list_visible(f"{folder}/{name}"):
                yield f"{name}/{path}"

    def list_names(self, folder: str) -> list[str]:
        try:
            return [info["pathSuffix"] for info in self._list(folder)]
        except FileNotFoundError:
            return []

    def remove(self, file: OwnPath) -> None:
        self._fs.rm(self._cluster.path(file.path))

    def remove_empty(self, folder: str) -> None:
        with suppress(OSError):
            self._fs.rm(self._cluster.path(folder))

    def delete(self, folder: OwnPath) -> None:
        self._fs.rm(self._cluster.path(folder.path), recursive=True)

    def read_rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of a folder.

        Not by the scanner's own reader, which is created while the GIL is held: see `WebHdfsCluster.dataset`.
        """
        path = self._cluster.path(folder)
        scanner = self._cluster.dataset(pafs.FileSelector(path, recursive=True), path, format, schema, by).scanner()
        return pa.RecordBatchReader.from_batches(scanner.projected_schema, scanner.to_batches())

    def _nearest(self, path: str) -> str:
        """Return the path itself, or its nearest parent that exists."""
        while path != self._cluster.root and not self.exists(path):
            path = parent(path)
        return path

    def _is_folder(self, path: str) -> bool:
        with suppress(FileNotFoundError):
            return bool(self._info(path)["type"] == "directory")
        return False

    def _info(self, path: str) -> dict[str, Any]:
        info: dict[str, Any] = self._fs.info(self._cluster.path(path) or "/")
        return info

    def _list(self, folder: str) -> list[dict[str, Any]]:
        infos: list[dict[str, Any]] = self._fs.ls(self._cluster.path(folder), detail=True)
        return infos
