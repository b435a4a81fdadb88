"""The folder of a probe: everything that it writes is in there, and the name tells when it may be removed."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

FOLDER_PREFIX = "_onceonly-probe-"  # hidden: readers of folders pass over such names
CLOCK_FORMAT = "%Y%m%dT%H%M%SZ"
FOLDER_NAME = re.compile(rf"{FOLDER_PREFIX}(\d{{8}}T\d{{6}}Z)-[0-9a-f]{{8}}")
MAX_PROBE_SECONDS = 3600  # of its trials
LEFTOVER_AGE = timedelta(hours=2)  # after which a probe is over, however it ended


def make_name(now: datetime) -> str:
    return f"{FOLDER_PREFIX}{now.astimezone(UTC).strftime(CLOCK_FORMAT)}-{uuid.uuid4().hex[:8]}"


def list_leftovers(names: Iterable[str], now: datetime) -> list[str]:
    """Return the folders of probes that were killed, and nothing else."""
    leftovers = []
    for name in sorted(set(names)):
        match = FOLDER_NAME.fullmatch(name.rstrip("/"))
        if match and now - _parse_clock(match[1]) > LEFTOVER_AGE:
            leftovers.append(match[0])
    return leftovers


def require_name(name: str) -> str:
    """Return the name of a probe's folder. Raises ValueError: it is none, so it is not to be removed."""
    if not FOLDER_NAME.fullmatch(name):
        raise ValueError(f"'{name}' is no folder of a probe")
    return name


def _parse_clock(text: str) -> datetime:
    return datetime.strptime(text, CLOCK_FORMAT).replace(tzinfo=UTC)
