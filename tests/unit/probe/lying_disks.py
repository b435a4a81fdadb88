"""Disks that break one promise each: an injected place, for threads of the test's own process."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onceonly.probe.places import DiskPlace, open_place
from onceonly.storage.interface import PreparedFile
from onceonly.storage.local import LocalFiles
from onceonly.storage.own_paths import OwnPath


def open_honest(uri: str, name: str, webhdfs: str | None) -> DiskPlace:
    place = open_place(uri, name, webhdfs)
    assert isinstance(place, DiskPlace)
    return place


class LyingFiles(LocalFiles):
    """Sinks publish by it."""


class Overwriting(LyingFiles):
    """A link that takes a taken name, as rename(2) does."""

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        os.replace(old.path, new)


class Remembering(LyingFiles):
    """A link to a file that was removed brings it back."""

    def prepare(self, staged: str, final: str) -> PreparedFile:
        shutil.copy(staged, f"{final}.kept")
        return super().prepare(staged, final)

    def move(self, old: OwnPath, new: str, ready: PreparedFile | None = None) -> None:
        if Path(old.path).exists():
            return super().move(old, new, ready)
        os.replace(f"{new}.kept", new)


class Losing(LyingFiles):
    """A renamed folder lacks a file."""

    def rename_folder(self, old: OwnPath, new: OwnPath) -> None:
        super().rename_folder(old, new)
        Path(f"{new.path}/0").unlink(missing_ok=True)


class Lying(DiskPlace):
    """Whoever extends it breaks a promise."""

    promise: str
    lying_files: type[LocalFiles] = LocalFiles

    def __init__(self, place: DiskPlace) -> None:
        super().__init__(place.uri, place.name, self.lying_files(), place.parent)
        self.old: dict[str, Any] = {}


class Forgetting(Lying):
    promise = "put-if-absent"

    def create(self, name: str, content: bytes) -> None:
        self.write(name, content)


class ListingLate(Lying):
    promise = "listing-after-writing"

    def list_entries(self, after: str = "") -> dict[str, float]:
        listed = super().list_entries(after)
        is_first = not self.old
        self.old |= listed
        return {} if is_first else listed


class ListingOld(Lying):
    promise = "listing-after-deleting"

    def list_entries(self, after: str = "") -> dict[str, float]:
        self.old |= super().list_entries(after)
        return dict(self.old)


class ReadingLate(Lying):
    promise = "reading-after-writing"

    def read(self, name: str) -> bytes:
        if "life" in name and name not in self.old:
            self.old[name] = True
            raise FileNotFoundError(name)
        return super().read(name)


class Stale(Lying):
    promise = "reading-after-overwriting"

    def read(self, name: str) -> bytes:
        content = super().read(name)
        return bytes(self.old.setdefault(name, content)) if "life" in name else content


class Undead(Lying):
    promise = "reading-after-deleting"

    def read(self, name: str) -> bytes:
        try:
            self.old[name] = super().read(name)
        except FileNotFoundError:
            if "life" not in name:
                raise
        return bytes(self.old[name])


class Torn(Lying):
    promise = "whole-contents"

    def read(self, name: str) -> bytes:
        return super().read(name)[:-1] if "whole" in name else super().read(name)


class Ahead(Lying):
    promise = "clocks"

    def list_entries(self, after: str = "") -> dict[str, float]:
        return {name: changed + 301 for name, changed in super().list_entries(after).items()}


class InMemory(Lying):
    promise = "durability"

    def measure_sync(self, name: str) -> Mapping[str, Any]:
        return {"seconds": 0.0, "objection": "/ is in memory (tmpfs)"}


class Replacing(Lying):
    promise, lying_files = "publication", Overwriting


class BringingBack(Lying):
    promise, lying_files = "withdrawal", Remembering


class Partial(Lying):
    promise, lying_files = "folder-renames", Losing


class Split(Lying):
    """Each writer of a Delta table has a table of its own."""

    promise = "delta-commits"

    @property
    def table_uri(self) -> str:
        from threading import get_ident

        if not self.old:
            self.old["first"] = super().table_uri
            return str(self.old["first"])
        own = f"{super().table_uri}-{get_ident()}"
        if not Path(own).exists():
            for _ in range(100):
                if Path(self.old["first"]).exists():
                    break
                time.sleep(0.01)
            shutil.copytree(self.old["first"], own, dirs_exist_ok=True)
        return own


class Copying(Lying):
    """A store that copies whatever has changed."""

    promise, has_conditional_copies = "conditional-copies", True

    def copy_changed(self, source: str, change: bytes, new: str, mark: str) -> None:
        Path(source).write_bytes(change)
        shutil.copy(source, new)


LIES = {lie.promise: lie for lie in Lying.__subclasses__()}


def _opener(lie: type[Lying]) -> Any:
    return lambda uri, name, webhdfs: lie(open_honest(uri, name, webhdfs))


for _promise, _lie in LIES.items():
    globals()[_promise.replace("-", "_")] = _opener(_lie)
