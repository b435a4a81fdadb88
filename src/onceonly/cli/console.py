"""Consoles, how values are written for people, and output that never fails.

Neither a missing reader nor an encoding changes what is done, or the exit code.
"""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly import waits
from onceonly.checkpoint.model import Checkpoint, State
from onceonly.cli.wait_line import Route, WaitLine
from onceonly.views import descriptions, formatting

COLUMN_GAP = 2  # characters between two columns
MIN_LAST_COLUMN = 12  # characters, below which a table does without a column that is cut
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
NO_ROUTES: Mapping[int, Route] = MappingProxyType({})
_answers: list[TextIO] = []
_wait_lines: list[WaitLine] = []  # that of the command, while it runs


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


def show_markdown(text: str) -> None:
    """Show a page: formatted and page by page on a terminal, as it is anywhere else."""
    from rich.markdown import Markdown

    out = open_console()
    if not out.is_terminal:
        return out.out(text, highlight=False)
    with out.capture() as capture:
        out.print(Markdown(text, hyperlinks=False), soft_wrap=False)
    if not _run_pager(_find_pager(), capture.get()):
        out.file.write(capture.get())


def _find_pager() -> list[str]:
    """Return the command of PAGER, else that of a pager that is installed; empty: there is none."""
    pager = shlex.split(os.environ.get("PAGER", ""))
    return pager or [path for path in map(shutil.which, ("less", "more")) if path][:1]


def _run_pager(pager: Sequence[str], text: str) -> bool:
    """Run a pager on the terminal that stdout is; returns whether there is one.

    The line that shows what a command waits for is away meanwhile.
    """
    if not pager or not shutil.which(pager[0]):
        return False
    environment = {"LESS": "-FRX", **os.environ}  # colours as they are; a short page stays on the terminal
    with ExitStack() as stack:
        if _wait_lines:
            stack.enter_context(_wait_lines[-1].put_aside(b""))
        process = subprocess.Popen(pager, stdin=subprocess.PIPE, stdout=sys.stdout.fileno(), env=environment)
        try:
            process.communicate(text.encode())
        except KeyboardInterrupt:  # the pager has it, too, and decides whether it ends
            process.wait()
    return True


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
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, COLUMN_GAP, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def make_table_of_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], right: tuple[str, ...] = (), indent: int = 0
) -> Table:
    """Return a table as `make_table` does, whose last column gets what is left of the terminal's width.

    It is cut there, or left out where next to nothing is left. Nothing is cut where nobody looks, as in a pipe.
    """
    widths = []
    for cells_of_column in zip(columns, *rows, strict=True):
        widths.append(max(map(_cell_width, cells_of_column)))
    room = open_console().width - indent - sum(widths[:-1]) - COLUMN_GAP * len(widths[:-1])
    has_room = room >= min(widths[-1], MIN_LAST_COLUMN)
    table = make_table(*(columns if has_room else columns[:-1]), right=right)
    for *cells, last_cell in rows:
        if has_room:
            last_text = Text(last_cell) if isinstance(last_cell, str) else last_cell
            last_text.truncate(room, overflow="ellipsis")
            cells.append(last_text)
        table.add_row(*cells)
    return table


def _cell_width(cell: str | Text) -> int:
    return cell_len(cell if isinstance(cell, str) else cell.plain)


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
    """One line per step, with a tick and the time it took, when it is done. What it waits for is shown meanwhile."""

    quiet: bool = False
    out: Console = field(default_factory=open_console)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Print a line for the block when it ends. The block appends what is to be said of the step."""
        words: list[str] = []
        start = time.monotonic()
        try:
            with waits.step(name):
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
        with ExitStack() as stack:
            if _wait_lines and self.isatty():
                stack.enter_context(_wait_lines[-1].put_aside(content))
            return self.write_now(content)

    def write_now(self, content: bytes) -> int:
        """Write beside the line that shows what the command waits for."""
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

    With `as_json`, `answers` alone reaches stdout, whatever else prints. What the command waits for is on stderr.
    """
    routes = _route_terminals((2,) if as_json else (1, 2))
    sys.stdout, sys.stderr = _make_safe(sys.stdout, 1, routes), _make_safe(sys.stderr, 2, routes)
    with _show_waits(routes):
        if not as_json:
            yield
            return
        _answers.append(_set_apart(sys.stdout))
        try:
            with redirect_stdout(sys.stderr):
                yield
        finally:
            _answers.pop().flush()


def _route_terminals(descriptors: tuple[int, ...]) -> dict[int, Route]:
    """Route, where stderr is a terminal, what others write to these descriptors, as far as each is one."""
    if not (_is_terminal(2) and sys.stderr and _is_stream_of(sys.stderr, 2)) or _wait_lines:
        return {}
    return {descriptor: Route(descriptor) for descriptor in descriptors if _is_terminal(descriptor)}


@contextmanager
def _show_waits(routes: dict[int, Route]) -> Iterator[None]:
    """Show what the command waits for while the block runs; nothing where stderr is no stream of a process."""
    error_pipe = _find_pipe(sys.stderr)
    if error_pipe is None or _wait_lines:
        yield
        return
    _wait_lines.append(WaitLine(error_pipe.write_now, bool(routes.get(2)), sys.stderr.encoding))
    for route in routes.values():
        route.start(_Pipe(route.copy).write)
    try:
        with _wait_lines[-1].show():
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for route in routes.values():
            route.end()
        _wait_lines.pop()


def _find_pipe(stream: TextIO) -> _Pipe | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, _Pipe) else None


def _is_terminal(descriptor: int) -> bool:
    """Return whether it is a terminal on which a line can be erased."""
    try:
        return os.isatty(descriptor) and os.environ.get("TERM") not in (None, "", "dumb")
    except OSError:
        return False


def answers() -> TextIO:
    """Return the stream for a command's JSON."""
    return _answers[-1] if _answers else sys.stdout


def _make_safe(stream: TextIO | None, descriptor: int, routes: Mapping[int, Route] = NO_ROUTES) -> TextIO:
    """Return a stream that never fails in place of Python's own; any other stays as it is.

    Where its descriptor is routed, the stream has the terminal itself.
    """
    if stream is None:  # it was closed before the process began
        return open(os.devnull, "w", encoding="utf-8")
    if not _is_stream_of(stream, descriptor):
        return stream
    stream.flush()
    route, encoding = routes.get(descriptor), stream.encoding
    raw = io.BufferedWriter(_Pipe(route.copy if route else descriptor))
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
