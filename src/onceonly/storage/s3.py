"""S3: a file gets its final name when its upload is completed, on the condition that the name is free.

The staged files are copied into uploads by the store itself, and stay until the outcome is recorded. What of the
uploads has been lost by then is made again from them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from onceonly.storage import trial
from onceonly.storage.confined import OwnPath
from onceonly.storage.interface import Fingerprint, Ready, Upload
from onceonly.storage.object_files import FOLDER, NONCE, Found, ObjectFiles
from onceonly.storage.s3_client import Bucket, Ended
from onceonly.storage.s3_uploads import Uploads

MAX_UPLOAD_TRIES = 3  # uploads of one file in one commit: others may end one while they clear up


class S3Files(ObjectFiles):
    """Files in one bucket."""

    server = "AWS_ENDPOINT_URL or the connection"

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._bucket, self._uploads = bucket, Uploads(bucket)

    def try_out(self, target: str) -> None:
        """Refuse a store that completes two uploads of one name."""

        def begin(old: str, source: Found, new: str, mark: str) -> Callable[[], bool]:
            upload = self._uploads.begin_copy(old, source, new, mark)
            return lambda: self._uploads.complete(upload, new)

        trial.check(self._bucket, target, begin, lambda folder: self._uploads.end(folder, ""))

    def ready(self, staged: str, final: str) -> Ready:
        nonce = uuid.uuid4().hex
        source = self._bucket.find(staged)
        if source is None:
            raise FileNotFoundError(staged)
        upload = _begin_upload(lambda: self._uploads.begin_copy(staged, source, final, nonce))
        return Ready(Fingerprint(source.bytes, NONCE, nonce), upload)

    def move(self, old: OwnPath, new: str, ready: Ready | None = None) -> None:
        """Complete the upload that was prepared for the name, or another one. The old object stays."""
        nonce = ready.print.digest if ready else uuid.uuid4().hex
        upload = ready.upload if ready else None
        if upload is None and self.exists(new):
            raise FileExistsError(new)
        self._publish(new, nonce, lambda: self._begin_copy(old.path, new, nonce, upload), upload)

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        nonce, sign = uuid.uuid4().hex, f"{folder.path}/{FOLDER}"

        def begin() -> Upload:
            return self._uploads.begin_with_content(text.encode(), path, nonce, lambda: self.exists(sign))

        self._publish(path, nonce, begin)

    def _publish(self, new: str, nonce: str, begin: Callable[[], Upload], staged: Upload | None = None) -> None:
        """Complete the upload, or another one that is begun. What is there afterwards tells whether it is published.

        Raises:
            FileExistsError: another object has that name.
            FileNotFoundError: no other upload can be begun.
        """
        for _ in range(MAX_UPLOAD_TRIES):
            upload = staged or _begin_upload(begin)
            is_completed = self._uploads.complete(upload, new)
            if not is_completed and upload is not staged:  # begun here, so no other process knows it
                self._uploads.abort(upload.id, new)
            published = self._bucket.find(new)
            if published and published.mark == nonce:
                return
            if published:
                raise FileExistsError(new)
            staged = None
        raise OSError(f"{new}: {MAX_UPLOAD_TRIES} uploads were aborted by others before they were complete")

    def _begin_copy(self, old: str, new: str, nonce: str, lost: Upload | None) -> Upload:
        """Begin another upload, in place of the lost one.

        Raises:
            FileNotFoundError: there is no such file, or another one than was staged.
        """
        source = self._bucket.find(old)
        if source is None or (lost and lost.source and source.etag != lost.source):
            raise FileNotFoundError(old)
        return self._uploads.begin_copy(old, source, new, nonce)

    def end_uploads(self, target: str, stem: str) -> None:
        self._uploads.end(target, stem)

    def rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        hive = ds.partitioning(by, flavor="hive")
        files, path = arrow(folder)
        return ds.dataset(path, schema, format, files, hive, path).scanner().to_reader()


def _begin_upload(begin: Callable[[], Upload]) -> Upload:
    """Return an upload that nobody has ended before it had its parts, after some tries."""
    for _ in range(MAX_UPLOAD_TRIES):
        with suppress(Ended):
            return begin()
    return begin()


def arrow(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return pyarrow's file system of the bucket, and the path there, in which nothing is an escape."""
    path = uri.removeprefix("s3://")
    return pafs.FileSystem.from_uri(f"s3://{path.partition('/')[0]}")[0], path
