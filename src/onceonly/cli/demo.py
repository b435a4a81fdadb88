"""onceonly demo: the flights of 2013, to try everything on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from onceonly.cli import console
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.checkpoint.offsets import Interval
    from onceonly.dev.demo.load import Loaded


@click.group()
def demo() -> None:
    """Try it on 336,776 real flights of 2013."""


@demo.command()
@click.option("--exit", "exit_", is_flag=True, help="End when the pipeline has run, instead of staying up.")
def run(exit_: bool) -> None:
    """Start everything on this machine, load flights, run the pipeline."""
    from onceonly.dev.demo.run import run as run_demo

    run_demo(exit_)


@demo.command()
@click.option("--month", metavar="YYYY-MM", help="The flights of one month (without any option: 2013-01).")
@click.option("--until", metavar="YYYY-MM-DD", help="All flights to the end of this day.")
@click.option("--all", "all_", is_flag=True, help="The whole year.")
@click.option("--topic", default="flights", show_default=True, help="Created with 4 partitions if there is none.")
@json_option
def load(month: str | None, until: str | None, all_: bool, topic: str, as_json: bool) -> None:
    """Load flights into a topic: as Avro, by carrier, in order of time (UTC), each once.

    Flights that the topic already holds are left out, so loading can be repeated, and continues after an interruption.

    \b
    --json prints {"topic", "bootstrap", "created", "partitions",
    "period": {"start", "end"}, "loaded", "skipped", "seconds"}.
    """
    from onceonly.dev.demo.load import load as load_flights

    period, out = _period(month, until, all_), console.open_console()
    bar = Progress(
        TextColumn("flights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=out, transient=True, disable=as_json or not out.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("flights", total=None)
        loaded = load_flights(
            Settings.from_env(), topic, period, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if as_json:
        return print_json(loaded.to_json())
    out.print(_describe_load(loaded), markup=False)


def _period(month: str | None, until: str | None, all_: bool) -> Interval:
    from onceonly.dev.demo import flights

    if sum((bool(month), bool(until), all_)) > 1:
        raise InvalidPipeline(
            "--month, --until and --all exclude each other.",
            todo="Give one. Nothing was written.",
            code="option-invalid",
        )
    if all_:
        return flights.YEAR
    if until:
        return flights.period_until(until)
    return flights.month_period(month or "2013-01")


def _describe_load(loaded: Loaded) -> str:
    period = f"{loaded.period} of topic '{loaded.topic}'"
    if not loaded.loaded:
        return f"✓ all {loaded.skipped:,} flights in {period} are there already: nothing to do"
    skipped = f", {loaded.skipped:,} were there already" if loaded.skipped else ""
    rate = loaded.loaded / loaded.seconds
    duration = f"{loaded.seconds:.1f} s ({rate:,.0f} a second)"
    return f"✓ {count(loaded.loaded, 'flight')} loaded in {period}{skipped}  {duration}"
