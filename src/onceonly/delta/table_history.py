"""The log of a Delta table, read once and as far back as it goes: every commit, and the files of the newest version.

Source: Delta protocol, "Add File and Remove File", "Deletion Vectors", "Checkpoints", "Sidecar File Information",
"Commit Provenance Information".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from onceonly.delta import log_files, log_summary, table_files
from onceonly.errors import OutcomeUnknown
from onceonly.storage.objects import Objects
from onceonly.storage.paths import local_path

MAX_PARALLEL_READS = 16  # requests for log entries
MAX_CHECKPOINT_ROWS = 1 << 14  # of a log checkpoint, in memory
SIDECARS = f"{log_files.LOG_FOLDER}/_sidecars"
ADD_COLUMNS = ("path", "partitionValues", "size", "stats", "stats_parsed", "deletionVector")
USER_KEYS = ("userName", "userId", "userMetadata")  # in the information of a commit


class BrokenLog(Exception):
    """No reader can open the table: an entry of its log, or the log checkpoint before them, is missing."""


@dataclass(frozen=True)
class TableFile:
    """A file of the table, as an add action describes it.

    Args:
        path: decoded.
        identity: the path, and the deletion vector if it has one: both together identify a file in the log.
        rows: those that readers see; None: the log does not say.
        hidden: rows that the deletion vector hides.
        partition: its values as one text.
        changes_data: the commit that added it did not only move rows.
    """

    path: str
    identity: str
    size: int | None
    rows: int | None
    hidden: int
    partition: str | None
    changes_data: bool = True


@dataclass(frozen=True)
class LogEntry:
    """One commit.

    Args:
        adds: by identity.
        removes: identity -> whether the removal changes data.
        txns: app id -> number, of the transactions that it published.
        table_ids: those that it gave to the table: one, or none.
        digest: SHA-256 of the entry.
    """

    version: int
    adds: Mapping[str, TableFile]
    removes: Mapping[str, bool]
    txns: Mapping[str, int]
    table_ids: tuple[str, ...]
    digest: str
    operation: str
    at: datetime | None
    user: str

    def __str__(self) -> str:
        """Name the commit for people: version, operation, time and user, as far as it tells them."""
        text = f"version {self.version} ({self.operation}"
        if self.at:
            text += f", {self.at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{text}{', by ' if self.user else ''}{self.user})"


@dataclass
class TableHistory:
    """What the log shows.

    Args:
        newest: version of the table.
        table_ids: all that it has had, as far as the log goes back; the last one counts.
        entries: without a gap up to the newest, oldest first.
        base: the version from which the files are known; -1: from the beginning. Entries before it may be there, too.
        base_files: the files of that version.
        files: those of the newest version, by identity.
        txns: of the newest version.
        configuration: the table's properties.
    """

    uri: str
    newest: int
    base: int
    entries: list[LogEntry] = field(default_factory=list)
    base_files: dict[str, TableFile] = field(default_factory=dict)
    files: dict[str, TableFile] = field(default_factory=dict)
    txns: dict[str, int] = field(default_factory=dict)
    table_ids: list[str] = field(default_factory=list)
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def first(self) -> int:
        """The first version of which the entry is there."""
        return self.entries[0].version if self.entries else self.newest + 1

    @property
    def is_whole(self) -> bool:
        """Whether the log goes back to the table's creation."""
        return self.first == 0

    def find_entry(self, version: int) -> LogEntry | None:
        index = version - self.first
        return self.entries[index] if 0 <= index < len(self.entries) else None


