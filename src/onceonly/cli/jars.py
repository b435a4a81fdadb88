"""onceonly jars: what Spark and the embedded broker need beside PySpark."""

from __future__ import annotations

import warnings
from pathlib import Path

import click

from onceonly.cli import console as show
from onceonly.cli.app import json_option, print_json
from onceonly.errors import NotCommitted
from onceonly.settings import Settings

FOLDERS = ("spark", "broker", "s3", "azure", "google", "hdfs")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(short_help="The jars of Spark and of the embedded broker.")
@click.pass_context
def jars(ctx: click.Context) -> None:
    """The jars that Spark and the embedded broker need in addition to PySpark, from a Maven repository."""
    ctx.obj = Settings.from_env()


@jars.command()
@click.argument("folders", nargs=-1, metavar=f"[{'|'.join(FOLDERS)}]…", type=click.Choice(FOLDERS))
@click.option("--settings", "repository", type=FILE, help="An ivysettings.xml that names another repository.")
@json_option
@click.pass_obj
def fetch(settings: Settings, folders: tuple[str, ...], repository: Path | None, as_json: bool) -> None:
    """Fetch missing jars, for Spark and the broker unless folders are named; complete folders stay unchanged.

    `s3`, `azure` and `google` are the jars that Spark needs for tables and folders in that store. All jars go to
    ONCEONLY_JARS, where Spark and `onceonly services up` find them. Then Spark's classes are prepared there (200 MB,
    once), so that it starts faster.
    --json prints {"folder", "fetched": [names], "jars", "prepared": true if that was done now}.
    """
    from onceonly.spark import jars

    base, folders_to_fetch = settings.jars, folders or jars.NEEDED
    steps = show.Steps(quiet=as_json)
    with steps.step("fetch") as words:
        fetched = jars.fetch(base, folders_to_fetch, repository or jars.SETTINGS)
        words.append(f"{', '.join(fetched) or 'nothing was missing'}: {base}")
    prepared = "spark" in folders_to_fetch and _prepare_classes(base, steps)
    if as_json:
        count = sum(len(jars.listed(folder)) for folder in folders_to_fetch)
        print_json({"folder": str(base), "fetched": fetched, "jars": count, "prepared": prepared})


def _prepare_classes(base: Path, steps: show.Steps) -> bool:
    """Prepare Spark's classes; returns whether that was done now.

    Spark starts without it as well, so an error is shown as a warning.
    """
    from onceonly.spark import archive

    try:
        with steps.step("prepare") as words:
            is_new = archive.make(base)
            words.append("Spark's classes" if is_new else "nothing to do")
    except NotCommitted as error:
        warnings.warn(str(error), stacklevel=1)
        return False
    return is_new


@jars.command()
@json_option
def packages(as_json: bool) -> None:
    """Print the value for spark-submit's --packages, if Spark is to fetch the jars.

    --json prints {"packages": [coordinates]}.
    """
    from onceonly.spark import jars

    if as_json:
        return print_json({"packages": [jar.coordinates for jar in jars.listed("spark")]})
    click.echo(jars.packages())
