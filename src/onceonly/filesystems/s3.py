"""S3: a file gets its final name when its upload is completed, on the condition that the name is free.

The staged files are copied into uploads by the store itself, and stay until the outcome is recorded. What of the
uploads has been lost by then is made again from them. An upload that is completed is durable, so nothing is synced.

There are no folders. That of a transaction exists as long as a small object in it (`FOLDER`), which is its sign.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from onceonly.errors import NotCommitted
from onceonly.filesystems import s3_trial
from onceonly.filesystems.confined import OwnPath
from onceonly.filesystems.interface import FileSystem, Fingerprint, Ready, Unsuitable, Upload, is_hidden
from onceonly.filesystems.s3_client import Bucket, Ended
from onceonly.filesystems.s3_uploads import Uploads

FOLDER = ".folder"  # in the folder of a transaction
NONCE = "nonce"  # in a fingerprint: what the object's metadata has to say
TRIES = 3  # uploads of one file in one commit: others may end one while they clear up


class S3Files(FileSystem):
    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._uploads = bucket, Uploads(bucket)

    def check(self, target: str) -> None:
        """Raises Unsuitable also for a store that completes two uploads of one name; that is tried once."""
        try:
            if self._bucket.entries(f"{target}/_delta_log", most=1):
                raise Unsuitable(f"{target} is a Delta table.", "Use a DeltaSink, or another folder.")
            if self.exists(target):
                raise Unsuitable(f"{target} is not a folder.", "Choose another path.")
            s3_trial.check(self._bucket, self._uploads, target)
        except PermissionError as error:
            todo = "Allow this login to list, read, write and delete there (docs/object-stores.md)."
            raise Unsuitable(f"{error}.", todo) from error
        except FileNotFoundError as error:
            raise Unsuitable(f"{error}.", "Create the bucket, or correct the path.") from error
        except OSError as error:
            raise NotCommitted(
                f"{target} cannot be reached.",
                f"{error}.",
                "Start the server, or correct AWS_ENDPOINT_URL or the connection. Nothing was published.",
            ) from error

    def same(self, one: str, other: str) -> bool:
        return one == other

    def probe(self, folder: OwnPath, target: str) -> None:
        """`check` has tried what matters."""
        self.begin(folder)

    def begin(self, folder: OwnPath) -> None:
        self._bucket.put(f"{folder.path}/{FOLDER}", b"")

    def ready(self, staged: str, final: str) -> Ready:
        nonce = uuid.uuid4().hex
        found = self._bucket.find(staged)
        if found is None:
            raise FileNotFoundError(staged)
        upload = _begun(lambda: self._uploads.copying(staged, found, final, nonce))
        return Ready(Fingerprint(found.bytes, NONCE, nonce), upload)

    def move(self, old: OwnPath, new: str, ready: Ready | None = None) -> None:
        """The old object stays."""
        nonce = ready.print.digest if ready else uuid.uuid4().hex
        upload = ready.upload if ready else None
        if upload is None and self.exists(new):
            raise FileExistsError(new)
        self._publish(new, nonce, lambda: self._copying(old.path, new, nonce, upload), upload)

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        nonce, sign = uuid.uuid4().hex, f"{folder.path}/{FOLDER}"

        def begin() -> Upload:
            return self._uploads.holding(text.encode(), path, nonce, lambda: self.exists(sign))

        self._publish(path, nonce, begin)

    def _publish(self, new: str, nonce: str, begin: Callable[[], Upload], staged: Upload | None = None) -> None:
        """Complete the upload, or another one that is begun. What is there afterwards tells whether it is published.

        Raises:
            FileExistsError: another object has that name.
            FileNotFoundError: no other upload can be begun.
        """
        for _ in range(TRIES):
            upload = staged or _begun(begin)
            told = self._uploads.complete(upload, new)
            if not told and upload is not staged:  # begun here, so no other process knows it
                self._uploads.abort(upload.id, new)
            found = self._bucket.find(new)
            if found and found.mark == nonce:
                return
            if found:
                raise FileExistsError(new)
            staged = None
        raise OSError(f"{new}: {TRIES} uploads were ended by others before they were complete")

    def _copying(self, old: str, new: str, nonce: str, lost: Upload | None) -> Upload:
        """Raises FileNotFoundError: there is no such file, or another one than was staged."""
        found = self._bucket.find(old)
        if found is None or (lost and lost.source and found.etag != lost.source):
            raise FileNotFoundError(old)
        return self._uploads.copying(old, found, new, nonce)

    def end_uploads(self, target: str, stem: str) -> None:
        self._uploads.end(target, stem)

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        """File by file: whoever repeats it goes on where it ended."""
        for name in list(self._bucket.below(old.path)):
            if name and not name.endswith("/"):  # of a folder as Hadoop marks it
                self._take_away(old.below(name), new.below(name))

    def _take_away(self, old: OwnPath, new: OwnPath) -> None:
        """What it is copied to exists before it is removed; another process may do the same."""
        try:
            with suppress(FileExistsError):
                self.move(old, new.path)
            self.remove(old)
        except FileNotFoundError:
            if self.exists(old.path):
                raise

    def fingerprint(self, path: str) -> Fingerprint:
        found = self._bucket.find(path)
        if found is None:
            raise FileNotFoundError(path)
        return Fingerprint(found.bytes, NONCE, found.mark)

    def exists(self, path: str) -> bool:
        return self._bucket.find(path) is not None

    def size(self, path: str) -> int | None:
        found = self._bucket.find(path)
        return found.bytes if found else None

    def read(self, path: str) -> str:
        return self._bucket.get(path).decode()

    def write(self, path: str, text: str) -> None:
        self._bucket.put(path, text.encode())

    def make_folder(self, folder: str, root: str) -> None:
        return

    def sync_names(self, folder: str) -> None:
        return

    def make_durable(self, folder: str) -> None:
        return

    def visible(self, folder: str) -> Iterator[str]:
        for name in self._bucket.below(folder):
            if name and not name.endswith("/") and not any(map(is_hidden, name.split("/"))):
                yield name

    def names(self, folder: str) -> list[str]:
        return self._bucket.entries(folder)

    def remove(self, file: OwnPath) -> None:
        self._bucket.unlink([file.path])

    def remove_empty(self, folder: str) -> None:
        return

    def delete(self, folder: OwnPath) -> None:
        self._bucket.unlink([f"{folder.path}/{name}" for name in self._bucket.below(folder.path)])

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        hive = ds.partitioning(by, flavor="hive")
        files, path = arrow(folder)
        return ds.dataset(path, schema, format, files, hive, path).scanner().to_reader()


def _begun(begin: Callable[[], Upload]) -> Upload:
    """An upload that nobody has ended before it had its parts."""
    for _ in range(TRIES):
        with suppress(Ended):
            return begin()
    return begin()


def arrow(uri: str) -> tuple[pafs.FileSystem, str]:
    """pyarrow's file system of the bucket, and the path there, in which nothing is an escape."""
    path = uri.removeprefix("s3://")
    return pafs.FileSystem.from_uri(f"s3://{path.partition('/')[0]}")[0], path
