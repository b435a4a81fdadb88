"""Listing files that are published in an order, and may be replaced, by processes of others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from onceonly.storage.interface import AT_ONCE

T = TypeVar("T")


def every(names: Callable[[], Iterable[str]], read: Callable[[str], T]) -> dict[str, T]:
    """Return the content of every file by its name, without those that are replaced meanwhile.

    Listed until a listing shows nothing new. A replacement is written before the original is removed, and one listing
    may show neither. Nor need a listing show what was published while it went on, before something that it does show.
    """

    def read_existing(name: str) -> T | None:
        try:
            return read(name)
        except FileNotFoundError:
            return None

    contents: dict[str, T | None] = {}  # None: the file was replaced between its listing and its reading
    listings = 0
    while (new_names := sorted(set(names()) - contents.keys())) or not listings:
        listings += 1
        with ThreadPoolExecutor(AT_ONCE) as pool:
            contents |= zip(new_names, pool.map(read_existing, new_names), strict=True)
    return {name: content for name, content in contents.items() if content is not None}
