"""Whether this user can write where a run will: a probe file is written there, and removed again.

Only a write shows it: a mount may be read-only, a quota used up, and a store tells nobody what a login may do.
On a disk, the file loses its name before anything is written into it. A store has no such files: there its name is
the same each time, so a process that dies in between leaves one small object, which the next check removes.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.storage.durability import require_writable as require_permission
from onceonly.storage.paths import HDFS_PREFIX, local_path

PROBE = ".onceonly-check"  # hidden: readers of folders and of Delta's logs pass over such names
FULL = (errno.ENOSPC, errno.EDQUOT)
CONTENT = b"onceonly check\n"


def require_writable(uri: str, webhdfs: str | None = None) -> None:
    """Refuse a folder that this user cannot write to; of one that is missing, its nearest parent. Nothing stays there.

    HDFS is asked instead: its NameNode knows.

    Args:
        webhdfs: HTTP address of the NameNode, for a folder on HDFS.
    Raises:
        NotCommitted, InvalidPipeline: with what is missing.
    """
    local = local_path(uri)
    if local:
        return _probe_disk(local)
    if uri.startswith(HDFS_PREFIX):
        return _ask_namenode(uri, webhdfs)
    _probe_store(uri)


def _probe_disk(folder: Path) -> None:
    require_permission(folder)  # it has the better words for most cases
    place = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    try:
        _write_unnamed_file(place)
    except OSError as error:
        if error.errno in FULL:
            raise NotCommitted(
                f"{folder} cannot be written to: its disk or quota is full.",
                f"{error}.",
                "Make space, or raise the quota. Nothing was written.",
                code="disk-full",
            ) from error
        raise NotCommitted(
            f"{folder} cannot be written to.",
            f"A file could not be created in {place} and removed again: {error}.",
            f"Allow user id {os.geteuid()} both, or name another folder. Nothing was written.",
            code="folder-not-writable",
        ) from error


def _write_unnamed_file(folder: Path) -> None:
    """Create a file, remove its name, and write it: quotas may refuse only what reaches the disk."""
    probe = folder / f"{PROBE}-{uuid.uuid4().hex}"
    descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        probe.unlink()
        os.write(descriptor, CONTENT)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _ask_namenode(uri: str, webhdfs: str | None) -> None:
    # Here, as in the next function: `onceonly status` starts fast, and looks at the state table through this module.
    from onceonly.storage.file_systems import open_file_system
    from onceonly.storage.interface import UnsuitableTarget

    location = open_file_system(uri, webhdfs)
    if location is None:
        return
    try:
        location[0].check(location[1])
    except UnsuitableTarget as error:
        raise InvalidPipeline(
            f"{uri} cannot be written to.", error.why, f"{error.todo} Nothing was written.", code=error.code
        ) from error


def _probe_store(uri: str) -> None:
    """Write an object and delete it. Where Spark and delta-rs would differ in the folder, either does."""
    from onceonly.storage import objects

    files = objects.literal(uri) if set("#?") & set(uri) else objects.Objects(uri)
    doing = "written"
    try:
        with objects.require_client(uri):
            files.write(PROBE, CONTENT)
        doing = "deleted"
        files.unlink([PROBE])
    except PermissionError as error:
        left = f" {PROBE} stays there." if doing == "deleted" else " Nothing was written."
        raise NotCommitted(
            f"{uri} cannot be written to.",
            f"The store refuses this login: an object cannot be {doing}. {error}",
            f"Allow it to list, read, write and delete below that path ({name_page('object-stores')}).{left}",
            code="folder-not-writable",
        ) from error
    except FileNotFoundError as error:
        raise NotCommitted(
            f"{uri} cannot be written to.",
            f"There is no such bucket or container: {error}",
            "Create it, or correct the path. Nothing was written.",
            code="bucket-missing",
        ) from error
    except OSError as error:
        raise NotCommitted(
            f"{uri} cannot be reached.",
            f"{error}",
            "Start the server, or correct its address or the credentials. This is safe to retry.",
            code="store-unreachable",
        ) from error
