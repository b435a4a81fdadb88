"""What a person has looked at before a manual action: shown and confirmed in a terminal, else passed as --seen."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from onceonly.errors import InvalidPipeline

if TYPE_CHECKING:
    from onceonly.coordinator.manual import Seen


def seen_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--seen NUMBER; without it, a command asks in a terminal, and is refused elsewhere."""
    text = "The number that `describe` and `status PIPELINE` show; else it shows what there is, and asks."
    return click.option("--seen", type=click.IntRange(0), metavar="NUMBER", help=text)(command)


def confirm(given: int | None, number: int, question: str, name: str, look: str, as_json: bool) -> Seen:
    """What the person has looked at: the number that was given, or what is shown now and confirmed with y.

    Args:
        number: of what was shown; read before it, so that what changes in between is noticed.
        look: the command that shows the number.
    Raises:
        InvalidPipeline: "seen-missing": none was given, and nobody can be asked.
    """
    from onceonly.coordinator.manual import Seen, missing

    if given is not None:
        return Seen(given)
    if as_json or not is_interactive():
        refused = missing(name, look)
        raise InvalidPipeline(refused.what, refused.why, f"{refused.todo} It is {number} now.", refused.code)
    click.confirm(f"{question} (as of row {number})", abort=True)
    return Seen(number)


def must_show(given: int | None, as_json: bool) -> bool:
    """Whether a person is going to be asked, who needs to see first what it is about."""
    return given is None and not as_json and is_interactive()


def is_interactive() -> bool:
    """Whether somebody reads what is printed, and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
