"""The log of a pipeline's table on an object store: a commit is a put that fails if the name exists.

What an object store has acknowledged is durable. Entries of the log are never removed there. Each request costs a round
trip, so what this process has read or written is kept. One listing shows whether it still counts, by the tag of the
newest entry that is known: its content names one row. In a log that was restored or replaced, it is missing or has
another tag.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property

from onceonly.filesystems import delta_names
from onceonly.filesystems.objects import Found, Objects
from onceonly.statetable import before
from onceonly.statetable.log import CONFIGURATION, MERGE, NONE, Action, Commit, Damaged, Entry, Taken, creation, parsed

PARSED = 256  # entries that are kept in memory
FRESH = 0.25  # seconds: a row is written after a look at the log that is not older


class _Seen(threading.local):
    """What a thread has seen of one history of the log; the tag and the time are of the newest version."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.other = self.merged = False  # merged: by this thread just now, and it has not looked since
        self.newest, self.checkpoint, self.tag, self.at = NONE, NONE, "", float("-inf")
        self.entries: dict[int, Entry] = {}


class StoreLog:
    """See `Log`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._seen = _Seen()

    @cached_property
    def files(self) -> Objects:
        return Objects(self.uri)

    def entries(self) -> tuple[int, Iterator[Entry]]:
        """After a merge by this thread, once, as that has left them: who was first since is met by the next commit."""
        merged, self._seen.merged = self._seen.merged, False
        if merged:
            return self.recent()
        self._look()
        return self._seen.newest, self._read(self._seen.newest)

    def recent(self) -> tuple[int, Iterator[Entry]]:
        """As the last look has shown them, if that was just now: enough for who commits on them, or not at all."""
        if time.monotonic() - self._seen.at > FRESH:
            self._look()
        return self._seen.newest, self._read(self._seen.newest)

    @property
    def checkpoint(self) -> int:
        """The version of the last log checkpoint of one file that has been seen; NONE: there is none.

        One of several parts, which other programs write, may lack some of them.
        """
        return self._seen.checkpoint

    def is_other(self) -> bool:
        return self._seen.other or self._seen.newest == NONE

    def create(self, configuration: Mapping[str, str] = CONFIGURATION) -> None:
        with suppress(Taken):
            self.commit(0, creation(configuration), None)

    def commit(self, version: int, commit: Commit, after: Entry | None) -> None:
        self._check(version - 1, after)
        try:
            text = commit.lines(before.told(version, self._seen.entries))
            tag = self.files.create(delta_names.entry(version), text.encode())
        except FileExistsError as error:  # also where a first answer was lost
            raise Taken from error
        seen = self._seen
        seen.newest, seen.tag, seen.at = version, tag or "", time.monotonic()
        seen.merged = commit.operation == MERGE
        _keep(seen.entries, Entry(version, commit.row, commit.operation == MERGE))

    def keep(self) -> None:
        """What an object store has acknowledged is durable."""

    def _check(self, version: int, after: Entry | None) -> None:
        """A restored or replaced table may have other rows under the same versions, or lack some.

        Without another look if the last one was just now, or what this thread has just written is that version.
        """
        seen = self._seen
        if seen.newest != version or time.monotonic() - seen.at > FRESH:
            self._look()
        if seen.newest != version:
            raise Taken
        if after and after.row:
            found = next((entry.row for entry in self._read(version) if entry.row), None)
            if found is None or found.id != after.row.id:
                raise Taken

    def _look(self) -> None:
        """Take up what was written since; where it is not the log that was seen, begin again."""
        seen = self._seen
        had = seen.newest != NONE
        if not had or not seen.tag or not self._follow():
            seen.forget()
            seen.other = had
            self._take(delta_names.recent(self.files))

    def _follow(self) -> bool:
        """By one request, for the newest entry that is known and those behind it; False: it is another log."""
        seen = self._seen
        listed = self.files.below(delta_names.LOG, after=delta_names.entry(seen.newest - 1))
        known = next((found for found in listed if found.path == delta_names.entry(seen.newest)), None)
        if known is None or known.tag != seen.tag:
            return False
        self._take(listed)
        return True

    def _take(self, listed: list[Found]) -> None:
        seen = self._seen
        versions = []
        for found in listed:
            version = delta_names.version_of(found.name)
            if version is not None:
                versions.append(version)
                seen.newest, seen.tag = version, found.tag or ""
            checkpoint = delta_names.checkpoint_of(found.name)
            if checkpoint is not None and found.path == delta_names.checkpoint(checkpoint):
                seen.checkpoint = max(seen.checkpoint, checkpoint)
        if versions != list(range(versions[0], seen.newest + 1) if versions else ()):
            raise Damaged(f"Only {len(versions)} of the versions {versions[0]} to {seen.newest} are there.")
        seen.at = time.monotonic()

    def _read(self, newest: int) -> Iterator[Entry]:
        known = self._seen.entries  # of this history, whatever is seen later
        told: dict[int, Entry] = {}  # by the entry that was fetched last: `known` does not keep the oldest ones
        for version in range(newest, NONE, -1):
            if version not in known and version not in told:
                try:
                    told = {each.version: each for each in self._fetch(version)}
                except FileNotFoundError:
                    raise Damaged(f"Version {version} is missing.") from None
                for each in told.values():
                    _keep(known, each)
            yield known.get(version) or told[version]

    def actions(self, version: int) -> list[Action]:
        """Of one entry."""
        return [json.loads(line) for line in self.files.read(delta_names.entry(version)).splitlines()]

    def _fetch(self, version: int) -> list[Entry]:
        """That one, and those before it of which it tells, oldest first."""
        path = delta_names.entry(version)
        try:
            lines = self.files.read(path).decode().splitlines()
            return [*sorted(before.of(version, lines), key=lambda each: each.version), parsed(version, lines)]
        except ValueError as error:
            raise Damaged(f"{path} cannot be parsed: {error}.") from error


def _keep(known: dict[int, Entry], entry: Entry) -> None:
    known[entry.version] = entry
    if len(known) > PARSED:
        del known[min(known)]


def texts(uri: str) -> Iterator[str]:
    """The entries of the log of any table, newest first; none where there is no table.

    Raises:
        OSError: the storage does not answer.
    """
    files = Objects(uri)
    for found in reversed(files.below(delta_names.LOG)):
        if delta_names.version_of(found.name) is not None:
            with suppress(FileNotFoundError):
                yield files.read(found.path, found.tag).decode()