def read_history(uri: str, show_progress: Callable[[int], None]) -> TableHistory | None:
    """Read the whole log; None: there is no table.

    Args:
        show_progress: is called with the number of entries read so far.
    Raises:
        BrokenLog: the table cannot be read by anybody.
        OutcomeUnknown: the storage does not answer.
    """
    try:
        names = table_files.list_log(uri)
        newest = log_files.find_newest_version(names)
        if newest < 0:
            return None
        first, base, parts = _find_start(names, newest)
        history = TableHistory(uri, newest, base)
        for part in parts:
            _add_checkpoint(history, _read_checkpoint(uri, f"{log_files.LOG_FOLDER}/{part}"))
        _add_entries(history, range(first, newest + 1), show_progress)
    except FileNotFoundError as error:
        raise BrokenLog(f"{error} does not exist") from error
    except log_summary.LOG_ERRORS as error:
        raise OutcomeUnknown(
            f"the log of {uri} cannot be read.",
            f"{type(error).__name__}: {error}",
            "Fix the storage or the table, then repeat the command. Nothing was changed.",
            code="table-unreadable",
        ) from error
    return history


def _find_start(names: Iterable[str], newest: int) -> tuple[int, int, list[str]]:
    """Return the first entry, the version whose files a log checkpoint tells, and the files of that checkpoint.

    Without a gap, the entries have to follow a log checkpoint, or the creation of the table.
    """
    versions, checkpoint_names = set(), dict[int, list[str]]()
    for name in names:
        version = log_files.find_entry_version(name)
        if version is not None:
            versions.add(version)
        checkpoint = log_files.find_checkpoint_version(name)
        if checkpoint is not None:
            checkpoint_names.setdefault(checkpoint, []).append(name)
    first = newest + 1
    while first - 1 in versions:
        first -= 1
    if first == 0:
        return 0, log_files.NO_VERSION, []
    for version in sorted(checkpoint_names):
        base, parts = log_files.find_last_checkpoint(checkpoint_names[version])
        if base >= first - 1:
            return first, base, parts
    raise BrokenLog(f"log entry {first - 1} does not exist, and no log checkpoint takes its place")


