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
    """The settings as a properties file, which exists as long as this block."""
    if not conf:
        yield Properties()
        return
    text = "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())
    with hidden_file(text.encode()) as (path, inherited):
        # Without the second one, a properties file takes the place of spark-defaults.conf.
        yield Properties(["--properties-file", path, "--load-spark-defaults"], inherited)


@contextmanager
def hidden_file(content: bytes) -> Iterator[tuple[str, list[int]]]:
    """A file of mode 600. On Linux it is in memory alone, so that nothing of it stays if this process is killed."""
    if hasattr(os, "memfd_create"):
        with open(os.memfd_create("spark"), "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}", [file.fileno()]
    else:
        with NamedTemporaryFile(prefix="onceonly-") as named:  # made with that mode
            named.write(content)
            named.flush()
            yield named.name, []


def _escaped(text: str) -> str:
    """As java.util.Properties reads it: whatever could mean something there is written as a UTF-16 unit."""
    return "".join(each if (each.isascii() and each.isalnum()) or each in "._-" else _units(each) for each in text)


def _units(character: str) -> str:
    code = character.encode("utf-16-be")
    return "".join(f"\\u{code[at : at + 2].hex()}" for at in range(0, len(code), 2))
