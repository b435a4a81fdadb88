"""JSON files that several processes share."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder within it, against other processes and threads. It ends with the process, too."""
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_json(path: Path, default: Any) -> Any:
    """Return the content of a file; `default` if there is none."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return default


def write_json(path: Path, data: Any) -> None:
    """Write atomically, even if the process is killed."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    temporary.write_text(json.dumps(data))
    os.replace(temporary, path)
