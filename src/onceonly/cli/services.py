"""onceonly services, demo: a broker and a Spark server on this machine, and flights to try on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.cli import console
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.checkpoint.offsets import Interval
    from onceonly.dev.demo.load import Loaded
    from onceonly.dev.services import Services, ServiceStatus


@click.group(short_help="A broker and a Spark server on this machine.")
def services() -> None:
    """A Kafka broker and a Spark Connect server on this machine, below ONCEONLY_HOME."""


@services.command("up", short_help="Start what is not running, and wait until it is ready.")
@click.option("--spark", is_flag=True, help="Also a Spark Connect server: a stage then starts in about a second.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The broker's port; 0: any free one.")
@json_option
def start(spark: bool, port: int | None, as_json: bool) -> None:
    """Start what is not running, and wait until it is ready; create the state table, unless ONCEONLY_STATE is set.

    --json prints {"kafka", "spark"}: addresses, or null if it is not running.
    """
    from onceonly.statetable import location

    steps, settings = console.Steps(quiet=as_json), Settings.from_env()
    with steps.step("start") as words:
        if settings.embedded and location.make(settings.state):
            words.append(f"a new state table at {settings.state}")
        endpoints = _services(port).up(spark)
        words.append(f"Kafka at {endpoints.bootstrap}{_describe_taken_port(endpoints.bootstrap)}")
        if endpoints.spark_remote:
            words.append(f"Spark at {endpoints.spark_remote}")
    if as_json:
        return print_json({"kafka": endpoints.bootstrap, "spark": endpoints.spark_remote})
    if endpoints.spark_remote:
        steps.say(
            "Commands with this ONCEONLY_HOME use them from now on, unless SPARK_REMOTE names another Spark.", "dim"
        )


@services.command()
@json_option
def status(as_json: bool) -> None:
    """What runs, and where.

    --json prints {"services": [{"name", "state", "pid", "address", "folder"}]}; state: running, stopped or died.
    """
    statuses = _services().status()
    if as_json:
        return print_json({"services": [_status_json(service) for service in statuses]})
    table = console.make_table("service", "state", "pid", "address", "folder", right=("pid",))
    for service in statuses:
        pid, address = str(service.pid or "-"), service.address or "-"
        table.add_row(service.name, _state_text(str(service.state)), pid, address, str(service.folder))
    console.open_console().print(table)


@services.command("down")
@json_option
def stop(as_json: bool) -> None:
    """Stop all; the data stays.

    --json prints {"stopped": [names]}.
    """
    services = _services()
    running = [service.name for service in services.status() if service.state == "running"]
    steps = console.Steps(quiet=as_json)
    with steps.step("stop") as words:
        services.down()
        words.append(", ".join(running) or "nothing was running")
    if as_json:
        print_json({"stopped": running})


def _describe_taken_port(address: str) -> str:
    """Say that another process has the usual port, as the broker of another folder would; empty if none has."""
    from onceonly.dev.services import machine
    from onceonly.dev.services.kafka import KafkaBroker

    usual = KafkaBroker.default_port
    if address.endswith(f":{usual}") or machine.is_free(usual):
        return ""
    return f" (another process, such as the broker of another folder, listens on {usual})"


def _services(port: int | None = None) -> Services:
    from onceonly.dev.services import Services

    return Services(Settings.from_env().home, port)


def _status_json(service: ServiceStatus) -> dict[str, Any]:
    return {
        "name": service.name,
        "state": str(service.state),
        "pid": service.pid,
        "address": service.address,
        "folder": str(service.folder),
    }


def _state_text(state: str) -> Text:
    return Text(state, {"running": "green", "died": "red"}.get(state, ""))


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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
    console.print_done(_describe_load(loaded))


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
        return f"all {loaded.skipped:,} flights in {period} are there already: nothing to do"
    skipped = f", {loaded.skipped:,} were there already" if loaded.skipped else ""
    rate = loaded.loaded / loaded.seconds
    duration = f"{loaded.seconds:.1f} s ({rate:,.0f} a second)"
    return f"{count(loaded.loaded, 'flight')} loaded in {period}{skipped}  {duration}"
