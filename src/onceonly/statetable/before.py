"""The entries before one, in short, inside it: so the last rows of a log on an object store are read by one request.

They are those since the last merge and the row before it, as far as they are small. A reader that does not know them
passes over them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence

from onceonly.statetable import row_format
from onceonly.statetable.log import CREATION, MERGE, MERGED, NONE, ROW, Entry, entry

KEY = "before"
MOST = 256 << 10  # bytes of rows; they repeat each other, so that about a tenth is written


def told(version: int, known: Mapping[int, Entry]) -> dict[str, str]:
    """What the entry of that version says of those before it, as far as they are known without a hole."""
    found: list[dict[str, str]] = []
    size, merged = 0, False
    for number in range(version - 1, NONE, -1):
        each = known.get(number)
        if each is None or each.foreign:
            break
        found.append(_short(each))
        size += len(found[-1].get(ROW, ""))
        merged = merged or each.merges
        if size > MOST or (merged and each.row):
            break
    packed = zlib.compress(json.dumps(found).encode(), 6)
    return {KEY: base64.b85encode(packed).decode()} if found else {}


def of(version: int, lines: Sequence[str]) -> list[Entry]:
    """The entries of which the log file of that version, with these lines, tells.

    Raises:
        ValueError: they cannot be parsed.
    """
    packed = next((_packed(line) for line in lines if f'"{KEY}":' in line and '"commitInfo"' in line), None)
    if packed is None:
        return []
    try:
        found = json.loads(zlib.decompress(base64.b85decode(packed)))
    except zlib.error as error:
        raise ValueError(str(error)) from error
    return [entry(number, each) for number, each in zip(range(version - 1, NONE, -1), found, strict=False)]


def _packed(line: str) -> str | None:
    packed: str | None = json.loads(line)["commitInfo"].get(KEY)
    return packed


def _short(each: Entry) -> dict[str, str]:
    if each.row:
        return {ROW: row_format.to_text(each.row)}
    return {MERGED: "true"} if each.merges else {"operation": MERGE if each.rewrites else CREATION}
