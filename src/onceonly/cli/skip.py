"""onceonly skip: record that an interval which no checkpoint covers is left out on purpose."""

from __future__ import annotations

import click
from rich.text import Text

from onceonly.cli import changing
from onceonly.cli import console as show
from onceonly.cli.app import json_option, person, print_json
from onceonly.cli.run import span
from onceonly.settings import Settings
from onceonly.views import queries


@click.command(short_help="Leave out an interval on purpose.")
@click.argument("pipeline")
@click.option("--interval", nargs=2, required=True, metavar="START END", help="The whole gap, as `status` shows it.")
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly status PIPELINE`.")
@json_option
def skip(pipeline: str, interval: tuple[str, str], reason: str, as_json: bool) -> None:
    """Record that a gap between two intervals of PIPELINE is left out on purpose: it is no longer shown as missing.

    Nothing is read and nothing is published for it. To run it later all the same: `onceonly run … --interval START END
    --reprocess`, or a run of that interval whose conf is {"reprocess": true}.

    --json prints the checkpoint as `onceonly status PIPELINE --json` does.
    """
    settings = Settings.from_env()
    queries.check_known(queries.required(settings), pipeline)
    done = changing.coordinator(settings).skip(pipeline, span(interval), person(), reason)
    if as_json:
        return print_json(queries.to_json(done))
    show.console().print(Text.assemble(("✓ ", "green"), f"epoch {done.epoch}: {done.interval} is left out"))
