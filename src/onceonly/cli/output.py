"""Output that never fails: neither a missing reader nor an encoding changes what is done, or the exit code."""

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
        content = bytes(data)  # type: ignore[call-overload]
        try:
            return os.write(self._descriptor, content)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):  # a pipe, or a terminal, that nobody looks at any more
                raise
            drop(self._descriptor)
            return len(content)


def drop(descriptor: int) -> None:
    """Redirect a file descriptor to the null device."""
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, descriptor)
    os.close(null_device)


@contextmanager
def careful(as_json: bool) -> Iterator[None]:
    """Make stdout and stderr such that they never fail, for the time of a command.

    With `as_json`, `answers` alone reaches stdout, whatever else prints.
    """
    sys.stdout, sys.stderr = _make_safe(sys.stdout, 1), _make_safe(sys.stderr, 2)
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
    """Return the stream for a command's JSON."""
    return _answers[-1] if _answers else sys.stdout


def _make_safe(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a stream that never fails in place of Python's own; any other stays as it is."""
    if stream is None:  # it was closed before the process began
        return open(os.devnull, "w", encoding="utf-8")
    if not _is_stream_of(stream, descriptor):
        return stream
    stream.flush()
    raw, encoding = io.BufferedWriter(_Pipe(descriptor)), stream.encoding
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)


def _set_apart(stream: TextIO) -> TextIO:
    """Return another stream to where stdout leads; what Spark and its workers write to descriptor 1 goes to stderr."""
    if not _is_stream_of(stream, 1):
        return stream
    copy_of_stdout = os.dup(1)
    os.dup2(2, 1)
    return _make_safe(open(copy_of_stdout, "w", encoding=stream.encoding, closefd=False), copy_of_stdout)


def _is_stream_of(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):  # in memory, as in tests
        return False