def _add_entries(history: TableHistory, versions: range, show_progress: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(MAX_PARALLEL_READS) as pool:
        contents = pool.map(lambda version: _read_bytes(history.uri, log_files.entry_path(version)), versions)
        for version, content in zip(versions, contents, strict=True):
            entry, configuration = _parse_entry(version, content)
            history.entries.append(entry)
            history.txns |= entry.txns
            history.table_ids += entry.table_ids
            if configuration is not None:
                history.configuration = configuration
            if version > history.base:
                for identity in entry.removes:
                    history.files.pop(identity, None)
                history.files |= entry.adds
            show_progress(len(history.entries))


def _add_checkpoint(history: TableHistory, actions: Iterable[Mapping[str, Any]]) -> None:
    for action in actions:
        if add := action.get("add"):
            file = _to_file(add)
            history.base_files[file.identity] = history.files[file.identity] = file
        if txn := action.get("txn"):
            history.txns[txn["appId"]] = txn["version"]
        if metadata := action.get("metaData"):
            history.table_ids.append(metadata["id"])
            history.configuration = dict(metadata.get("configuration") or {})
        if sidecar := action.get("sidecar"):
            name = unquote(sidecar["path"]).rpartition("/")[2]
            _add_checkpoint(history, _read_checkpoint(history.uri, f"{SIDECARS}/{name}"))


def _read_bytes(uri: str, path: str) -> bytes:
    if folder := local_path(uri):
        return (folder / path).read_bytes()
    return Objects(uri).read(path)


# ---- entries


def _parse_entry(version: int, content: bytes) -> tuple[LogEntry, dict[str, str] | None]:
    """Return the entry, and the table's properties if it sets them."""
    adds, removes, txns = dict[str, TableFile](), dict[str, bool](), dict[str, int]()
    info: Mapping[str, Any] = {}
    table_ids, configuration = list[str](), None
    for action in log_files.parse_actions(content.splitlines()):
        if add := action.get("add"):
            file = _to_file(add)
            adds[file.identity] = file
        elif remove := action.get("remove"):
            removes[_identify(remove)] = bool(remove.get("dataChange", True))
        elif txn := action.get("txn"):
            txns[txn["appId"]] = txn["version"]
        elif metadata := action.get("metaData"):
            table_ids.append(metadata["id"])
            configuration = dict(metadata.get("configuration") or {})
        elif action.get("commitInfo"):
            info = action["commitInfo"]
    digest = hashlib.sha256(content).hexdigest()
    operation, at, user = _describe_commit(info)
    return LogEntry(version, adds, removes, txns, tuple(table_ids), digest, operation, at, user), configuration


def _describe_commit(info: Mapping[str, Any]) -> tuple[str, datetime | None, str]:
    """Return operation, time and user of a commit, as it describes itself."""
    operation = str(info.get("operation", "?"))
    parameters = info.get("operationParameters")
    mode = ""
    if operation == "WRITE" and isinstance(parameters, Mapping):
        mode = str(parameters.get("mode", "")).strip('"').lower()
    if mode == "overwrite":
        operation = "WRITE overwrite"
    millis = info.get("inCommitTimestamp", info.get("timestamp"))
    at = datetime.fromtimestamp(millis / 1000, UTC) if isinstance(millis, int) else None
    users = [str(info[key]) for key in USER_KEYS if info.get(key)]
    return operation, at, next(iter(users), str(info.get("engineInfo", "")))[:100]


def _to_file(add: Mapping[str, Any]) -> TableFile:
    vector = add.get("deletionVector") or {}
    hidden = int(vector.get("cardinality") or 0)
    rows = _count_rows(add)
    if rows is not None:
        rows -= hidden
    partition_values = {name: text or None for name, text in dict(add.get("partitionValues") or {}).items()}
    return TableFile(
        path=unquote(add["path"]),
        identity=_identify(add),
        size=add.get("size"),
        rows=rows,
        hidden=hidden,
        partition=json.dumps(partition_values, sort_keys=True),
        changes_data=bool(add.get("dataChange", True)),
    )


def _count_rows(add: Mapping[str, Any]) -> int | None:
    """Return how many rows the file has, by its statistics, with those that are hidden."""
    statistics: Mapping[str, Any] = add.get("stats_parsed") or {}
    if add.get("stats"):
        try:
            statistics = json.loads(add["stats"])
        except ValueError:
            return None
    number = statistics.get("numRecords")
    return int(number) if number is not None else None


def _identify(action: Mapping[str, Any]) -> str:
    path, vector = unquote(action["path"]), action.get("deletionVector")
    if not vector:
        return path
    return f"{path}#{vector.get('storageType')}{vector.get('pathOrInlineDv')}@{vector.get('offset')}"


# ---- log checkpoints


def _read_checkpoint(uri: str, path: str) -> Iterator[Mapping[str, Any]]:
    content = _read_bytes(uri, path)
    if path.endswith(".json"):
        yield from log_files.parse_actions(content.splitlines())
        return
    checkpoint = pq.ParquetFile(pa.BufferReader(content))
    columns = _list_columns(checkpoint.schema_arrow)
    for batch in checkpoint.iter_batches(MAX_CHECKPOINT_ROWS, columns=columns, use_threads=False):
        for name in batch.schema.names:
            if batch[name].null_count == len(batch):
                continue
            for value in batch[name].to_pylist():
                if value:
                    yield {name: value}


def _list_columns(schema: pa.Schema) -> list[str]:
    """List the columns of a log checkpoint that are needed, of those that it has."""
    columns = []
    for name in ("txn", "metaData", "sidecar"):
        if schema.get_field_index(name) >= 0:
            columns.append(name)
    if schema.get_field_index("add") < 0:
        return columns
    add_type = schema.field("add").type
    for name in ADD_COLUMNS:
        if add_type.get_field_index(name) < 0:
            continue
        if name != "stats_parsed":
            columns.append(f"add.{name}")
        elif add_type.field(name).type.get_field_index("numRecords") >= 0:
            columns.append("add.stats_parsed.numRecords")
    return columns
