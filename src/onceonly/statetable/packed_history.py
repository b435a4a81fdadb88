"""The entries before one, packed into it: so the last rows of a log on an object store are read by one request.

They are those since the last merge and the row before it, as far as they are small. A reader that does not know them
ignores them. A log on a disk has none: there an entry is read in a fraction of a millisecond.

Measured by 22 checkpoints on fakes, each step in a process that knows nothing yet, with 50 ms for each request:

| entries hold | seconds for a checkpoint | requests | bytes of an entry |
| --- | --- | --- | --- |
| one row | 3.4 | 62 | 1,900 |
| those before it, as JSON | 1.5 | 26 | 39,000 |
| the same, compressed | 1.5 | 26 | 5,500 |

Compressed, because no entry is ever removed there, and Spark and delta-rs read all of them since the last merge.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

from onceonly.statetable import row_format
from onceonly.statetable.log import CREATION, MERGE, MERGED, NONE, ROW, Entry, entry_from_info

PACKED = "before"  # the key of a commit's information which holds them
MAX_PACKED_BYTES = 256 << 10  # of rows; they repeat each other, so that about a tenth is written


def pack(version: int, entries: Mapping[int, Entry]) -> dict[str, str]:
    """Return what the commit of that version holds of the entries before it, as far as they are known without a hole.

    Args:
        entries: the known entries by version.
    Returns:
        One more field of its commit info; none where the entry before it is not known.
    """
    infos: list[dict[str, str]] = []
    size, has_merge = 0, False
    for number in range(version - 1, NONE, -1):
        entry = entries.get(number)
        if entry is None or entry.foreign:
            break
        info = _short_info(entry)
        infos.append(info)
        size += len(info.get(ROW, ""))
        has_merge = has_merge or entry.merges
        if size > MAX_PACKED_BYTES or (has_merge and entry.row):
            break
    if not infos:
        return {}
    compressed = zlib.compress(json.dumps(infos).encode())
    return {PACKED: base64.b64encode(compressed).decode()}


def unpack(version: int, lines: Sequence[str]) -> list[Entry]:
    """Return the entries that are packed into the log file of that version, which has these lines; newest first.

    Raises:
        ValueError: they cannot be parsed.
    """
    packed = _find_packed(lines)
    if packed is None:
        return []
    try:
        infos = json.loads(zlib.decompress(base64.b64decode(packed)))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    versions = range(version - 1, NONE, -1)
    return [entry_from_info(number, info) for number, info in zip(versions, infos, strict=False)]


def _find_packed(lines: Sequence[str]) -> str | None:
    """Return the packed text in the first commit info that has it; other lines are not parsed."""
    for line in lines:
        if f'"{PACKED}":' in line and '"commitInfo"' in line:
            packed: str | None = json.loads(line)["commitInfo"].get(PACKED)
            return packed
    return None


def _short_info(entry: Entry) -> dict[str, str]:
    """Return the part of its commit info from which `entry_from_info` makes the same entry."""
    if entry.row:
        return {ROW: row_format.to_text(entry.row)}
    if entry.merges:
        return {MERGED: "true"}
    return {"operation": MERGE if entry.rewrites else CREATION}
