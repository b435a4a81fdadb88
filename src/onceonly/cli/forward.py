"""onceonly state forward: continue with a state table that is behind its targets, or replaces a lost one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click
from rich.text import Text

from onceonly.cli import changing, looking, target
from onceonly.cli import console as show
from onceonly.cli.app import json_option, person, print_json
from onceonly.cli.looking import seen_option
from onceonly.cli.run import span
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.coordinator.manual import Seen
    from onceonly.statetable.table import StateTable


@click.command(short_help="Continue after what the targets show.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--decision", required=True, type=click.IntRange(1), help="The last decision that the targets show.")
@click.option(
    "--ends", multiple=True, metavar="TOPIC:PARTITION=OFFSET", help="Where to continue; once for each partition."
)
@click.option(
    "--interval", nargs=2, multiple=True, metavar="START END", help="An interval that is published; once for each."
)
@click.option("--reason", required=True, help="Recorded with your name, and shown by `onceonly describe`.")
@seen_option
@json_option
def forward(
    file: str,
    decision: int,
    ends: Sequence[str],
    interval: Sequence[tuple[str, str]],
    reason: str,
    seen: int | None,
    as_json: bool,
) -> None:
    """Record what the targets of the pipeline NAME in FILE.py have, if the state table does not know it.

    Use it after the state table was restored from an older copy, or created again because it was lost: it would
    publish later rows again. Pass up to where everything is published (the error message shows what is known), and
    the pipeline continues from there. Rows that you leave out are published a second time; rows that you pass but that
    are not there are lost.

    --json prints the checkpoint as `onceonly status PIPELINE --json` does.
    """
    from onceonly.coordinator.forward import Forward
    from onceonly.runtime import live_services

    settings = Settings.from_env()
    pipeline = target.load(file, settings.project)
    spans = [span(start_and_end) for start_and_end in interval]
    request = Forward(decision, person(), reason, _parse_ends(ends), spans)
    coordinator = changing.coordinator(settings)
    confirmed = _confirm(coordinator.state, pipeline.name, seen, f"Continue after decision {decision}?", as_json)
    request = replace(request, seen=confirmed)
    checkpoint = coordinator.forward(live_services.locate_tables(pipeline, changing.parts(settings)), request)
    if as_json:
        return print_json(queries.to_json(checkpoint))
    words = (
        f"epoch {checkpoint.epoch}: {pipeline.name} continues after decision {decision}, "
        f"recorded by {request.who}: {reason}"
    )
    show.console().print(Text.assemble(("✓ ", "green"), words))


def _confirm(state: StateTable, name: str, seen: int | None, question: str, as_json: bool) -> Seen:
    """Return what the person has looked at; where the person is asked, print what the state table has first."""
    head = state.view(name).head
    if looking.must_show(seen, as_json):
        content = f"has no {name} yet"
        if head.epoch:
            content = f"has {name} up to epoch {head.epoch}, decision {head.decision}"
        show.console().print(f"The state table at {state.uri} {content}.", markup=False)
    return looking.confirm(seen, head.changed, question, name, f"onceonly status {name}", as_json)


def _parse_ends(texts: Sequence[str]) -> dict[str, dict[int, int]]:
    """Return offsets by topic and partition.

    Raises:
        InvalidPipeline: a text is not of the form TOPIC:PARTITION=OFFSET.
    """
    ends: dict[str, dict[int, int]] = {}
    for text in texts:
        topic_partition, _, offset = text.rpartition("=")
        topic, _, partition = topic_partition.rpartition(":")
        if not (topic and partition.isdecimal() and offset.isdecimal()):
            raise InvalidPipeline(
                f"--ends {text} is not understood.", todo="Write TOPIC:PARTITION=OFFSET. Nothing was changed."
            )
        ends.setdefault(topic, {})[int(partition)] = int(offset)
    return ends
