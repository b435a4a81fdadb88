"""Azure Blob Storage and Google Cloud Storage: a file gets its final name by a copy that the store itself makes.

The copy takes two conditions: the name is free, and the staged object is the one that was staged. It gives the new
object a mark, so what is there afterwards tells whose it is. Whoever wants to end such a move removes the staged
object: then no process that still hangs in a commit has anything to copy.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from onceonly.storage import arbitration
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.interface import Fingerprint, PreparedFile, Upload
from onceonly.storage.object_files import FOLDER_MARKER, NONCE, CopyingStore, ObjectFiles, StoredObject, UnmetCondition
from onceonly.storage.own_paths import OwnPath

if TYPE_CHECKING:
    import pyarrow.dataset as ds  # with pandas, which takes a second


class CopiedFiles(ObjectFiles):
    """Files on a store that copies objects under conditions."""

    def __init__(self, store: CopyingStore) -> None:
        super().__init__(store)
        self._copying_store, self.server = store, store.server

    def try_out(self, target: str) -> None:
        def begin(old: str, source: StoredObject, new: str, mark: str) -> Callable[[], bool]:
            def copy() -> bool:
                try:
                    self._copy_once(old, source, new, mark)
                except FileExistsError:
                    return False
                return True

            return copy

        arbitration.require_one_publisher(self._store, target, begin)

    def prepare(self, staged: str, final: str) -> PreparedFile:
        source = self._store.find(staged)
        if source is None:
            raise FileNotFoundError(staged)
        return PreparedFile(Fingerprint(source.bytes, NONCE, uuid.uuid4().hex), Upload("", source.etag, ()))

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        """Copy the file to its final name. The old object stays."""
        source = self._store.find(old.path)
        staged_etag = ready.upload.source if ready and ready.upload else None
        if source is None or (staged_etag and source.etag != staged_etag):
            raise FileNotFoundError(old.path)
        self._copy(old.path, source, new, ready.fingerprint.digest if ready else uuid.uuid4().hex)

    def create(self, path: str, text: str, folder: OwnPath) -> None:
        """Create a file by a copy.

        What is copied is written before the sign is looked for, and is removed with the folder.
        """
        nonce = uuid.uuid4().hex
        new = folder.join(f".new-{nonce}")
        self.write(new.path, text)
        try:
            source = self._store.find(new.path)
            if source is None or not self.exists(f"{folder.path}/{FOLDER_MARKER}"):
                raise FileNotFoundError(folder.path)
            self._copy(new.path, source, path, nonce)
        finally:
            self.remove(new)

    def _copy(self, old: str, source: StoredObject, new: str, nonce: str) -> None:
        """Copy an object. A name that is taken is no error if its object has the nonce: it is of this very copy."""
        try:
            self._copy_once(old, source, new, nonce)
        except FileExistsError:
            published = self._store.find(new)
            if published is None or published.mark != nonce:
                raise

    def _copy_once(self, old: str, source: StoredObject, new: str, mark: str) -> None:
        """Copy an object, and find out which condition was not met, if the store does not say.

        If the object is still the same one, the name was taken; it may be free again by now.
        """
        try:
            self._copying_store.copy(old, source, new, mark)
        except UnmetCondition as error:
            current = self._store.find(old)
            if current and current.etag == source.etag:
                raise FileExistsError(new) from error
            raise FileNotFoundError(old) from error

    def delete(self, folder: OwnPath) -> None:
        """Delete a folder. The sign goes first: whoever writes something there later looks for it afterwards."""
        self.remove(folder.join(FOLDER_MARKER))
        super().delete(folder)
        self._store.unlink([f"{folder.path}/"])  # what Spark marks the folder itself by

    def read_rows(
        self, folder: str, format: ds.FileFormat, schema: pa.Schema | None = None, by: pa.Schema | None = None
    ) -> pa.RecordBatchReader:
        import pyarrow.dataset as ds

        hive = ds.partitioning(by, flavor="hive")
        files, path = arrow_file_system(folder)
        # To pyarrow's own list, what marks a folder is a file.
        names = [f"{path}/{name}" for name in self.list_visible(folder)]
        if schema and not names:
            return pa.RecordBatchReader.from_batches(schema, [])
        return ds.dataset(names, schema, format, files, hive, path).scanner().to_reader()
