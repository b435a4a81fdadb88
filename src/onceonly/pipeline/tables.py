"""Tables as sources of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from onceonly.pipeline.checks import TOPIC, invalid
from onceonly.pipeline.source_config import EARLIEST, check_grace, is_offset, place


@dataclass(frozen=True)
class DeltaSource:
    """A Delta table to read, version after version.

    Args:
        path: folder or URI; a relative path is below ONCEONLY_HOME.
        name: what it is called in the transform's input and in messages; by default the last part of the path.
        changes: read the table's Change Data Feed, with inserted, updated and deleted rows, and the columns
            _change_type, _commit_version and _commit_timestamp. Without it, the table may only be appended to.
        start: chained mode only: where the first checkpoint begins: 'earliest', with all rows that the table has;
            'latest'; a version, which is the first one to be read; or a time (a datetime with a zone, or its ISO
            text), whose first commit is the first one. Later checkpoints begin where the one before ended.
        max_versions: chained mode only: the maximum number of versions in one checkpoint.
        grace: interval mode only: seconds after its end for which an interval waits for late commits before it is
            pinned.
    """

    path: str
    name: str | None = None
    changes: bool = False
    start: str | int = EARLIEST
    max_versions: int | None = None
    grace: float = 0.0

    kind: ClassVar[str] = "delta"
    topic_pattern: ClassVar[None] = None

    def __post_init__(self) -> None:
        check_name(self.path, self.name)
        check_grace(self.grace)
        check_most("max_versions", self.max_versions)
        start = self.start if is_offset(self.start) else place(self.start)
        if start is None:
            todo = "Use 'earliest', 'latest', a time with its zone, or a version."
            raise invalid(f"start {self.start!r}", "is not a place in a table", todo)
        object.__setattr__(self, "start", start)

    @property
    def topic(self) -> str:
        return self.name or last_part(self.path)

    @property
    def called(self) -> str:
        return self.topic

    def reads(self, topic: str) -> bool:
        return topic == self.topic

    def of(self, topic: str) -> DeltaSource:
        return self

    @property
    def begins(self) -> str | Mapping[str, int]:
        return {"0": self.start} if isinstance(self.start, int) else self.start

    @property
    def most(self) -> int | None:
        return self.max_versions


def last_part(path: str) -> str:
    return urlsplit(path).path.rstrip("/").rpartition("/")[2]


def check_name(path: str, name: str | None) -> None:
    if not isinstance(path, str) or not path or "\0" in path:
        raise invalid(f"path {path!r}", "is not the place of a table", "Give a folder or a URI.")
    if not TOPIC.fullmatch(name if name is not None else last_part(path)):
        what = f"name '{name}'" if name is not None else f"the last part of '{path}'"
        raise invalid(what, "cannot be a source's name", "Set name=… to letters, digits, '.', '_' and '-'.")


def check_most(name: str, most: int | None) -> None:
    if most is not None and most < 1:
        raise invalid(name, f"is {most}", "Use a number above 0, or remove it.")
