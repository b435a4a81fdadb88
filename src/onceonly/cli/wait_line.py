"""The line that shows what a command waits for: a spinner on a terminal, one plain line per wait anywhere else.

Both go to stderr. On a terminal the spinner has the last line. It is erased before anything else is written there, and
drawn again after; so all that reaches the terminal goes through this module, also what Spark's JVM and its workers
write to the descriptors that they inherit (`route`).
"""

from __future__ import annotations

import os
import select
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onceonly import waits

FRAMES, PLAIN_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/"
FRAME_SECONDS = 0.1
STEP_SHOWN_AFTER_SECONDS = 0.3  # on a terminal: a spinner tells that something happens
ERASE = b"\r\x1b[K"
CHUNK_BYTES = 1 << 16
DRAIN_SECONDS = 0.05  # for what other processes have just written, when a command ends


class WaitLine:
    """Shows the open waits while a command runs.

    Args:
        write: writes bytes to stderr, and never fails.
        is_terminal: what is written can be erased.
        encoding: of stderr.
    """

    def __init__(self, write: Callable[[bytes], object], is_terminal: bool, encoding: str = "utf-8") -> None:
        self._write, self._is_terminal, self._encoding = write, is_terminal, encoding
        self._lock = threading.RLock()
        self._has_ended = threading.Event()
        self._is_drawn, self._is_at_line_start, self._frame = False, True, 0
        self._printed: set[str] = set()  # on no terminal: what was said is not repeated
        self._frames = FRAMES if _can_encode(FRAMES, encoding) else PLAIN_FRAMES

    @contextmanager
    def show(self) -> Iterator[None]:
        """Show waits while the block runs."""
        thread = threading.Thread(target=self._run, name="onceonly-waits", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._has_ended.set()
            thread.join()
            with self._lock:
                self._erase()

    @contextmanager
    def put_aside(self, content: bytes) -> Iterator[None]:
        """Take the line away while the block writes this content to the same terminal."""
        with self._lock:
            self._erase()
            yield
            if content:
                self._is_at_line_start = content.endswith(b"\n")

    def _run(self) -> None:
        while not self._has_ended.wait(FRAME_SECONDS):
            with self._lock:
                self._show_now()

    def _show_now(self) -> None:
        due_waits = []
        for wait in waits.list_open():
            limit = waits.SHOWN_AFTER_SECONDS
            if wait.is_step and self._is_terminal:
                limit = STEP_SHOWN_AFTER_SECONDS
            if wait.seconds >= limit:
                due_waits.append(wait)
        if self._is_terminal:
            self._draw(due_waits)
        elif due_waits:
            self._print(due_waits)

    def _print(self, due_waits: list[waits.Wait]) -> None:
        """Print each wait once: a step in which nothing else is named yet, and then what it waits for."""
        key = due_waits[-1].what
        if key not in self._printed:
            self._printed.add(key)
            self._write(f"… {waits.describe(due_waits)}\n".encode(self._encoding, "replace"))

    def _draw(self, due_waits: list[waits.Wait]) -> None:
        if not due_waits:
            return self._erase()
        if not self._is_at_line_start:  # a question, or a bar of progress, has the line
            return
        self._frame = (self._frame + 1) % len(self._frames)
        last = ([wait for wait in due_waits if not wait.is_step] or due_waits)[-1]
        text = f"{self._frames[self._frame]} {waits.describe(due_waits)} ({last.seconds:.0f} s)"
        columns = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
        self._write(ERASE + text[:columns].encode(self._encoding, "replace"))
        self._is_drawn = True

    def _erase(self) -> None:
        if self._is_drawn:
            self._write(ERASE)
            self._is_drawn = False


class Route:
    """A descriptor of a terminal whose whole lines go through `write`, whoever writes them.

    A process that inherits the descriptor inherits a pipe in place of the terminal. `copy` is the terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self.copy = descriptor, os.dup(descriptor)
        self._reader, writer = os.pipe()
        os.dup2(writer, descriptor)
        os.close(writer)
        self._rest = b""
        self._lock = threading.Lock()
        self._write: Callable[[bytes], object] = lambda _: None

    def start(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        threading.Thread(target=self._read_on, name="onceonly-terminal", daemon=True).start()

    def end(self) -> None:
        """Give the descriptor the terminal back, and write what has come until now."""
        os.dup2(self.copy, self._descriptor)
        while self._read(DRAIN_SECONDS):
            pass
        with self._lock:
            self._pass_on(self._rest)
            self._rest = b""

    def _read_on(self) -> None:
        while self._read(None):
            pass

    def _read(self, timeout: float | None) -> bool:
        """Read once, if something comes in that time; returns whether more may come."""
        if not select.select([self._reader], [], [], timeout)[0]:
            return False
        with self._lock:
            if not select.select([self._reader], [], [], 0)[0]:  # the other thread was first
                return True
            content = os.read(self._reader, CHUNK_BYTES)
            lines, newline, self._rest = (self._rest + content).rpartition(b"\n")
            self._pass_on(lines + newline)
            return bool(content)

    def _pass_on(self, content: bytes) -> None:
        if content:
            self._write(content)


def _can_encode(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeError, LookupError):
        return False
    return True
