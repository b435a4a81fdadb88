"""The mount that holds a local folder, and what its kind says about durability."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MOUNT_TABLE = Path("/proc/self/mountinfo")
MEMORY = ("tmpfs", "ramfs", "devtmpfs")
NETWORK = ("9p", "afs", "beegfs", "ceph", "cifs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs")
OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mount: its folder, the kind of its file system, and its options."""

    folder: str
    kind: str
    options: frozenset[str]


def find_mount(folder: str, table: Path = MOUNT_TABLE) -> Mount | None:
    """Return the mount that holds a folder; None where the system does not tell.

    Source: proc(5), mountinfo: the fifth field is the folder; behind the hyphen are kind, source and options.
    """
    try:
        lines = table.read_text().splitlines()
    except OSError:
        return None
    real, nearest = f"{Path(folder).resolve()}/", None
    for line in lines:
        front, _, back = line.partition(" - ")
        point = OCTAL.sub(lambda octal: chr(int(octal[1], 8)), front.split(" ")[4])
        if real.startswith(f"{point.rstrip('/')}/") and (nearest is None or len(point) >= len(nearest.folder)):
            kind, _, options = back.split(" ", 2)
            nearest = Mount(point, kind, frozenset(options.split(",")))
    return nearest


def find_objection(mount: Mount | None) -> str:
    """Return why what was synced on a mount does not survive a power failure; empty: nothing says so."""
    if mount is None:
        return ""
    if mount.kind in MEMORY:
        return f"{mount.folder} is in memory ({mount.kind})"
    if mount.kind == "overlay" and "volatile" in mount.options:
        return f"{mount.folder} is an overlay with the option volatile: it ignores fsync"
    return ""


def is_shared(mount: Mount) -> bool:
    """Return whether other machines may have the same file system."""
    return mount.kind in NETWORK or mount.kind.startswith("fuse")
