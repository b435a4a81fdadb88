"""Consoles, how values are written for people, and output that never fails.

Neither a missing reader nor an encoding changes what is done, or the exit code.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass, field
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint, State
from onceonly.views import descriptions, formatting

PIPE_WIDTH = 200  # characters, where nobody looks at it (a pipe, a log): nothing is folded
COLOURS = {
    State.PLANNED.value: "blue",
    State.STAGED.value: "cyan",
    formatting.HELD: "bold yellow",
    formatting.REFUSED: "bold red",
    State.COMMITTING.value: "magenta",
    State.COMMITTED.value: "green",
    State.ABORTING.value: "yellow",
    State.ABORTED.value: "red",
}
_answers: list[TextIO] = []


def open_console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def open_error_console() -> Console:
    return open_console(stderr=True)


def print_done(words: str) -> None:
    """Print what is done, with a tick."""
    open_console().print(Text.assemble(("✓ ", "green"), words))


def error_text(what: str, why: str, todo: str) -> Text:
    """Return an error in three lines, each of which may itself have several."""
    text = Text.assemble(("✗ ", "bold red"), (what, "red"))
    if why:
        text.append(f"\n  {_indent(why)}")
    if todo:
        text.append(f"\n  {_indent(todo)}", "dim")
    return text


def make_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return a table without a frame, as wide as it needs to be. `right`: the columns that are aligned right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def state_text(checkpoint: Checkpoint) -> Text:
    """Return a checkpoint's state in its colour, with the sinks in doubt and why it cannot be published."""
    text = state_label(formatting.state(checkpoint))
    if checkpoint.in_doubt:
        text.append(f", in doubt: {', '.join(checkpoint.in_doubt)}", "red")
    unfit = descriptions.describe_unfit_attempts(checkpoint)
    if unfit:
        text.append(f", {unfit}", "red")
    return text


def state_label(state: str) -> Text:
    """Return a state as people see it, in its colour."""
    return Text(state, COLOURS[state])


@dataclass
class Steps:
    """One line per step: a spinner while it runs, a tick and the time it took when it is done."""

    quiet: bool = False
    out: Console = field(default_factory=open_console)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Print a line for the block when it ends. The block appends what is to be said of the step."""
        words: list[str] = []
        start = time.monotonic()
        try:
            with nullcontext() if self.quiet else self.out.status(f"{name} …", spinner="dots"):
                yield words
        except BaseException:
            self._line("✗", "red", name, "", time.monotonic() - start)
            raise
        self._line("✓", "green", name, "; ".join(words), time.monotonic() - start)

    def say(self, text: str, style: str = "") -> None:
        if not self.quiet:
            self.out.print(Text(text, style))

    def _line(self, mark: str, colour: str, name: str, words: str, seconds: float) -> None:
        text = Text.assemble((f"{mark} ", colour), (f"{name:<7} ", "bold"), words, (f"  {seconds:.1f} s", "dim"))
        if not self.quiet:
            self.out.print(text)


def _indent(text: str) -> str:
    return text.replace("\n", "\n  ")


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
def never_fail(as_json: bool) -> Iterator[None]:
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
