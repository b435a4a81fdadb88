"""Output: that nobody reads it, or that it cannot be encoded, changes neither what is done nor the exit code."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

_answers: list[TextIO] = []


class _Pipe(io.RawIOBase):
    """A file descriptor whose reader may go away: what is written from then on is dropped."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: object) -> int:
        wanted = bytes(data)  # type: ignore[call-overload]
        try:
            return os.write(self._descriptor, wanted)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a pipe, or a terminal, that nobody looks at any more
                raise
            drop(self._descriptor)
            return len(wanted)


def drop(descriptor: int) -> None:
    """From now on nothing that is written there arrives anywhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def careful(as_json: bool) -> Iterator[None]:
    """Output for the time of a command; with `as_json`, `answers` alone reaches stdout, whatever else prints."""
    sys.stdout, sys.stderr = _careful(sys.stdout, 1), _careful(sys.stderr, 2)
    if not as_json:
        yield
        return
    _answers.append(_set_apart(sys.stdout))
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.pop().flush()


def answers() -> TextIO:
    """The stream for a command's JSON."""
    return _answers[-1] if _answers else sys.stdout


def _careful(stream: TextIO | None, descriptor: int) -> TextIO:
    """A stream of this process in place of Python's own; any other stays as it is."""
    if stream is None:  # it was closed before the process began
        return open(os.devnull, "w", encoding="utf-8")
    if not _writes_to(stream, descriptor):
        return stream
    stream.flush()
    raw, encoding = io.BufferedWriter(_Pipe(descriptor)), stream.encoding
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


def _set_apart(stream: TextIO) -> TextIO:
    """Another way to where stdout leads; what Spark and its workers write to descriptor 1 goes to stderr."""
    if not _writes_to(stream, 1):
        return stream
    own = os.dup(1)
    os.dup2(2, 1)
    return _careful(open(own, "w", encoding=stream.encoding, closefd=False), own)


def _writes_to(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):  # in memory, as in tests
        return False
