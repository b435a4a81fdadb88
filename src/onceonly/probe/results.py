"""The results of probes, kept in ONCEONLY_HOME: by them `onceonly check` knows which places were never probed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onceonly.probe import mounts
from onceonly.storage import durability
from onceonly.storage.arbitration import SERVER_VARIABLES
from onceonly.storage.paths import AZURE_SCHEMES, S3_SCHEMES, AzureFolder, local_path

FOLDER = "probes"  # in ONCEONLY_HOME


def name_storage(uri: str) -> str:
    """Return the place whose promises count for a folder: a bucket on its server, a NameNode, or a mounted disk."""
    local = local_path(uri)
    if local is not None:
        mount = mounts.find_mount(str(local))
        return f"file:{mount.folder if mount else '/'}"
    parts = urlsplit(uri)
    scheme = parts.scheme.lower()
    if scheme in AZURE_SCHEMES:
        folder = AzureFolder.parse(uri)
        return _with_server(f"az://{folder.container}@{folder.account}")
    if scheme in S3_SCHEMES:
        scheme = "s3"
    authority = parts.netloc.rpartition("@")[2]
    return _with_server(f"{scheme}://{authority}")


def is_own_disk(uri: str) -> bool:
    """Return whether a folder is on a disk of this machine alone."""
    local = local_path(uri)
    if local is None:
        return False
    mount = mounts.find_mount(str(local))
    return mount is None or not mounts.is_shared(mount)


def name_brokers(addresses: str) -> str:
    """Return the place whose promises count for these brokers."""
    return f"kafka://{','.join(sorted(addresses.split(',')))}"


def keep(home: Path, report: Mapping[str, Any]) -> Path:
    """Keep a report, in place of an earlier one of the same place."""
    path = _path(home, str(report["place"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    durability.write(path, json.dumps(report, indent=2).encode())
    return path


def find(home: Path, place: str) -> Mapping[str, Any] | None:
    """Return the last report of a place; None: it was never probed."""
    try:
        report: Mapping[str, Any] = json.loads(_path(home, place).read_text())
    except (OSError, ValueError):
        return None
    return report


def _path(home: Path, place: str) -> Path:
    return home / FOLDER / f"{hashlib.sha256(place.encode()).hexdigest()[:32]}.json"


def _with_server(place: str) -> str:
    """Add the server that the environment names: another one may have a bucket of the same name."""
    servers = []
    for variable in SERVER_VARIABLES:
        value = os.environ.get(variable)
        if value:
            servers.append(urlsplit(value).netloc.rpartition("@")[2] or value)
    return " ".join([place, *servers])
