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
from onceonly.views import formatting

WIDE = 200  # where nobody looks at it (a pipe, a log): nothing is folded
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


def console(stderr: bool = False) -> Console:
    made = Console(stderr=stderr, highlight=False, soft_wrap=True)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = WIDE
    return made


def error_console() -> Console:
    return console(stderr=True)


def lines_of(what: str, why: str, todo: str) -> Text:
    text = Text.assemble(("✗ ", "bold red"), (what, "red"))
    if why:
        text.append(f"\n  {_indented(why)}")
    if todo:
        text.append(f"\n  {_indented(todo)}", "dim")
    return text


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table without a frame, as wide as it needs to be."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def state_text(checkpoint: Checkpoint) -> Text:
    doubt = f", in doubt: {', '.join(checkpoint.in_doubt)}" if checkpoint.in_doubt else ""
    unfit = formatting.unfit(checkpoint)
    return label(formatting.state(checkpoint)).append(doubt, "red").append(f", {unfit}" if unfit else "", "red")


def label(state: str) -> Text:
    """A state as people see it, in its colour."""
    return Text(state, COLOURS[state])


@dataclass
class Steps:
    """One line per step: a spinner while it runs, a tick and the time it took when it is done."""

    quiet: bool = False
    out: Console = field(default_factory=console)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """The body appends what is to be said of the step."""
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


def _indented(text: str) -> str:
    return text.replace("\n", "\n  ")
