"""The files of a Delta table, as its storage shows them: names and sizes by one listing, and rows where asked for."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from onceonly.checkpoint.finding_codes import FindingCode
from onceonly.checkpoint.verification import Depth
from onceonly.counts import count
from onceonly.delta import table_files
from onceonly.delta.table_history import TableFile
from onceonly.errors import OutcomeUnknown
from onceonly.sinks.delta.handle import DeltaHandle
from onceonly.storage.folders import read_digest
from onceonly.storage.objects import Objects
from onceonly.storage.paths import local_path

MAX_PARALLEL_FILES = 4  # read at the same time
MAX_ROWS_IN_MEMORY = 1 << 16  # of a file
UNREADABLE_ERRORS = (pa.ArrowException, OSError, ValueError)
Damage = tuple[FindingCode, str]


class FileCheck:
    """Looks at files, and remembers what it has found.

    Args:
        uri: of the table.
    """

    def __init__(self, uri: str, depth: Depth) -> None:
        self.uri, self._depth = uri.rstrip("/"), depth
        self.named_rows: dict[str, int] = {}  # transaction -> rows that name it; only what was counted
        self._damages: dict[str, Damage] = {}
        self._files: pafs.FileSystem | None = None

    def check(self, files: Sequence[TableFile]) -> None:
        """Compare the files with the listing of their folder, and read them if that is asked for.

        Raises:
            OutcomeUnknown: the storage does not answer.
        """
        sizes = self._list_sizes()
        files_to_read = []
        for file in files:
            size = sizes.get(self.normalize(file.path))
            if self._is_outside(file.path):
                continue  # of a clone: it is in another table's folder
            if size is None:
                self._damages[file.identity] = FindingCode.FILE_MISSING, f"{file.path} is not there"
            elif file.size is not None and size != file.size:
                why = f"{file.path} has {size:,} bytes, and the log says {file.size:,}"
                self._damages[file.identity] = FindingCode.FILE_SIZE, why
            else:
                files_to_read.append(file)
        if not self._depth.reads_rows:
            return
        with ThreadPoolExecutor(MAX_PARALLEL_FILES) as pool:
            for done, (file, damage) in enumerate(
                zip(files_to_read, pool.map(self._read, files_to_read), strict=True), 1
            ):
                if damage:
                    self._damages[file.identity] = damage
                self._depth.show_progress(done, len(files_to_read))

    def find_damage(self, file: TableFile) -> Damage | None:
        return self._damages.get(file.identity)

    def count_rows(self, file: TableFile) -> int | None:
        """Count the rows of a file, hidden ones too, as its footer says; None: it is not to be read, or gone."""
        if not self._depth.reads_rows:
            return None
        try:
            with self._storage.open_input_file(file.path) as source:
                return int(pq.ParquetFile(source).metadata.num_rows)
        except UNREADABLE_ERRORS:
            return None

    def count_named_rows(self, files: Iterable[TableFile], handles: Sequence[DeltaHandle]) -> None:
        """Count the rows that name each transaction, in all files, where the rows of all have the same column.

        Rows that a deletion vector hides cannot be told apart here: then nothing is counted.
        """
        files = list(files)
        names_by_column: dict[str, set[str]] = {}
        for handle in handles:
            if handle.checkpoint_column:
                names_by_column.setdefault(handle.checkpoint_column, set()).add(handle.transaction.name)
        if not names_by_column or any(file.hidden for file in files):
            return
        rows: Counter[str] = Counter()
        for file in files:
            counts = self._count_by_name(file, sorted(names_by_column))
            if counts is None:
                return
            rows.update(counts)
        for names in names_by_column.values():
            for name in names:
                self.named_rows[name] = rows[name]

    def have_same_content(self, path: str, other: str) -> bool:
        """Return whether two files of the table hold the same bytes; False also where one is gone.

        Raises:
            OutcomeUnknown: the storage does not answer.
        """
        try:
            return self._digest(path) == self._digest(other)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self._no_answer_error(error) from error

    def normalize(self, path: str) -> str:
        """Return a path in the table's folder in one spelling."""
        return posixpath.normpath(path.removeprefix(f"{self.uri}/").removeprefix(f"file://{self.uri}/"))

    @property
    def _storage(self) -> pafs.FileSystem:
        if self._files is None:
            self._files = table_files.open_folder(self.uri)
        return self._files

    def _is_outside(self, path: str) -> bool:
        name = self.normalize(path)
        return name.startswith(("/", "..")) or "://" in name

    def _list_sizes(self) -> dict[str, int]:
        try:
            sizes = {}
            if local_path(self.uri) is None:
                for file in Objects(self.uri).list_objects():
                    sizes[file.path] = file.size
                return sizes
            for info in table_files.list_folder(self.uri, recursive=True):
                if info.type is pafs.FileType.File:
                    sizes[info.path] = info.size
            return sizes
        except OSError as error:
            raise self._no_answer_error(error) from error

    def _no_answer_error(self, error: OSError) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the files of {self.uri} cannot be read.",
            f"{type(error).__name__}: {error}",
            "Fix the storage, then repeat the command. Nothing was changed.",
            code="table-unreadable",
        )

    def _read(self, file: TableFile) -> Damage | None:
        """Read all rows of a file; returns what is wrong with it.

        Raises:
            OutcomeUnknown: the storage does not answer; what it cannot parse, pyarrow calls an OSError, too.
        """
        rows = 0
        try:
            with self._storage.open_input_file(file.path) as source:
                for batch in pq.ParquetFile(source).iter_batches(MAX_ROWS_IN_MEMORY, use_threads=False):
                    rows += batch.num_rows
        except UNREADABLE_ERRORS as error:
            self._require_answer(file)
            return FindingCode.FILE_UNREADABLE, f"{file.path} cannot be read ({type(error).__name__})"
        if file.rows is not None and rows != file.rows + file.hidden:
            why = f"{file.path} has {count(rows, 'row')}, and the log says {file.rows + file.hidden:,}"
            return FindingCode.ROW_COUNT, why
        return None

    def _require_answer(self, file: TableFile) -> None:
        try:
            self._digest(file.path)
        except OSError as error:
            raise self._no_answer_error(error) from error

    def _count_by_name(self, file: TableFile, columns: Sequence[str]) -> Counter[str] | None:
        """Count the rows of a file by the transactions that they name; None: it cannot be read."""
        rows: Counter[str] = Counter()
        try:
            with self._storage.open_input_file(file.path) as source:
                parquet = pq.ParquetFile(source)
                present = [name for name in columns if parquet.schema_arrow.get_field_index(name) >= 0]
                if not present:
                    return rows
                for batch in parquet.iter_batches(MAX_ROWS_IN_MEMORY, columns=present, use_threads=False):
                    for column in batch.columns:
                        for value in pc.value_counts(column).to_pylist():
                            rows[str(value["values"])] += value["counts"]
        except UNREADABLE_ERRORS:
            return None
        return rows

    def _digest(self, path: str) -> str:
        return read_digest(self._storage, path)
