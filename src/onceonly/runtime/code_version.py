"""Which code makes the rows of an attempt: recorded with its claim, for people, by the process that runs the code.

Nothing depends on it. What cannot be found out is left out.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "ONCEONLY_CODE_VERSION"
CODE_FOLDERS = ("jobs", "schemas")
DIGEST_CHARACTERS = 16
GIT_TIMEOUT_SECONDS = 10
MAX_FILES = 2_000  # of a project's code; more are something else


def describe_code(project: Path) -> dict[str, Any]:
    """Return {"version", "clean", "digest"} of a project's code.

    The version is what the environment says, where a task puts that of Airflow's bundle; else git's commit, with
    whether the project's files are those of the commit. The digest is of what jobs/ and schemas/ contain.
    """
    code: dict[str, Any] = {}
    version = os.environ.get(VARIABLE)
    if version:
        code["version"] = version
    else:
        code.update(_describe_commit(project))
    digest = _digest(project)
    if digest:
        code["digest"] = digest
    return code


def _describe_commit(project: Path) -> dict[str, Any]:
    commit = _ask_git(project, "rev-parse", "HEAD")
    if not commit:
        return {}
    changes = _ask_git(project, "status", "--porcelain", "--", *CODE_FOLDERS)
    code: dict[str, Any] = {"version": f"git {commit}"}
    if changes is not None:
        code["clean"] = not changes
    return code


def _ask_git(project: Path, *arguments: str) -> str | None:
    """Return what git answers; None: it is not installed, or the project is in no repository."""
    command = ["git", "-C", str(project), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    return done.stdout.strip()


def _digest(project: Path) -> str | None:
    """Return a digest of the names and contents of the code's files; None: there are none, or they cannot be read."""
    digest, count = hashlib.sha256(), 0
    try:
        for file in _list_files(project):
            count += 1
            if count > MAX_FILES:
                return None
            content = file.read_bytes()
            digest.update(f"{file.relative_to(project).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    except OSError:
        return None
    if not count:
        return None
    return digest.hexdigest()[:DIGEST_CHARACTERS]


def _list_files(project: Path) -> Iterator[Path]:
    for folder in CODE_FOLDERS:
        for file in sorted((project / folder).rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                yield file
