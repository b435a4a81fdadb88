"""Objects that are uploaded and not there yet: a file of which everything is done but the last step.

An upload is completed on the condition that its name is free. The answer alone tells nothing: an upload that is unknown
by now may be answered like a completed one, if any object has that name. So each upload gives its object a mark in its
metadata, and the object that is there afterwards is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from onceonly.storage.interface import AT_ONCE, Upload
from onceonly.storage.object_files import MARK, Found
from onceonly.storage.s3_client import Bucket, Ended

PART = 512 * 1024 * 1024  # bytes that are copied by one request; the store allows 5 MiB to 5 GiB
MAX_PARTS = 10_000  # of one upload


class Uploads:
    """The uploads of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def begin_copy(self, old: str, source: Found, new: str, mark: str) -> Upload:
        """Begin an upload into which the store copies an object: no byte comes here.

        The upload exists before the object is looked at. So whoever deletes the object first, and looks for uploads
        then, ends each one that could still be completed.

        Raises:
            FileNotFoundError: the object no longer exists.
            Ended: another process has ended the upload meanwhile.
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
        with self._begin(new, mark) as id, ThreadPoolExecutor(AT_ONCE) as pool:
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
        with suppress(FileExistsError, Ended):
            self._bucket.ask("complete_multipart_upload", Key=self._bucket.key(new), IfNoneMatch="*", **arguments)
            return True
        return False

    def abort(self, id: str, new: str) -> None:
        """End an upload, if it is not completed."""
        with suppress(Ended):
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
        id = str(self._bucket.ask("create_multipart_upload", Key=key, Metadata={MARK: mark})["UploadId"])
        try:
            yield id
        except BaseException:
            with suppress(OSError):  # what has failed is the reason; an upload that stays open publishes nothing
                self.abort(id, new)
            raise


def _part_ranges(size: int) -> list[Mapping[str, str]]:
    """Return what of an object each part copies, as arguments; small objects cannot be copied by a range."""
    step = max(PART, -(-size // MAX_PARTS))
    if size <= step:
        return [{}]
    return [{"CopySourceRange": f"bytes={at}-{min(at + step, size) - 1}"} for at in range(0, size, step)]
