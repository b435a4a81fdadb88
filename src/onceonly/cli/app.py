"""What all commands share: errors in three lines, exit codes by outcome, --json."""

from __future__ import annotations

import errno
import json
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import click

from onceonly.cli.console import error_console, lines_of
from onceonly.errors import OnceonlyError, exit_code

JSON, TRACEBACK, HINT = "onceonly.json", "onceonly.traceback", "onceonly.hint"
INTERRUPTED = 130


class Cli(click.Group):
    """A group whose commands may raise whatever the library raises."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added: the everyday ones first

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            hint: Callable[[], str] = ctx.meta.get(HINT, lambda: "")
            show(ctx, {"error": "KeyboardInterrupt", "what": "interrupted.", "why": "", "todo": hint()})
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of our output has gone; click ends quietly
            show(ctx, explain(error))
            if ctx.meta.get(TRACEBACK):
                traceback.print_exc()
            ctx.exit(exit_code(error))


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning in one piece, without the line of code that gave it."""
    error_console().print(str(message), style="yellow", markup=False, highlight=False)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json, which the handler of errors obeys as well."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta[JSON] = value
        return value

    option = click.option("--json", "as_json", is_flag=True, is_eager=True, callback=remember, help="One JSON object.")
    return option(command)


def explain(error: BaseException) -> dict[str, str]:
    """An error's class and three lines; one that nobody classified says nothing about the outcome."""
    name = type(error).__name__
    if isinstance(error, OnceonlyError):
        return {"error": name, "what": error.what, "why": error.why, "todo": error.todo}
    return {
        "error": name,
        "what": f"{name}: {error}",
        "why": "This error was not expected, so it is not known what it left behind.",
        "todo": "Look: onceonly status. Settle: onceonly recover. Where it came from: onceonly --traceback …",
    }


def tell(said: dict[str, str]) -> None:
    """An explained error, on stderr for people."""
    error_console().print(lines_of(said["what"], said["why"], said["todo"]))


def show(ctx: click.Context, error: dict[str, str]) -> None:
    """On stderr for people; as JSON on stdout when that was asked for."""
    if ctx.meta.get(JSON):
        print_json(error)
    else:
        sys.stdout.flush()
        tell(error)


def print_json(data: Any) -> None:
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str))
