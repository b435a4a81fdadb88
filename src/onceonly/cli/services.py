"""onceonly services: a broker and a Spark server on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.text import Text

from onceonly.cli import console as show
from onceonly.cli.app import json_option, print_json
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.dev.services import Services


@click.group(short_help="A broker and a Spark server on this machine.")
def services() -> None:
    """A Kafka broker and a Spark Connect server on this machine, below ONCEONLY_HOME."""


@services.command()
@click.option("--spark", is_flag=True, help="Also a Spark Connect server: a stage then starts in about a second.")
@click.option("--port", type=click.IntRange(0, 65_535), help="The broker's port; 0: any free one.")
@json_option
def up(spark: bool, port: int | None, as_json: bool) -> None:
    """Start what is not running, and wait until it is ready; create the state table, unless ONCEONLY_STATE is set.

    --json prints {"kafka", "spark"}: addresses, or null if it is not running.
    """
    from onceonly.statetable import location

    steps, settings = show.Steps(quiet=as_json), Settings.from_env()
    with steps.step("start") as words:
        if settings.embedded and location.make(settings.state):
            words.append(f"a new state table at {settings.state}")
        endpoints = _services(port).up(spark)
        words.append(f"Kafka at {endpoints.bootstrap}")
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
        services_json = [vars(each) | {"state": str(each.state), "folder": str(each.folder)} for each in statuses]
        return print_json({"services": services_json})
    table = show.table("service", "state", "pid", "address", "folder", right=("pid",))
    for service in statuses:
        pid, address = str(service.pid or "-"), service.address or "-"
        table.add_row(service.name, _state_text(str(service.state)), pid, address, str(service.folder))
    show.console().print(table)


@services.command()
@json_option
def down(as_json: bool) -> None:
    """Stop all; the data stays.

    --json prints {"stopped": [names]}.
    """
    services = _services()
    running = [service.name for service in services.status() if service.state == "running"]
    steps = show.Steps(quiet=as_json)
    with steps.step("stop") as words:
        services.down()
        words.append(", ".join(running) or "nothing was running")
    if as_json:
        print_json({"stopped": running})


def _services(port: int | None = None) -> Services:
    from onceonly.dev.services import Services

    return Services(Settings.from_env().home, port)


def _state_text(state: str) -> Text:
    return Text(state, {"running": "green", "died": "red"}.get(state, ""))
