"""onceonly check: everything that can be known before any work."""

from __future__ import annotations

import click
from rich.text import Text

from onceonly.cli import console as show
from onceonly.cli import reading, target
from onceonly.cli.app import json_option, print_json
from onceonly.pipeline import Pipeline
from onceonly.settings import Settings


@click.command(short_help="Check a pipeline; writes nothing.")
@click.argument("file", metavar="FILE.py:NAME")
@json_option
def check(file: str, as_json: bool) -> None:
    """Check the pipeline NAME in FILE.py: transform, topic, schema, sinks and state table. Writes nothing.

    --json prints {"pipeline", "notes": […]}.
    """
    from onceonly import wiring

    settings = Settings.from_env()
    pipeline = target.load(file, settings.project)
    notes = [f"pipeline '{pipeline.name}' is sound, in {pipeline.mode} mode"]
    found = wiring.check(pipeline, wiring.LiveParts(settings))
    notes += [*_passed(pipeline, settings), *found, _state(settings)]
    if as_json:
        return print_json({"pipeline": pipeline.name, "notes": notes})
    for note in notes:
        show.console().print(Text.assemble(("✓ ", "green"), note))


def _passed(pipeline: Pipeline, settings: Settings) -> list[str]:
    """What the check has established without a note."""
    source = pipeline.source
    decoded = f", decoded by {source.schema}" if source.schema else ""
    topic = f"topic '{source.topic}' is there on {settings.brokers(source.bootstrap)}{decoded}"
    return [f"transform {pipeline.transform} imports", topic]


def _state(settings: Settings) -> str:
    state = reading.existing(settings)
    if state is None:
        return f"state table: {settings.state} will be created by the first run"
    return f"state table: {settings.state} (id {state.id}), compare-and-set holds there"
