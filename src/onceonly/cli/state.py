"""onceonly state: make a state table, and settle what one is that was moved, copied or restored."""

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
    made = location.make(uri)
    words = "was made" if made else "exists: nothing to do"
    show.console().print(f"✓ the state table at {uri} (id {StateTable(uri).id}) {words}.", markup=False)


@state.command()
def relocate() -> None:
    """Accept that the state table was moved here: the original no longer exists.

    Never use it for a copy whose original is still in use: each of the two would take the other's output for its own.
    """
    from onceonly.statetable import location

    uri = Settings.from_env().state
    if _is_original(_copy(uri), uri):
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
    table = _copy(uri)
    if _is_original(table, uri):
        raise InvalidPipeline(
            f"{uri} is the state table itself, not a copy.",
            "With a new identity it would no longer know what it has published.",
            "Copy the folder, point ONCEONLY_STATE to the copy, and fork that. Nothing was written.",
        )
    _refuse_open(uri)
    location.fork(uri)
    show.console().print(f"✓ {uri} is a separate state table from now on.", markup=False)


state.add_command(forward)


def _copy(uri: str) -> Mapping[str, str]:
    """What the table says of itself: opening it as the state table would be refused."""
    from onceonly.statetable import location

    found = location.configuration(uri)
    if found is None or location.ID not in found:
        raise InvalidPipeline(
            f"there is no state table at {uri}.", "", "Point ONCEONLY_STATE to the moved or copied folder."
        )
    return found


def _is_original(found: Mapping[str, str], uri: str) -> bool:
    from onceonly.statetable.location import PLACE, place

    return found[PLACE] == place(uri)


def _refuse_open(uri: str) -> None:
    """Both tables would settle what is open, and both publish it."""
    from onceonly.statetable.table import unsettled

    found = unsettled(uri)
    if found:
        listed = "; ".join(f"{name} epoch {', '.join(map(str, epochs))}" for name, epochs in found.items())
        raise InvalidPipeline(
            f"{uri} cannot be forked: it holds unsettled checkpoints.",
            f"{listed}. The original will settle them; a fork would do so a second time.",
            "Settle them in the original (onceonly recover), then copy it again. Nothing was written.",
        )
