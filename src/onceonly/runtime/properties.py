"""Settings for spark-submit that its arguments must not show, in a file that nobody else can read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import NamedTemporaryFile


@dataclass(frozen=True)
class Properties:
    """Arguments of spark-submit, and the file descriptors that it has to inherit for them."""

    arguments: Sequence[str] = ()
    inherited: Sequence[int] = ()


@contextmanager
def properties(conf: Mapping[str, str]) -> Iterator[Properties]:
    """Write the settings to a properties file, which exists as long as this block."""
    if not conf:
        yield Properties()
        return
    text = "".join(f"{_escape(key)}={_escape(value)}\n" for key, value in conf.items())
    with hidden_file(text.encode()) as (path, inherited):
        # Without the second one, a properties file takes the place of spark-defaults.conf.
        yield Properties(["--properties-file", path, "--load-spark-defaults"], inherited)


@contextmanager
def hidden_file(content: bytes) -> Iterator[tuple[str, list[int]]]:
    """Yield the path of a file of mode 600, and the file descriptors that a child has to inherit to read it.

    On Linux it is in memory alone, so that nothing of it stays if this process is killed.
    """
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("spark"), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}", [file.fileno()]
    else:
        with NamedTemporaryFile(prefix="onceonly-") as temporary_file:  # made with that mode
            temporary_file.write(content)
            temporary_file.flush()
            yield temporary_file.name, []


def _escape(text: str) -> str:
    """Return the text as java.util.Properties reads it: what could mean something there is written as UTF-16 units."""
    escaped = ""
    for character in text:
        is_plain = (character.isascii() and character.isalnum()) or character in "._-"
        escaped += character if is_plain else _utf16_units(character)
    return escaped


def _utf16_units(character: str) -> str:
    code = character.encode("utf-16-be")
    return "".join(f"\\u{code[at : at + 2].hex()}" for at in range(0, len(code), 2))
