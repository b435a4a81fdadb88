"""What a power failure leaves on a local disk: for sure only files and folders that fsync has been told of.

Of a Delta log it may leave an entry without its content. Readers take an empty entry for a commit of nothing: such a
row was not written. But whoever acted on it would be wrong, hence `Log.keep`: for those who write an entry, and for
those who read one.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from onceonly.errors import NotCommitted

AT_ONCE = 8
ENTRY = re.compile(r"(\d{20})\.(json|checkpoint.*)")  # of a Delta log: a commit, or the state after it


def require_writable(folder: Path) -> None:
    """Refuse, before any work, a folder in which nothing could be recorded; one that is missing could be made.

    Raises:
        NotCommitted: nothing was written.
    """
    place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    if os.access(place, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return
    denied = f"User id {os.geteuid()} has no write permission in {place}."
    raise NotCommitted(
        f"{folder} cannot be written to.",
        f"{place} is mounted read-only." if os.statvfs(place).f_flag & os.ST_RDONLY else denied,
        "Make it writable, or choose another place: ONCEONLY_HOME, ONCEONLY_STATE. Nothing was written.",
    )


def to_disk(path: Path) -> None:
    """fsync, of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some network file systems have no fsync of folders
            raise
    finally:
        os.close(descriptor)


def way_to_disk(folder: Path) -> None:
    """A folder and all above it: any of them may be new."""
    to_disk(folder)
    for place in folder.absolute().parents:
        with suppress(PermissionError):  # somebody else's
            to_disk(place)


def tree_to_disk(folder: Path) -> None:
    """All that is below a folder, and the way to it."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(_if_there, (Path(root) / name for root, _, names in os.walk(folder) for name in names)))
    for root, _, _ in os.walk(folder):
        _if_there(Path(root))
    way_to_disk(folder.parent)


def write(path: Path, content: bytes) -> None:
    """A file under its name, whole: never in part, and not before it is on disk."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(content)
        to_disk(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    to_disk(path.parent)


class Log:
    """The log of a Delta table at a local path, and how far it is known to be on disk."""

    def __init__(self, table: Path) -> None:
        self.folder = table / "_delta_log"
        self._kept = -1

    def keep(self) -> None:
        """See to it that every entry that is there is on disk. One look at the folder, where nothing is new.

        Raises:
            OSError: it may not be there after a power failure.
        """
        tail = self.tail()
        newest = version_of(tail[-1])
        known = self._kept if self._kept <= newest else -1  # -1: a new process, or a log that went back
        new = [name for name in tail if version_of(name) > known]
        for name in new:
            _if_there(self.folder / name)  # else it was cleaned up, and a later log checkpoint is on disk
        if new:
            (way_to_disk if known < 0 else to_disk)(self.folder)
        self._kept = newest

    def tail(self) -> list[str]:
        """Names of the entries from the last log checkpoint on, in order: all that a reader needs."""
        names = sorted(name for name in os.listdir(self.folder) if ENTRY.fullmatch(name))
        if not names:
            raise FileNotFoundError(f"{self.folder} holds no log")
        checkpoints = [name for name in names if not name.endswith(".json") and self._has_content(name)]
        start = version_of(checkpoints[-1]) if checkpoints else 0
        return [name for name in names if version_of(name) >= start]

    def passes_over(self, version: int) -> bool:
        """Whether readers begin after that version, so that an entry of that number may have been cleaned up."""
        return version_of(self.tail()[0]) >= version

    def _has_content(self, name: str) -> bool:
        with suppress(FileNotFoundError):
            return (self.folder / name).stat().st_size > 0
        return False


def _if_there(path: Path) -> None:
    with suppress(FileNotFoundError):
        to_disk(path)


def version_of(name: str) -> int:
    return int(name[:20])
