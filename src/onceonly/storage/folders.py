"""Folders with the names of transactions, below one path or URI: local, or on any file system of pyarrow."""

from __future__ import annotations

import hashlib
import io
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from onceonly.storage import objects
from onceonly.storage.durability import sync
from onceonly.storage.own_paths import HIDDEN, OwnPath
from onceonly.storage.paths import AZURE_SCHEMES, GOOGLE_SCHEMES, S3_SCHEMES, local_path, split_google_uri


class Folders:
    """The folders of one sink."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")

    def path(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def has(self, name: str) -> bool:
        files, path = arrow_file_system(self.path(name))
        return bool(files.get_file_info(path).type is not pafs.FileType.NotFound)

    def delete(self, name: str) -> None:
        """Delete the folder with all its content, if it exists. Raises InvalidPipeline: not a transaction's name."""
        delete(OwnPath(self.uri, name))

    def create_mark(self, name: str, text: str) -> bool:
        """Create a small file, durably; False: it exists already.

        On an object store the check comes first, so two processes may both see that they created it.

        Raises:
            FileNotFoundError: the folder for it does not exist.
        """
        if local := local_path(self.path(name)):
            return _create_durably(local, text)
        if self.has(name):
            return False
        files, path = arrow_file_system(self.path(name))
        with files.open_output_stream(path) as out:
            out.write(text.encode())
        return True

    def check_mark(self, folder: str) -> None:
        """Create a small file in the folder, and remove it. Readers ignore its name.

        Raises:
            OSError: `mark` would fail, too.
        """
        name = f".probe-{uuid.uuid4().hex}"
        self.create_mark(f"{folder}/{name}", "")
        probe = OwnPath(self.uri, f"{folder}/{name}")
        if is_marked_store(self.uri):
            return objects.literal(self.path(folder)).unlink([name])
        files, path = arrow_file_system(probe.path)
        files.delete_file(path)

    def exists(self) -> bool:
        """Whether there is such a folder. On an object store, where nothing makes one, it is always there."""
        local = local_path(self.uri)
        return local.is_dir() if local else True

    def list_files(self, name: str) -> dict[str, int]:
        """Return the sizes in bytes of the files below a folder that readers see, by path.

        Empty if the folder does not exist.
        """
        sizes = {}
        for path, size in self._list_all_files(name):
            if size and not _is_hidden(path):
                sizes[path] = size
        return sizes

    def _list_all_files(self, name: str) -> Iterator[tuple[str, int]]:
        """Yield (path, size) of everything below a folder that is no folder itself."""
        if is_marked_store(self.uri):
            for obj in objects.literal(self.path(name)).list_objects():
                yield obj.path, obj.size
            return
        files, root = arrow_file_system(self.path(name))
        for info in files.get_file_info(pafs.FileSelector(root, allow_not_found=True, recursive=True)):
            if info.is_file:
                yield info.path.removeprefix(f"{root}/"), info.size

    def read_text(self, name: str) -> str:
        files, path = arrow_file_system(self.path(name))
        with files.open_input_stream(path) as stream:
            return str(stream.read().decode())

    def list_names(self) -> list[str]:
        """Return the names of all folders in it, and of files where that costs nothing; empty if it does not exist."""
        if is_marked_store(self.uri):
            return objects.literal(self.uri).list_folders("")
        files, path = arrow_file_system(self.uri)
        infos = files.get_file_info(pafs.FileSelector(path, allow_not_found=True))
        return [info.base_name for info in infos]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(HIDDEN) for part in path.split("/"))


def delete(own: OwnPath) -> None:
    """Delete a folder with all its content, if it exists. Another process may delete it at the same time.

    Nothing in its path is an escape.
    """
    if _scheme(own.root) in GOOGLE_SCHEMES:
        return _delete_on_google(own)
    if is_marked_store(own.root):
        return objects.literal(own.path).clear()
    files, root = arrow_file_system(own.root)
    path = f"{root}/{own.name}"
    while files.get_file_info(path).type is not pafs.FileType.NotFound:
        with suppress(FileNotFoundError):  # another process deletes it as well
            files.delete_dir(path)


def _delete_on_google(own: OwnPath) -> None:
    """Delete by Google's own client: what marks a folder there ends with a slash, and obstore cannot name it."""
    with objects.require_client(own.root):
        from onceonly.storage.google_client import Bucket
    bucket_name, path = split_google_uri(own.path)
    bucket = Bucket(bucket_name)
    while names := list(bucket.list_names(f"{bucket.root}/{path}")):
        bucket.unlink([f"{bucket.root}/{path}/{name}" for name in names])


def arrow_file_system(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    The path is taken as Spark takes it: nothing is an escape.
    """
    local = local_path(uri)
    if local is not None:
        return pafs.LocalFileSystem(), str(local)
    if is_marked_store(uri):
        return objects.open_arrow(uri)  # pyarrow itself does not read the variables that delta-rs reads
    if _scheme(uri) in S3_SCHEMES:
        bucket, _, path = uri.partition("://")[2].rstrip("/").partition("/")
        return pafs.FileSystem.from_uri(f"s3://{bucket}")[0], f"{bucket}/{path}"
    files_and_path: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(uri)
    return files_and_path


def read_digest(files: pafs.FileSystem, path: str) -> str:
    """Return the SHA-256 of a file. Raises OSError: the storage does not give all of it."""
    with files.open_input_stream(path) as stream:
        return hashlib.file_digest(io.BufferedReader(stream), "sha256").hexdigest()


def is_marked_store(uri: str) -> bool:
    """Whether folders may be marked there by objects, which pyarrow takes for files."""
    return _scheme(uri) in (*AZURE_SCHEMES, *GOOGLE_SCHEMES)


def _scheme(uri: str) -> str:
    return urlsplit(uri).scheme.lower()


def _create_durably(path: Path, text: str) -> bool:
    """Create a file on a local disk, and sync it and its name; False: it exists already."""
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    sync(path)
    sync(path.parent)
    return True
