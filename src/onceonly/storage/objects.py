"""The objects below a URI of an object store: each call is one request, a listing one for each 1,000 names.

By the same library as delta-rs (object_store), so the same variables of the environment count for both. What a store
has acknowledged is durable. An object with the same tag has the same content, so small ones are kept in memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from onceonly.errors import InvalidPipeline
from onceonly.storage.logins import profile_arguments, snapshot_variables
from onceonly.storage.paths import local_path
from onceonly.waits import wait_for

if TYPE_CHECKING:
    import pyarrow.fs as pafs
    from obstore.store import ObjectStore

PAGE = 1_000  # names in one answer
MAX_CACHE_BYTES = 16 << 20  # of the objects that are kept in memory
MAX_CACHED_OBJECT_BYTES = 256 << 10  # of the largest object among them
WRITTEN = "written here"  # in place of a tag: what this process has written, under a name that no other one uses
MAX_SINGLE_PUT_BYTES = 64 << 20  # what is larger is written in parts
VARIABLE_PREFIXES = ("AWS_", "AZURE_", "AZURITE_", "GOOGLE_")


@dataclass(frozen=True)
class ListedObject:
    """An object of a listing.

    Args:
        path: relative to the URI.
        tag: another content has another one; None: the store does not say.
        changed: seconds since 1970.
    """

    path: str
    size: int
    tag: str | None
    changed: float

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def open_arrow(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return pyarrow's file system of a store, by the same client, and the path of that URI there."""
    scheme, _, path = uri.partition("://")
    return _arrow(scheme, _settings()), path.rstrip("/")


def literal(uri: str) -> Objects:
    """Return the objects below a URI whose path is taken as Spark takes it: nothing in it is an escape."""
    scheme, _, rest = uri.partition("://")
    bucket, _, path = rest.partition("/")
    return Objects(f"{scheme}://{bucket}/{quote(path)}")


class Objects:
    """The objects below a URI. Each call raises OSError where the store does not answer, or refuses.

    Raises:
        InvalidPipeline: the URI has a '#' or '?'. What follows is no part of a path to delta-rs, and is one to Spark.
    """

    def __init__(self, uri: str) -> None:
        parts, local = urlsplit(uri), local_path(uri)
        if not local and (parts.query or parts.fragment or uri.endswith(("?", "#"))):
            raise InvalidPipeline(
                f"'{parts.scheme}://…{parts.path}' cannot be used.",
                "A '#' or '?' follows in the path. delta-rs ignores the rest, so it would use another folder.",
                "Rename the folder. Nothing was written.",
                code="uri-invalid",
            )
        self.uri, self._root = uri.rstrip("/"), str(local or unquote(parts.path)).strip("/")
        self._bucket = "file:///" if local else f"{parts.scheme}://{parts.netloc}"

    def list_objects(self, folder: str = "", after: str = "") -> list[ListedObject]:
        """Return all objects in a folder, at any depth, in the order of their names.

        Args:
            after: only those behind that path.
        """
        objects: list[ListedObject] = []
        for page in self.list_pages(folder, after):
            objects += page
        return sorted(objects, key=lambda obj: obj.path)

    def list_pages(self, folder: str = "", after: str = "") -> Iterator[list[ListedObject]]:
        """Yield the same as `list_objects`, by single requests.

        Each is in order, as stores list their objects; a local folder, in tests, does not.
        """
        import obstore

        start = len(self._path(""))
        offset = self._path(after) if after else None
        with _ask_store(self.uri):
            for page in obstore.list(self._store, self._path(folder), offset=offset, chunk_size=PAGE):
                objects = []
                for meta in page:
                    changed = meta["last_modified"].timestamp()
                    objects.append(ListedObject(meta["path"][start:], meta["size"], _tag(meta), changed))
                yield sorted(objects, key=lambda obj: obj.path)

    def list_folders(self, folder: str) -> list[str]:
        """Return the names of the folders in a folder."""
        import obstore

        with _ask_store(self.uri):
            paths = obstore.list_with_delimiter(self._store, self._path(folder))["common_prefixes"]
        return [path.rpartition("/")[2] for path in paths]

    def read(self, path: str, tag: str | None = None) -> bytes:
        """Return the content of an object; by the tag that a listing has shown, it may be in memory already.

        Raises:
            FileNotFoundError: there is none.
        """
        import obstore

        if tag:
            cached = _cache.get(self._key(path, tag))
            if cached is not None:
                return cached
        with _ask_store(self.uri):
            answer = obstore.get(self._store, self._path(path))
            content, current_tag = bytes(answer.bytes()), _tag(answer.meta)
        self.remember(path, current_tag, content)
        return content

    def create(self, path: str, content: bytes) -> str | None:
        """Write an object that is not there yet; returns its tag.

        Raises:
            FileExistsError: it is there. It may be this very one, whose first answer was lost.
        """
        return self._put(path, content, "create")

    def write(self, path: str, content: bytes) -> str | None:
        """Write an object in one request, whether it is there or not; returns its tag."""
        return self._put(path, content, "overwrite")

    def unlink(self, paths: Collection[str]) -> None:
        """Delete these objects, as far as they exist."""
        try:
            self._delete([self._path(path) for path in paths])
        except FileNotFoundError:  # where they are deleted one by one, those after it are still there
            for path in paths:
                with suppress(FileNotFoundError):
                    self._delete([self._path(path)])

    def clear(self) -> None:
        """Delete everything below the URI; what marks a folder, an empty object, after all that is in it."""
        objects = self.list_objects()
        while paths := [obj.path for obj in objects if obj.size]:
            self.unlink(paths)
            objects = self.list_objects()
        for marker in sorted([obj.path for obj in objects], reverse=True):
            self._unmark(self._path(marker))
        self._unmark(self._root)

    def _delete(self, paths: list[str]) -> None:
        import obstore

        if paths:
            with _ask_store(self.uri):
                obstore.delete(self._store, paths)

    def _unmark(self, path: str) -> None:
        """Delete what marks a folder."""
        import obstore

        # Where it is a folder indeed, empty ones may be in it, which nobody lists.
        with suppress(OSError), _translate_errors():
            obstore.delete(self._store, path)

    def _put(self, path: str, content: bytes, mode: Any) -> str | None:
        """Write an object, and keep it in memory by its tag and as `WRITTEN`; returns the tag."""
        import obstore

        with _ask_store(self.uri):
            parts = mode == "overwrite" and len(content) > MAX_SINGLE_PUT_BYTES
            tag = _tag(obstore.put(self._store, self._path(path), content, mode=mode, use_multipart=parts))
        self.remember(path, tag, content)
        self.remember(path, WRITTEN, content)
        return tag

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    @property
    def _store(self) -> ObjectStore:
        return _store(self._bucket, _settings())

    def _key(self, path: str, tag: str) -> Key:
        return self._bucket, _settings(), self._path(path), tag

    def remember(self, path: str, tag: str | None, content: bytes) -> None:
        """Keep a small object in memory, for `read` by that tag.

        Args:
            tag: any text that no other content of that object can have; None: nothing is kept.
        """
        if tag and len(content) <= MAX_CACHED_OBJECT_BYTES:
            _cache.put(self._key(path, tag), content)


