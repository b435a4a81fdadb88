"""Tables and folders of files as sources of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlsplit

from onceonly.pipeline import catalogs
from onceonly.pipeline.checks import TOPIC, invalid
from onceonly.pipeline.source_config import EARLIEST, check_grace, is_offset, place


@dataclass(frozen=True)
class Stored:
    """What tables and folders have in common. The place is a path; the name need not be one."""

    path: str
    name: str | None = None

    topic_pattern: ClassVar[None] = None
    later: ClassVar[Mapping[str, Any]] = {}  # fields that are stored only if they differ from these

    def __post_init__(self) -> None:
        check_name(self.path, self.name)

    @property
    def topic(self) -> str:
        return self.name or last_part(self.path)

    @property
    def place(self) -> str:
        """What is read, for people, as the targets of sinks are."""
        return f"'{self.path}'"

    @property
    def asset_uri(self) -> str:
        return folder_uri(self.path)

    @property
    def input_name(self) -> str:
        return self.topic

    def reads(self, topic: str) -> bool:
        return topic == self.topic


@dataclass(frozen=True)
class DeltaSource(Stored):
    """A Delta table to read, version after version.

    Args:
        path: folder or URI; a relative path is below ONCEONLY_HOME.
        name: what it is called in the transform's input and in messages; by default the last part of the path.
        changes: read the table's Change Data Feed, with inserted, updated and deleted rows, and the columns
            _change_type, _commit_version and _commit_timestamp. Without it, the table may only be appended to.
        start: chained mode only: where the first checkpoint begins: 'earliest', with all rows that the table has;
            'latest'; a version, which is the first one to be read; or a time (a datetime with a zone, or its ISO
            text), whose first commit is the first one. Later checkpoints begin where the last one ended.
        max_versions: chained mode only: the maximum number of versions in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late commits before it is
            pinned.
        table: instead of path: the name of a table in a Spark catalog, 'catalog.schema.table' or 'schema.table'.
            Each plan looks it up (docs/catalogs.md).
        table_id: set by the plan, with path: the id of the table that it found.
    """

    path: str = ""
    changes: bool = False
    start: str | int = EARLIEST
    max_versions: int | None = None
    grace: float = 0.0
    table: str | None = None
    table_id: str | None = None

    kind: ClassVar[str] = "delta"
    later: ClassVar[Mapping[str, Any]] = catalogs.LATER
    word: ClassVar[str] = "table"
    counts: ClassVar[str] = "max_versions"

    def __post_init__(self) -> None:
        catalogs.check_named("a DeltaSource", self.path, self.table, self.table_id)
        if self.table:
            check_name(self.table, self.topic)
        else:
            check_name(self.path, self.name or None)
        check_grace(self.grace)
        check_most(self.counts, self.most)
        object.__setattr__(self, "start", check_start(self.start, self.word, "version"))

    @property
    def topic(self) -> str:
        if self.name:
            return self.name
        if self.table:
            return self.table.rpartition(".")[2]
        return last_part(self.path)

    @property
    def place(self) -> str:
        return super().place if self.path else f"table '{self.table}'"

    @property
    def asset_uri(self) -> str:
        return catalogs.table_uri(self.table) if self.table else super().asset_uri

    def of(self, topic: str) -> DeltaSource:
        return self

    @property
    def begins(self) -> str | Mapping[str, int]:
        return {"0": self.start} if isinstance(self.start, int) else self.start

    @property
    def most(self) -> int | None:
        return self.max_versions


@dataclass(frozen=True)
class FileSource(Stored):
    """A folder to read, into which a FileSink publishes: decision after decision.

    Args:
        path: folder on a local or mounted file system, hdfs://namenode:8020/… or s3://bucket/…; a relative path is
            below ONCEONLY_HOME.
        name: what it is called in the transform's input and in messages; by default the last part of the path.
        start: chained mode only: where the first checkpoint begins: 'earliest', with all files that are published;
            'latest'; a decision, which is the first one to be read; or a time (a datetime with a zone, or its ISO
            text), whose first decision is the first one. Later checkpoints begin where the last one ended.
        max_decisions: chained mode only: the maximum number of decisions in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late commits before it is
            pinned.
    """

    start: str | int = EARLIEST
    max_decisions: int | None = None
    grace: float = 0.0

    kind: ClassVar[str] = "files"
    word: ClassVar[str] = "folder"
    counts: ClassVar[str] = "max_decisions"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_grace(self.grace)
        check_most(self.counts, self.most)
        object.__setattr__(self, "start", check_start(self.start, self.word, "decision"))

    def of(self, topic: str) -> FileSource:
        return self

    @property
    def begins(self) -> str | Mapping[str, int]:
        return {"0": self.start} if isinstance(self.start, int) else self.start

    @property
    def most(self) -> int | None:
        return self.max_decisions


def folder_uri(path: str) -> str:
    """Return the URI of an asset: an absolute path becomes file://…, a path below ONCEONLY_HOME onceonly://…."""
    if urlsplit(path).scheme:
        return path
    if path.startswith("/"):
        return f"file://{path}"
    return f"onceonly://{path}"


def last_part(path: str) -> str:
    """Return the last part of a path or URI."""
    return urlsplit(path).path.rstrip("/").rpartition("/")[2]


def check_name(path: str, name: str | None) -> None:
    """Check that the path is one, and that the name, or else its last part, can be a source's name.

    Raises:
        InvalidPipeline: that is not so.
    """
    if not isinstance(path, str) or not path or "\0" in path:
        raise invalid(f"path {path!r}", "is no place", "Give a folder or a URI.")
    if name is None:
        topic, what = last_part(path), f"the last part of '{path}'"
    else:
        topic, what = name, f"name '{name}'"
    if not TOPIC.fullmatch(topic):
        raise invalid(what, "cannot be a source's name", "Set name=… to letters, digits, '.', '_' and '-'.")


def check_start(start: Any, word: str, unit: str) -> str | int:
    """Return the start as plain data: a word, the ISO text of a time, or a number of that unit.

    Raises:
        InvalidPipeline: it is none of these.
    """
    checked: str | int | None = start if is_offset(start) else place(start)
    if checked is None:
        todo = f"Use 'earliest', 'latest', a time with its zone, or a {unit}."
        raise invalid(f"start {start!r}", f"is not a place in a {word}", todo)
    return checked


def check_most(name: str, most: int | None) -> None:
    if most is not None and most < 1:
        raise invalid(name, f"is {most}", "Use a number above 0, or remove it.")
