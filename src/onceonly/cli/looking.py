"""The look of a person before a manual action: shown and confirmed in a terminal, else passed as --seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from onceonly.errors import InvalidPipeline

if TYPE_CHECKING:
    from onceonly.coordinator.manual import Seen


def seen_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --seen NUMBER to a command; without it, the command asks in a terminal, and is refused elsewhere."""
    text = "The number that `describe` and `status PIPELINE` show; else it shows what there is, and asks."
    return click.option("--seen", type=click.IntRange(0), metavar="NUMBER", help=text)(command)


def confirm(seen: int | None, number: int, question: str, name: str, look: str, as_json: bool) -> Seen:
    """Return what the person has looked at: the number of --seen, or what is shown now and confirmed with y.

    Args:
        seen: the value of --seen, if it was passed.
        number: of what was shown; read before it, so that what changes in between is noticed.
        look: the command that shows the number.
    Raises:
        InvalidPipeline: "seen-missing": --seen was not passed, and nobody can be asked.
    """
    from onceonly.coordinator.manual import Seen, missing

    if seen is not None:
        return Seen(seen)
    if as_json or not is_interactive():
        error = missing(name, look)
        raise InvalidPipeline(error.what, error.why, f"{error.todo} It is {number} now.", error.code)
    click.confirm(f"{question} (as of row {number})", abort=True)
    return Seen(number)


def must_show(seen: int | None, as_json: bool) -> bool:
    """Return whether a person is going to be asked, who needs to see first what it is about."""
    return seen is None and not as_json and is_interactive()


def is_interactive() -> bool:
    """Return whether somebody reads what is printed, and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
