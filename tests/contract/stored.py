"""What a target has stored, for `Target.digests`: found by readers that share no code with the sinks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlparse

from deltalake import DeltaTable

from onceonly.testing.targets import digest_files


def stored_table(folder: str) -> Mapping[str, str]:
    """Return a digest of each file of a table's last version, and of each entry of its log."""
    if not DeltaTable.is_deltatable(folder):
        return {}
    files = [Path(unquote(urlparse(uri).path)) for uri in DeltaTable(folder).file_uris()]
    return digest_files([*files, *Path(folder).glob("_delta_log/*.json")])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
