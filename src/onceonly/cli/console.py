"""Consoles, and how values are written for people."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceonly.checkpoint import Checkpoint, State
from onceonly.offsets import TopicRange, has_data

WIDE = 200  # where nobody looks at it (a pipe, a log): nothing is folded
COLOURS = {
    State.PLANNED: "yellow",
    State.STAGED: "cyan",
    State.COMMITTING: "magenta",
    State.COMMITTED: "green",
    State.ABORTING: "yellow",
    State.ABORTED: "red",
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


def state_text(state: State) -> Text:
    return Text(state.value, COLOURS[state])


def number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"


def age(since: datetime) -> str:
    seconds = max(0, int((datetime.now(UTC) - since).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def place(uri: str) -> str:
    """A path as one would type it here."""
    try:
        return str(Path(uri).relative_to(Path.cwd()))
    except ValueError:
        return uri


def owner(key: str) -> str:
    """An owner key without what only the machine needs."""
    kind, _, rest = key.partition(":")
    return f"cli {rest.rpartition(':')[0]}" if kind == "cli" else key.replace(":", " ", 1)


def range_text(range_: TopicRange) -> str:
    """What a checkpoint covers, short: offsets have gaps, so this is not a number of records."""
    parts = len([p for p, (start, end) in range_.partitions.items() if end > start])
    return f"{range_.span:,} offsets of '{range_.topic}' in {parts} partition{'s' if parts != 1 else ''}"


def covers(checkpoint: Checkpoint) -> str:
    if not has_data(checkpoint.ranges):
        return "nothing (no records)"
    return ", ".join(range_text(range_) for range_ in checkpoint.ranges)


def staged(handle: Mapping[str, Any]) -> str:
    """'6,000 rows in 30 files', as far as the handle says it."""
    rows = f"{number(handle.get('rows'))} rows"
    for name, what in (("files", "file"), ("parts", "transaction" if handle.get("mode") == "staged" else "spool file")):
        if name in handle:
            count = handle[name] if isinstance(handle[name], int) else len(handle[name])
            return f"{rows} in {count} {what}{'s' if count != 1 else ''}"
    return rows


def target(handle: Mapping[str, Any]) -> str:
    """Where the rows go: a table's or folder's place, or topics."""
    if "topics" in handle:
        return ", ".join(handle["topics"])
    return place(str(handle.get("uri") or handle.get("target") or "?"))


def verdict(found: Mapping[str, Any] | None) -> list[str]:
    """'passed', 'sink delays: 3 checks on 40 rows in process', and each check that is not ok."""
    if found is None:
        return ["not asked"]
    sinks = [
        f"{sink}: {len(seen['checks'])} checks on {number(seen['rows'])} rows, {seen['path']}"
        for sink, seen in found["sinks"].items()
    ]
    bad = [
        f"{each['severity']}: {each['what']} ({each['observed']})"
        for seen in found["sinks"].values()
        for each in seen["checks"]
        if not each["ok"]
    ]
    return [found["outcome"], *sinks, *bad]


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
