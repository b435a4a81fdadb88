"""What commands and settings there are, and completions for a shell."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from onceonly import documentation
from onceonly.cli import console
from onceonly.documentation import HelpPage
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import VARIABLES

SETTINGS = "settings"
PROGRAM = "onceonly"
MAX_SUGGESTIONS = 3
MIN_SIMILARITY = 0.5  # of a name that is suggested, as `difflib` measures it
SHELLS = ("bash", "zsh", "fish")
# The file in the user's folder that each shell reads when it starts, and what loads the completions there. A fish shell
# finds them by the name of their file.
START_FILES = {
    "bash": (".bashrc", "source '{file}'"),
    "zsh": (".zshrc", "(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}\nsource '{file}'"),
}


@click.command(short_help="Show commands, settings, or a page of the documentation.")
@click.argument("topic", nargs=-1)
@click.pass_context
def help(ctx: click.Context, topic: tuple[str, ...]) -> None:
    """Show all commands and pages; `onceonly help settings` the environment variables; `onceonly help COMMAND …` that
    command; `onceonly help PAGE [SECTION]` that page of the documentation.
    """
    assert ctx.parent is not None
    if topic == (SETTINGS,):
        for variable in VARIABLES:
            click.echo(f"{variable.name}\n    {variable.meaning}\n    ({variable.default})")
        return
    if not topic:
        click.echo(ctx.parent.command.get_help(ctx.parent))
        click.echo("\nPages, each shown by: onceonly help PAGE")
        return _list_pages()
    page = documentation.find_page(topic[0]) if topic[0] not in _list_commands(ctx.parent) else None
    if page and len(topic) <= 2:
        console.show_markdown(documentation.with_commands(_take_section(page, topic[1:])))
    else:
        click.echo(_describe_command(ctx.parent, topic))


def _list_pages() -> None:
    pages = documentation.list_pages().values()
    width = max((len(page.name) for page in pages), default=0)
    for page in pages:
        click.echo(f"  {page.name:<{width}}  {page.title}")


def _take_section(page: HelpPage, section: tuple[str, ...]) -> str:
    """Return the page, or the section that is named. Raises InvalidPipeline: the page does not have it."""
    text = documentation.cut_section(page.text, section[0]) if section else page.text
    if text is not None:
        return text
    raise InvalidPipeline(
        f"the page '{page.name}' has no section '{section[0]}'.",
        _describe_similar(section[0], page.sections),
        f"The whole page: {documentation.name_page(page.name)}",
        code="command-unknown",
    )


def _describe_command(context: click.Context, topic: tuple[str, ...]) -> str:
    """Return the help of a command. Raises InvalidPipeline: there is neither a command nor a page of that name."""
    command, known_names = context.command, [*_list_commands(context), *documentation.list_pages()]
    for name in topic:
        subcommand = command.get_command(context, name) if isinstance(command, click.Group) else None
        if subcommand is None:
            raise InvalidPipeline(
                f"there is no command or page '{' '.join(topic)}'.",
                _describe_similar(name, known_names),
                f"All commands and pages: {PROGRAM} help. All settings: {PROGRAM} help {SETTINGS}.",
                code="command-unknown",
            )
        context, command = click.Context(subcommand, info_name=name, parent=context), subcommand
        known_names = _list_commands(context)
    return command.get_help(context)


def _list_commands(context: click.Context) -> list[str]:
    return context.command.list_commands(context) if isinstance(context.command, click.Group) else []


def _describe_similar(name: str, known_names: list[str]) -> str:
    """Return a sentence with the names that resemble this one, or contain it."""
    names = difflib.get_close_matches(name, known_names, MAX_SUGGESTIONS, MIN_SIMILARITY)
    names += [known_name for known_name in known_names if name in known_name]
    similar = ", ".join(list(dict.fromkeys(names))[:MAX_SUGGESTIONS])
    return f"'{name}' is not known. Similar names: {similar}." if similar else f"'{name}' is not known."


@click.command(short_help="Let a shell complete commands and options.")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.option("--print", "only_print", is_flag=True, help="Print the script, and install nothing.")
@click.pass_context
def completions(ctx: click.Context, shell: str | None, only_print: bool) -> None:
    """Install completions of commands and options for SHELL; by default, for the shell that runs.

    It writes one file, which the next shell of this user loads: for bash and zsh by a line that it adds once to
    ~/.bashrc or ~/.zshrc. Repeat the command after an upgrade.
    """
    shell = shell or _current_shell()
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, PROGRAM, f"_{PROGRAM.upper()}_COMPLETE").source()
    if only_print:
        click.echo(script)
        return
    file = _script_file(shell)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script)
        if shell in START_FILES:
            _add_to_start_file(shell, file)
    except OSError as error:
        raise NotCommitted(
            f"completions for {shell} cannot be written.",
            f"{error}.",
            f"Put them into a file of your own: {PROGRAM} completions {shell} --print",
            code="file-not-writable",
        ) from error
    click.echo(f"✓ {shell} completes {PROGRAM} from its next start on: {file}")


def _current_shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell in SHELLS:
        return shell
    raise InvalidPipeline(
        "it is not known which shell to install completions for.",
        f"SHELL is '{os.environ.get('SHELL', '')}'.",
        f"Name it: {PROGRAM} completions {'|'.join(SHELLS)}. Nothing was written.",
        code="shell-unknown",
    )


def _script_file(shell: str) -> Path:
    if shell == "fish":
        configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(configuration, "fish", "completions", f"{PROGRAM}.fish")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data, PROGRAM, f"completions.{shell}")


def _add_to_start_file(shell: str, file: Path) -> None:
    """Add what loads the file to what the shell reads when it starts, unless it is there."""
    name, line = START_FILES[shell]
    start_file, line = Path.home() / name, line.format(file=file)
    present = start_file.read_text() if start_file.exists() else ""
    if line in present:
        return
    with start_file.open("a") as end:
        end.write(f"\n# completions of {PROGRAM}\n{line}\n")
