"""Consoles, and how values are written for people."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

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


def open_console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = PIPE_WIDTH
    return console


def open_error_console() -> Console:
    return open_console(stderr=True)


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
