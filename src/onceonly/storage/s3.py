"""S3: a file gets its final name when its upload is completed, on the condition that the name is free.

The staged files are copied into uploads by the store itself, and stay until the outcome is recorded. What of the
uploads has been lost by then is made again from them.

The answer to a completion tells nothing: an upload that is unknown by now may be answered like a completed one, if any
object has that name. So each upload gives its object a mark in its metadata, and the object that is there afterwards
is asked for it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from onceonly.storage import arbitration
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.interface import MAX_PARALLEL_REQUESTS, Fingerprint, PreparedFile, Upload
from onceonly.storage.object_files import FOLDER_MARKER, MARK_KEY, NONCE, ObjectFiles, StoredObject
from onceonly.storage.own_paths import OwnPath
from onceonly.storage.s3_client import Bucket, EndedUpload

MAX_UPLOAD_TRIES = 3  # uploads of one file in one commit: others may end one while they clear up
PART_BYTES = 512 << 20  # that are copied by one request; the store allows 5 MiB to 5 GiB
MAX_PARTS = 10_000  # of one upload


class S3Files(ObjectFiles):
    """Files in one bucket."""

    server = "AWS_ENDPOINT_URL or the connection"

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket)
        self._bucket, self._uploads = bucket, Uploads(bucket)

    def try_out(self, target: str) -> None:
        """Refuse a store that completes two uploads of one name."""

        def begin(old: str, source: StoredObject, new: str, mark: str) -> Callable[[], bool]:
            upload = self._uploads.begin_copy(old, source, new, mark)
            return lambda: self._uploads.complete(upload, new)

        arbitration.require_one_publisher(self._bucket, target, begin, lambda folder: self._uploads.end(folder, ""))

    def prepare(self, staged: str, final: str) -> PreparedFile:
        nonce = uuid.uuid4().hex
        source = self._bucket.find(staged)
        if source is None:
            raise FileNotFoundError(staged)
        upload = _begin_upload(lambda: self._uploads.begin_copy(staged, source, final, nonce))
        return PreparedFile(Fingerprint(source.bytes, NONCE, nonce), upload)

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        """Complete the upload that was prepared for the name, or another one. The old object stays."""
        nonce = ready.fingerprint.digest if ready else uuid.uuid4().hex
        upload = ready.upload if ready else None
        if upload is None and self.exists(new):
            raise FileExistsError(new)
        self._publish(new, nonce, lambda: self._begin_copy(old.path, new, nonce, upload), upload)

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        nonce, sign = uuid.uuid4().hex, f"{folder.path}/{FOLDER_MARKER}"

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

    def read_rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        hive = ds.partitioning(by, flavor="hive")
        files, path = arrow_file_system(folder)
        return ds.dataset(path, schema, format, files, hive, path).scanner().to_reader()


def _begin_upload(begin: Callable[[], Upload]) -> Upload:
    """Return an upload that nobody has ended before it had its parts, after some tries."""
    for _ in range(MAX_UPLOAD_TRIES):
        with suppress(EndedUpload):
            return begin()
    return begin()


class Uploads:
    """Uploads to one bucket: objects of which everything is done but the last step."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def begin_copy(self, old: str, source: StoredObject, new: str, mark: str) -> Upload:
        """Begin an upload into which the store copies an object: no byte comes here.

        The upload exists before the object is looked at. So whoever deletes the object first, and looks for uploads
        then, ends each one that could still be completed.

        Raises:
            FileNotFoundError: the object no longer exists.
            EndedUpload: another process has ended the upload meanwhile.
        """
        if not source.bytes:  # an empty object cannot be copied as a part
            return self.begin_with_content(b"", new, mark, lambda: self._bucket.find(old) is not None)
        copy_source = {"Bucket": self._bucket.name, "Key": self._bucket.key(old)}

        def copy(number: int, part: Mapping[str, str]) -> str:
            answer = self._bucket.ask(
                "upload_part_copy",
                Key=self._bucket.key(new),
                UploadId=id,
                PartNumber=number,
                CopySource=copy_source,
                CopySourceIfMatch=source.etag,
                **part,
            )
            return str(answer["CopyPartResult"]["ETag"])

        parts = _part_ranges(source.bytes)
        with self._begin(new, mark) as id, ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
            return Upload(id, source.etag, tuple(pool.map(copy, range(1, len(parts) + 1), parts)))

    def begin_with_content(self, content: bytes, new: str, mark: str, is_wanted: Callable[[], bool]) -> Upload:
        """Begin an upload of this content. `is_wanted` is asked once the upload exists.

        Raises:
            FileNotFoundError: it is not wanted.
        """
        with self._begin(new, mark) as id:
            answer = self._bucket.ask("upload_part", Key=self._bucket.key(new), UploadId=id, PartNumber=1, Body=content)
            if not is_wanted():
                raise FileNotFoundError(new)
            return Upload(id, "", (str(answer["ETag"]),))

    def complete(self, upload: Upload, new: str) -> bool:
        """Give the object its name, unless that is taken; whether the store says that it has.

        The answer proves nothing: only what is there afterwards does.

        Raises:
            OSError: no answer, so the outcome is not known.
        """
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(upload.parts, 1)]
        arguments: dict[str, Any] = {"UploadId": upload.id, "MultipartUpload": {"Parts": parts}}
        with suppress(FileExistsError, EndedUpload):
            self._bucket.ask("complete_multipart_upload", Key=self._bucket.key(new), IfNoneMatch="*", **arguments)
            return True
        return False

    def abort(self, id: str, new: str) -> None:
        """End an upload, if it is not completed."""
        with suppress(EndedUpload):
            self._bucket.ask("abort_multipart_upload", Key=self._bucket.key(new), UploadId=id)

    def end(self, folder: str, stem: str) -> None:
        """End every upload below a folder whose file name begins so."""
        for name, id in list(self._bucket.uploads(folder)):
            if name.rpartition("/")[2].startswith(stem):
                self.abort(id, f"{folder}/{name}")

    @contextmanager
    def _begin(self, new: str, mark: str) -> Iterator[str]:
        """Begin an upload, which is ended if the block fails. A process that dies in it leaves it behind."""
        key = self._bucket.key(new)
        id = str(self._bucket.ask("create_multipart_upload", Key=key, Metadata={MARK_KEY: mark})["UploadId"])
        try:
            yield id
        except BaseException:
            with suppress(OSError):  # what has failed is the reason; an upload that stays open publishes nothing
                self.abort(id, new)
            raise


def _part_ranges(size: int) -> list[Mapping[str, str]]:
    """Return what of an object each part copies, as arguments; small objects cannot be copied by a range."""
    step = max(PART_BYTES, -(-size // MAX_PARTS))
    if size <= step:
        return [{}]
    return [{"CopySourceRange": f"bytes={at}-{min(at + step, size) - 1}"} for at in range(0, size, step)]
