"""The files below a table's location: listed, read, written and deleted by PyIceberg's Arrow file systems."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from onceonly.storage import durability
from onceonly.storage.paths import local_path

DATA_PATH = "write.data.path"
MAX_PARALLEL_REQUESTS = 16


class FileStore:
    """The folder of a table's data.

    Args:
        root: its URI, as the table has it.
    """

    def __init__(self, table: Table) -> None:
        data_path = table.properties.get(DATA_PATH, f"{table.location().rstrip('/')}/data")
        self.root = data_path.rstrip("/")
        io = PyArrowFileIO(table.io.properties)
        scheme, netloc, self._path = io.parse_location(self.root, io.properties)
        self._files = io.fs_by_scheme(scheme, netloc)

    def uri(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _absolute(self, path: str) -> str:
        return f"{self._path}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None: there is none."""
        try:
            with self._files.open_input_stream(self._absolute(path)) as stream:
                content: bytes = stream.read()
                return content
        except FileNotFoundError:
            return None

    def write(self, path: str, content: bytes) -> None:
        """Write a file. On a local disk it survives a power failure afterwards."""
        folder = path.rpartition("/")[0]
        self._files.create_dir(self._absolute(folder), recursive=True)
        with self._files.open_output_stream(self._absolute(path)) as stream:
            stream.write(content)
        self.sync([path])

    def write_parquet(self, path: str, rows: Any, options: dict[str, Any]) -> None:
        self._files.create_dir(self._absolute(path.rpartition("/")[0]), recursive=True)
        pq.write_table(rows, self._absolute(path), filesystem=self._files, **options)

    def open_parquet(self, path: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._files.open_input_file(self._absolute(path)))

    def list_names(self, folder: str) -> list[str]:
        """List the names of the files in a folder; none if it does not exist."""
        selector = pafs.FileSelector(self._absolute(folder), allow_not_found=True)
        return sorted(info.base_name for info in self._files.get_file_info(selector) if info.is_file)

    def list_parquet_files(self, folder: str = "") -> list[tuple[str, int]]:
        """List (path, size) of the files with rows in a folder and below it, by path."""
        selector = pafs.FileSelector(self._absolute(folder).rstrip("/"), allow_not_found=True, recursive=True)
        files = []
        for info in self._files.get_file_info(selector):
            if info.is_file and info.base_name.endswith(".parquet") and not info.base_name.startswith(("_", ".")):
                files.append((info.path[len(self._path) :].lstrip("/"), info.size))
        return sorted(files)

    def find_sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Return the size of each file; None: it does not exist."""

        def find_size(path: str) -> int | None:
            info = self._files.get_file_info(self._absolute(path))
            return int(info.size) if info.is_file else None

        with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return list(pool.map(find_size, paths))

    def delete_file(self, path: str) -> None:
        try:
            self._files.delete_file(self._absolute(path))
        except FileNotFoundError:
            return

    def delete_folder(self, folder: str) -> None:
        try:
            self._files.delete_dir(self._absolute(folder))
        except FileNotFoundError:
            return

    def sync(self, paths: Sequence[str]) -> None:
        """Let files on a local disk survive a power failure from now on, with their folders."""
        self.sync_uris([self.uri(path) for path in paths])

    def sync_uris(self, uris: Sequence[str]) -> None:
        local_files: list[Path] = []
        for uri in uris:
            local = local_path(uri)
            if local:
                local_files.append(local)
        if local_files:
            durability.sync_files(local_files)
