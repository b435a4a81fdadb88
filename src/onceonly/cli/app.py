"""The parts that all commands share: errors in three lines, exit codes by outcome, --json; and onceonly explain."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from importlib import import_module
from shlex import quote
from typing import Any

import click

from onceonly import waits
from onceonly.checkpoint.commands import PIPELINE_FILE
from onceonly.cli import console
from onceonly.errors import InvalidPipeline, OnceonlyError, exit_code, first_sentence, headline

JSON, TRACEBACK, HINT = "onceonly.json", "onceonly.traceback", "onceonly.hint"
INTERRUPTED = 130
GIVEN_FILE = re.compile(r".+\.py(?::\w+)?")  # a pipeline on the command line


class Commands(MutableMapping[str, click.Command]):
    """The commands by name, each imported when it is used: `onceonly status` should answer at once.

    A mapping as click takes it. A command is the function of its name (with _ for -) in a module beside this one.
    """

    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = dict(modules)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = getattr(import_module(f"onceonly.cli.{self._modules[name]}"), name.replace("-", "_"))
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._modules

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._modules.setdefault(name, name)
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        self._loaded.pop(name, None)
        del self._modules[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


class Cli(click.Group):
    """The group of all commands. It turns every error of a command into three lines and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as they were added: the everyday ones first

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands first: they are what most people look for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    _as_json = False
    _words: Sequence[str] = ()  # the arguments that are no options

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        arguments = list(sys.argv[1:] if args is None else args)
        as_json = self._as_json = "--json" in arguments
        self._words = [argument for argument in arguments if not argument.startswith("-")]
        with console.never_fail(as_json):
            try:
                code = super().main(arguments, prog_name, **{**extra, "standalone_mode": False})
            except click.ClickException as error:
                _show_usage(error, as_json)
                code = error.exit_code
            except click.Abort:  # a question that was answered with no
                click.echo("Aborted.", err=True)
                code = 1
            sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        ctx.meta[JSON] = self._as_json  # for errors before the command has read its options
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                with waits.step(_name_command(self, ctx, self._words)):
                    return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            hint: Callable[[], str] = ctx.meta.get(HINT, lambda: "")
            print_error_as_asked(ctx, {"error": "KeyboardInterrupt", "what": "interrupted.", "why": "", "todo": hint()})
            ctx.exit(INTERRUPTED)
        except Exception as error:
            print_error_as_asked(ctx, _name_file(error_json(error), self._words))
            if ctx.meta.get(TRACEBACK):
                traceback.print_exc()
            ctx.exit(exit_code(error))


def _name_file(error: dict[str, str], arguments: Sequence[str]) -> dict[str, str]:
    """Return an error whose commands name the file that this command was given, or that of its pipeline."""
    if not any(PIPELINE_FILE in text for text in error.values()):
        return error
    from onceonly.runtime import pipeline_file
    from onceonly.settings import Settings

    project, lines = Settings.from_env().project, dict(error)
    for argument in arguments[1:]:
        for key, text in lines.items():
            if GIVEN_FILE.fullmatch(argument):
                lines[key] = text.replace(PIPELINE_FILE, quote(argument))
            else:
                lines[key] = pipeline_file.name_pipeline(text, project, argument)
    return lines


def _name_command(group: click.Group, ctx: click.Context, arguments: Sequence[str]) -> str:
    """Return 'onceonly services up': the command, for the time in which nothing that it does has a name of its own."""
    words = ["onceonly"]
    for argument in arguments:
        command = group.get_command(ctx, argument)
        if command is not None:
            words.append(argument)
        if not isinstance(command, click.Group):
            break
        group = command
    return " ".join(words)


def _show_usage(error: click.ClickException, as_json: bool) -> None:
    if not as_json:
        return error.show()
    usage = ""
    if isinstance(error, click.UsageError) and error.ctx:
        usage = error.ctx.get_usage()
    print_json({"error": type(error).__name__, "what": error.format_message(), "why": "", "todo": usage})


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one piece, without the line of code that gave it."""
    console.open_error_console().print(str(message), style="yellow", markup=False, highlight=False)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json to a command; the handler of errors obeys it as well."""

    def remember(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
        ctx.meta[JSON] = value
        return value

    option = click.option("--json", "as_json", is_flag=True, is_eager=True, callback=remember, help="One JSON object.")
    return option(command)


def error_json(error: BaseException) -> dict[str, str]:
    """Return an error's class, code and three lines; an unclassified error says nothing about the outcome."""
    name = type(error).__name__
    if isinstance(error, OnceonlyError):
        explanation = {"error": name, "what": error.what, "why": error.why, "todo": error.todo}
        if error.code:
            explanation["code"] = error.code
        return explanation
    return {
        "error": name,
        "what": first_sentence(error),
        "why": "This error was not expected, so it is not known what it left behind.",
        "todo": "Look: onceonly status. Settle: onceonly recover. For the traceback: onceonly --traceback …",
    }


def print_error(error: dict[str, str]) -> None:
    """Print an explained error on stderr, for people."""
    console.open_error_console().print(
        console.error_text(headline(error["what"], error.get("code", "")), error["why"], error["todo"])
    )


def print_error_as_asked(ctx: click.Context, error: dict[str, str]) -> None:
    """Print an explained error on stderr for people; as JSON on stdout if --json was passed."""
    if ctx.meta.get(JSON):
        print_json(error)
    else:
        sys.stdout.flush()
        print_error(error)


def print_json(data: Any) -> None:
    """Print a command's answer on stdout, as one JSON object."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False, default=str), file=console.answers())


@click.command(short_help="What the code of an error means, and what to do.")
@click.argument("code", required=False)
@json_option
def explain(code: str | None, as_json: bool) -> None:
    """Print what an error code means, why it happens and what to do; without a code, list all of them.

    The code stands at the end of the first line of a message, as in "… [target-went-back]".
    --json prints {"code", "area", "means", "why", "do"}, or {"codes": [{"code", "area", "means"}]}.
    """
    from onceonly import error_codes

    if code is None:
        return _list_codes(as_json)
    code = code.strip("[]")
    explanation = error_codes.find_explanation(code)
    if explanation is None:
        similar = error_codes.list_similar_codes(code)
        raise InvalidPipeline(
            f"there is no error code '{code}'.",
            f"Similar codes: {', '.join(similar)}." if similar else "No code resembles it.",
            "List all codes with what they mean: onceonly explain",
            code="code-unknown",
        )
    if as_json:
        print_json(dataclasses.asdict(explanation))
        return
    for text in (explanation.means, explanation.why, explanation.do):
        click.echo(error_codes.without_links(text))


def _list_codes(as_json: bool) -> None:
    from onceonly import error_codes

    table = console.make_table("code", "means")
    codes = []
    for explanation in error_codes.read_all().values():
        table.add_row(explanation.code, error_codes.without_links(explanation.means))
        codes.append({"code": explanation.code, "area": explanation.area, "means": explanation.means})
    if as_json:
        return print_json({"codes": codes})
    console.open_console().print(table, markup=False)
