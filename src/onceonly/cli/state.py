"""onceonly state: make a state table, and decide what a table is that was moved, copied, restored or lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from onceonly.checkpoint.interval_text import parse_interval
from onceonly.cli import console, environment, manual
from onceonly.cli.app import json_option, print_json
from onceonly.cli.manual import person, reason_option, seen_option
from onceonly.errors import InvalidPipeline
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.coordinator.manual import Seen
    from onceonly.statetable.table import StateTable


@click.group(short_help="Create, move, fork or forward the state table.")
def state() -> None:
    """Create, move, fork or forward the state table (of ONCEONLY_STATE)."""


@state.command()
def init() -> None:
    """Create the state table, once per environment. Nothing else creates one that ONCEONLY_STATE names."""
    from onceonly.statetable import location
    from onceonly.statetable.table import StateTable

    uri = Settings.from_env().state
    is_new = location.make(uri)
    words = "was made" if is_new else "exists: nothing to do"
    console.print_done(f"the state table at {uri} (id {StateTable(uri).id}) {words}.")


@state.command()
def relocate() -> None:
    """Accept that the state table was moved here: the original no longer exists.

    Never use it for a copy whose original is still in use: each of the two would take the other's output for its own.
    """
    from onceonly.statetable import location

    uri = Settings.from_env().state
    if _is_original(_read_configuration(uri), uri):
        return console.open_console().print(f"{uri} is where it was created: nothing to do.", markup=False)
    location.relocate(uri)
    console.print_done(f"the state table is at {uri} from now on; its identity stays.")


@state.command()
def fork() -> None:
    """Turn a copy of the state table into a second one, with its own identity.

    Its pipelines continue from the copied offsets: give them other sinks, or later rows arrive twice.
    """
    from onceonly.statetable import location

    uri = Settings.from_env().state
    if _is_original(_read_configuration(uri), uri):
        raise InvalidPipeline(
            f"{uri} is the state table itself, not a copy.",
            "With a new identity it would no longer know what it has published.",
            "Copy the folder, point ONCEONLY_STATE to the copy, and fork that. Nothing was written.",
            code="state-table-not-copied",
        )
    _refuse_open(uri)
    location.fork(uri)
    console.print_done(f"{uri} is a separate state table from now on.")


def _read_configuration(uri: str) -> Mapping[str, str]:
    """Return the table's own configuration: opening a copy as the state table would be refused."""
    from onceonly.statetable import location

    configuration = location.read_properties(uri)
    if configuration is None or location.ID not in configuration:
        raise InvalidPipeline(
            f"there is no state table at {uri}.",
            "",
            "Point ONCEONLY_STATE to the moved or copied folder.",
            code="state-table-missing",
        )
    return configuration


def _is_original(configuration: Mapping[str, str], uri: str) -> bool:
    """Return whether the table is where it was made."""
    from onceonly.statetable.location import PLACE, locate

    return configuration[PLACE] == locate(uri)


def _refuse_open(uri: str) -> None:
    """Refuse to fork a table with open checkpoints: both tables would settle what is open, and both publish it."""
    from onceonly.statetable.table import list_unsettled_epochs

    epochs_by_pipeline = list_unsettled_epochs(uri)
    if epochs_by_pipeline:
        open_checkpoints = []
        for pipeline, epochs in epochs_by_pipeline.items():
            open_checkpoints.append(f"{pipeline} epoch {', '.join(map(str, epochs))}")
        raise InvalidPipeline(
            f"{uri} cannot be forked: it holds unsettled checkpoints.",
            f"{'; '.join(open_checkpoints)}. The original will settle them; a fork would do so a second time.",
            "Settle them in the original (onceonly recover), then copy it again. Nothing was written.",
            code="checkpoints-unsettled",
        )


@state.command(short_help="Continue after what the targets show.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--decision", required=True, type=click.IntRange(1), help="The last decision that the targets show.")
@click.option(
    "--ends", multiple=True, metavar="TOPIC:PARTITION=OFFSET", help="Where to continue; once for each partition."
)
@click.option(
    "--interval", nargs=2, multiple=True, metavar="START END", help="An interval that is published; once for each."
)
@reason_option
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
    pipeline = pipeline_file.load(file, settings.project)
    spans = [parse_interval(*times) for times in interval]
    request = Forward(decision, person(), reason, _parse_ends(ends), spans)
    coordinator = environment.open_coordinator(settings)
    confirmed = _confirm(coordinator.state_table, pipeline.name, seen, f"Continue after decision {decision}?", as_json)
    request = replace(request, seen=confirmed)
    checkpoint = coordinator.forward(
        live_services.locate_tables(pipeline, environment.open_services(settings)), request
    )
    if as_json:
        return print_json(queries.to_json(checkpoint))
    words = (
        f"epoch {checkpoint.epoch}: {pipeline.name} continues after decision {decision}, "
        f"recorded by {request.who}: {reason}"
    )
    console.print_done(words)


def _confirm(state_table: StateTable, name: str, seen: int | None, question: str, as_json: bool) -> Seen:
    """Return what the person has looked at; where the person is asked, print what the state table has first."""
    head = state_table.view(name).head
    if manual.must_show(seen, as_json):
        content = f"has no {name} yet"
        if head.epoch:
            content = f"has {name} up to epoch {head.epoch}, decision {head.decision}"
        console.open_console().print(f"The state table at {state_table.uri} {content}.", markup=False)
    return manual.confirm(seen, head.changed, question, name, f"onceonly status {name}", as_json)


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
                f"--ends {text} is not understood.",
                todo="Write TOPIC:PARTITION=OFFSET. Nothing was changed.",
                code="option-invalid",
            )
        ends.setdefault(topic, {})[int(partition)] = int(offset)
    return ends
