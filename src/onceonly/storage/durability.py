"""Durability on a local disk: only files and folders that were synced (fsync) survive a power failure for certain."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from onceonly.errors import NotCommitted

MAX_PARALLEL_SYNCS = 8


def require_writable(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before any work. A missing folder passes if it can be created.

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
        "Make it writable, or name another folder: the sink's path, ONCEONLY_HOME, ONCEONLY_STATE or ONCEONLY_SPOOL. "
        "Nothing was written.",
        code="folder-not-writable",
    )


def sync(path: Path) -> None:
    """Sync (fsync) a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some network file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


def sync_with_parents(folder: Path) -> None:
    """Sync a folder and all its parents: any of them may be new."""
    sync(folder)
    for place in folder.absolute().parents:
        with suppress(PermissionError):  # a folder of another user
            sync(place)


def sync_tree(folder: Path) -> None:
    """Sync everything below a folder, the folder, and its parents."""
    from concurrent.futures import ThreadPoolExecutor  # here, so that `onceonly status` starts fast

    with ThreadPoolExecutor(MAX_PARALLEL_SYNCS) as pool:
        list(pool.map(_sync_existing, _files_below(folder)))
    for root, _, _ in os.walk(folder):
        _sync_existing(Path(root))
    sync_with_parents(folder.parent)


def _files_below(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root) / name


def sync_files(paths: Iterable[Path]) -> None:
    """Sync these files and their folders, up to the root. A file that is missing was removed by its owner since."""
    from concurrent.futures import ThreadPoolExecutor

    files = list(paths)
    with ThreadPoolExecutor(MAX_PARALLEL_SYNCS) as pool:
        list(pool.map(_sync_existing, files))
    folders = {path.parent for path in files}
    for folder in sorted(folder for folder in folders if folder.exists()):
        sync_with_parents(folder)


def write(path: Path, content: bytes) -> None:
    """Write a file atomically: it has its name only once its whole content is on disk."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(content)
        sync(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def _sync_existing(path: Path) -> None:
    with suppress(FileNotFoundError):
        sync(path)
