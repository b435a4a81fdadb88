"""The Data Docs of a gate, served below the checkpoint's own address: behind its login and its access rules.

A verdict names the address of the pages. The state table may be damaged or forged, so an address counts only where it
is what this gate writes: `<ONCEONLY_DOCS>/<pipeline>/<epoch>-<attempt>-<12 digits>/index.html`, and a page in that
folder only where it is the index or that of a sink which the verdict names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastapi import HTTPException, Response

from onceonly.settings import Settings
from onceonly.storage.folders import arrow_file_system
from onceonly.storage.paths import local_path

INDEX = "index.html"
MAX_PAGE_BYTES = 20_000_000  # such a page has about 25,000
POLICY = (  # values of bad rows are in the page: nothing in it may run, and it brings its own styles
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; "
    "sandbox allow-same-origin"
)


def serve(verdict: Mapping[str, Any] | None, pipeline: str, epoch: int, attempt: int, page: str) -> Response:
    """Return a page of Data Docs; 404 unless it is one of this verdict."""
    settings = Settings.from_env()
    folder = find_folder((verdict or {}).get("docs"), settings.docs, f"{pipeline}/{epoch}-{attempt}")
    if verdict is None or folder is None or page not in _page_names(verdict):
        raise HTTPException(404, "There is no such page of Data Docs.")
    content = _read(settings.docs, f"{folder}/{page}")
    headers = {"Content-Security-Policy": POLICY}
    return Response(content, media_type="text/html; charset=utf-8", headers=headers)


def _page_names(verdict: Mapping[str, Any]) -> set[str]:
    """Return the pages of a verdict: the index, and one for each sink."""
    return {INDEX, *(f"{sink}.html" for sink in verdict["sinks"])}


def find_folder(docs: object, root: str, begin: str) -> str | None:
    """Return the folder of these pages relative to `root`; None where the address is not one that our gates write.

    Args:
        docs: the address of the index, as the verdict has it.
        root: where all Data Docs are, a path or URI.
        begin: what the folder's name has to begin with, such as 'flights/7-1'.
    """
    path = local_path(root)
    root_uri = path.absolute().as_uri() if path else root.rstrip("/")
    match = re.fullmatch(rf"{re.escape(root_uri)}/({re.escape(begin)}-[0-9a-f]{{12}})/{INDEX}", str(docs))
    return match[1] if match else None


def _read(root: str, name: str) -> bytes:
    """Return the bytes of a file below the root; 404 for one that links lead out of it, is too large or deleted."""
    files, folder = arrow_file_system(root)
    path = f"{folder.rstrip('/')}/{name}"
    if local_path(root) and not Path(path).resolve().is_relative_to(Path(folder).resolve()):
        raise HTTPException(404, "There is no such page of Data Docs.")
    try:
        with files.open_input_file(path) as file:
            if file.size() > MAX_PAGE_BYTES:
                raise HTTPException(404, "This page of Data Docs is too large to be shown here.")
            return bytes(file.read())
    except FileNotFoundError as error:
        raise HTTPException(404, "These Data Docs no longer exist: they were deleted.") from error
