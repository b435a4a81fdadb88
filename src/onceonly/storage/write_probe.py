"""Whether this user can write where a run will: a probe file is written there, and removed again.

Only a write shows it: a mount may be read-only, a quota used up, and a store tells nobody what a login may do.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.storage import objects
from onceonly.storage.durability import require_writable as require_permission
from onceonly.storage.file_systems import open_file_system
from onceonly.storage.interface import UnsuitableTarget
from onceonly.storage.paths import HDFS_PREFIX, local_path

PROBE_PREFIX = ".probe-"  # hidden: readers of folders and of Delta's logs pass over such names
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
    probe = place / f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    try:
        try:
            probe.write_bytes(CONTENT)
        finally:
            probe.unlink(missing_ok=True)
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


def _ask_namenode(uri: str, webhdfs: str | None) -> None:
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
    files = objects.literal(uri) if set("#?") & set(uri) else objects.Objects(uri)
    name = f"{PROBE_PREFIX}{uuid.uuid4().hex}"
    doing = "written"
    try:
        with objects.require_client(uri):
            files.write(name, CONTENT)
        doing = "deleted"
        files.unlink([name])
    except PermissionError as error:
        left = f" {name} stays there." if doing == "deleted" else " Nothing was written."
        raise NotCommitted(
            f"{uri} cannot be written to.",
            f"The store refuses this login: an object cannot be {doing}. {error}",
            f"Allow it to list, read, write and delete below that path (docs/object-stores.md).{left}",
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