Key = tuple[str, tuple[tuple[str, str], ...], str, str]


class _ObjectCache:
    """The contents of the objects that were read or written last."""

    def __init__(self) -> None:
        self._contents: OrderedDict[Key, bytes] = OrderedDict()
        self._size, self._lock = 0, Lock()

    def get(self, key: Key) -> bytes | None:
        with self._lock:
            if key in self._contents:
                self._contents.move_to_end(key)
            return self._contents.get(key)

    def put(self, key: Key, content: bytes) -> None:
        with self._lock:
            self._size += len(content) - len(self._contents.pop(key, b""))
            self._contents[key] = content
            while self._size > MAX_CACHE_BYTES:
                self._size -= len(self._contents.popitem(last=False)[1])


_cache = _ObjectCache()


def _tag(answer: Any) -> str | None:
    """Return the tag, without what marks it as weak, and without quotation marks; None: the store does not say."""
    tag = answer["e_tag"]
    return tag.removeprefix("W/").strip('"') if tag else None


def _settings() -> tuple[tuple[str, str], ...]:
    """Return what the environment says of stores: after a change of it, another client is used."""
    return tuple(sorted(snapshot_variables(*VARIABLE_PREFIXES)))


@lru_cache(8)
def _arrow(scheme: Any, settings: tuple[tuple[str, str], ...]) -> pafs.FileSystem:
    with require_client(f"{scheme}://"):
        from obstore import fsspec
    import pyarrow as pa
    import pyarrow.fs as pafs

    store: Any = fsspec.FsspecStore  # of which fsspec would keep one for all settings

    class Handler(pafs.FSSpecHandler):  # type: ignore[misc]
        def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
            with _ask_store(f"{scheme}://"):
                return list(super().get_file_info(paths))

        def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
            with _ask_store(f"{scheme}://{selector.base_dir}"):
                return list(super().get_file_info_selector(selector))

        def open_input_file(self, path: str) -> pa.PythonFile:
            """Open a file. To pyarrow's own method, a file is not there when the store does not answer."""
            with _ask_store(f"{scheme}://{path}"):
                if self.fs.info(path)["type"] != "file":
                    raise FileNotFoundError(path)
                return pa.PythonFile(self.fs.open(path, mode="rb"), mode="r")

        open_input_stream = open_input_file

        def open_output_stream(self, path: str, metadata: Any) -> pa.PythonFile:
            return pa.PythonFile(_Bytes(self.fs.open(path, "wb")), mode="w")

    return pafs.PyFileSystem(Handler(store(scheme, skip_instance_cache=True)))


class _Bytes:
    """A file that is being written; pyarrow gives signed bytes, which obstore does not take."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, content: Any) -> int:
        return int(self._file.write(bytes(content)))

    def flush(self) -> None:
        """Do nothing: what is written is there when it is closed."""

    def close(self) -> None:
        self._file.close()

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)


@lru_cache(8)
def _store(bucket: str, settings: tuple[tuple[str, str], ...]) -> ObjectStore:
    with require_client(bucket):
        from obstore.store import from_url
    if bucket.startswith(("s3://", "s3a://")):
        return from_url(bucket, **profile_arguments(dict(settings)))
    return from_url(bucket)


@contextmanager
def require_client(uri: str) -> Iterator[None]:
    """Import a store's client within it.

    Raises:
        InvalidPipeline: what is imported is not there, or what is needed to delete folders.
    """
    on_google = uri.startswith("gs:")
    try:
        if on_google and find_spec("google.cloud.storage") is None:
            raise ImportError("no module", name="google.cloud.storage")
        yield
    except ImportError as error:
        raise InvalidPipeline(
            f"{uri} cannot be reached: '{error.name}' is not installed.",
            "Object stores need another client in addition to delta-rs.",
            f"pip install 'onceonly[{'google' if on_google else 'stores'}]'. Nothing was written.",
            code="package-missing",
        ) from error


@contextmanager
def _ask_store(uri: str) -> Iterator[None]:
    """Name the wait for a store's answer, and raise errors of the library as those of a file system."""
    with wait_for(uri), _translate_errors():
        yield


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise errors of the library as those of a file system."""
    from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(error)) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    except BaseError as error:
        raise OSError(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
