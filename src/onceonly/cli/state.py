"""onceonly state: make a state table, and decide what a table is that was moved, copied or restored."""

from __future__ import annotations

from collections.abc import Mapping

import click

from onceonly.cli import console as show
from onceonly.cli.forward import forward
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings


@click.group()
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
    show.console().print(f"✓ the state table at {uri} (id {StateTable(uri).id}) {words}.", markup=False)


@state.command()
def relocate() -> None:
    """Accept that the state table was moved here: the original no longer exists.

    Never use it for a copy whose original is still in use: each of the two would take the other's output for its own.
    """
    from onceonly.statetable import location

    uri = Settings.from_env().state
    if _is_original(_read_configuration(uri), uri):
        return show.console().print(f"{uri} is where it was created: nothing to do.", markup=False)
    location.relocate(uri)
    show.console().print(f"✓ the state table is at {uri} from now on; its identity stays.", markup=False)


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
        )
    _refuse_open(uri)
    location.fork(uri)
    show.console().print(f"✓ {uri} is a separate state table from now on.", markup=False)


state.add_command(forward)


def _read_configuration(uri: str) -> Mapping[str, str]:
    """Return the table's own configuration: opening a copy as the state table would be refused."""
    from onceonly.statetable import location

    configuration = location.configuration(uri)
    if configuration is None or location.ID not in configuration:
        raise InvalidPipeline(
            f"there is no state table at {uri}.", "", "Point ONCEONLY_STATE to the moved or copied folder."
        )
    return configuration


def _is_original(configuration: Mapping[str, str], uri: str) -> bool:
    """Return whether the table is where it was made."""
    from onceonly.statetable.location import PLACE, place

    return configuration[PLACE] == place(uri)


def _refuse_open(uri: str) -> None:
    """Refuse to fork a table with open checkpoints: both tables would settle what is open, and both publish it."""
    from onceonly.statetable.table import unsettled

    epochs_by_pipeline = unsettled(uri)
    if epochs_by_pipeline:
        open_checkpoints = []
        for pipeline, epochs in epochs_by_pipeline.items():
            open_checkpoints.append(f"{pipeline} epoch {', '.join(map(str, epochs))}")
        raise InvalidPipeline(
            f"{uri} cannot be forked: it holds unsettled checkpoints.",
            f"{'; '.join(open_checkpoints)}. The original will settle them; a fork would do so a second time.",
            "Settle them in the original (onceonly recover), then copy it again. Nothing was written.",
        )
