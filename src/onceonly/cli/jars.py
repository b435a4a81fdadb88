"""onceonly jars: where Spark's jars and prepared classes are, and making them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onceonly.cli import console
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings

JAR_FOLDERS = ("spark", "broker", "s3", "azure", "google", "hdfs", "compiler")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
CLASSES, MEGABYTE = "Spark's classes", 1_000_000
OPTIONAL_SETS = {  # of JAR_FOLDERS, and what each is for; a Spark on this machine needs the others
    "broker": "`onceonly services up` and the demo",
    "s3": "Spark on tables and folders in s3://",
    "azure": "Spark on tables and folders in Azure (abfss://)",
    "google": "Spark on tables and folders in gs://",
    "hdfs": "Onceonly's own tests on HDFS",
}
GAIN = "each start of Spark takes about 4 s less"  # docs/benchmarks.md, "cold run, no prepared classes"


@click.group(invoke_without_command=True, short_help="The jars of Spark and of the embedded broker.")
@json_option
@click.pass_context
def jars(ctx: click.Context, as_json: bool) -> None:
    """The jars that Spark and the embedded broker need in addition to PySpark, from a Maven repository.

    Without a command: where they are looked for, which are there, and whether Spark's classes are prepared. The folder
    is a cache of this user and of the versions of Onceonly and Spark, unless ONCEONLY_JARS names another one.
    Sets of jars that a pipeline may not need are called optional. --json prints {"folder", "why", "sets": [{"name",
    "jars", "missing": [files], "optional_for": what, or null}], "prepared": file or null}.
    """
    settings = ctx.obj = Settings.from_env()
    if ctx.invoked_subcommand is None:
        _show(settings, as_json)


def _show(settings: Settings, as_json: bool) -> None:
    from onceonly.spark import jars

    base, why = settings.find_jars()
    sets = []
    for folder in JAR_FOLDERS:
        missing = [jar.file for jar in jars.list_missing(base, folder)]
        purpose = OPTIONAL_SETS.get(folder)
        sets.append({"name": folder, "jars": len(jars.list_jars(folder)), "missing": missing, "optional_for": purpose})
    archive = _find_archive(base)
    if as_json:
        return print_json({"folder": str(base), "why": why, "sets": sets, "prepared": archive and str(archive)})
    out = console.open_console()
    out.print(f"{base} ({why})", markup=False, highlight=False, soft_wrap=True)
    for jar_set in sets:
        out.print(f"  {jar_set['name']:<17} {_describe_set(jar_set)}", markup=False, highlight=False)
    prepared = f"not prepared. After this, {GAIN}: onceonly jars prepare"
    if archive:
        prepared = f"prepared, {archive.stat().st_size // MEGABYTE} MB"
    out.print(f"  {CLASSES:<17} {prepared}", markup=False, highlight=False, soft_wrap=True)


def _describe_set(jar_set: dict[str, Any]) -> str:
    missing, total, purpose = len(jar_set["missing"]), jar_set["jars"], jar_set["optional_for"]
    if not missing:
        return f"complete, {count(total, 'jar')}"
    fetch_command = f"onceonly jars fetch {jar_set['name']}"
    if missing < total:
        return f"{missing} of {total} jars are missing: {fetch_command}"
    if purpose:
        return f"optional, for {purpose}; to fetch it: {fetch_command}"
    return f"not fetched: {fetch_command}"


def _find_archive(base: Path) -> Path | None:
    """Find the prepared classes; none without PySpark."""
    from onceonly.spark import jvm

    try:
        return jvm.find_archive(base)
    except InvalidPipeline:
        return None


@jars.command()
@click.argument("folders", nargs=-1, metavar=f"[{'|'.join(JAR_FOLDERS)}]…", type=click.Choice(JAR_FOLDERS))
@click.option("--settings", "repository", type=FILE, help="An ivysettings.xml that names another repository.")
@json_option
@click.pass_obj
def fetch(settings: Settings, folders: tuple[str, ...], repository: Path | None, as_json: bool) -> None:
    """Fetch missing jars, for Spark and the broker unless folders are named; complete folders stay unchanged.

    `s3`, `azure` and `google` are the jars that Spark needs for tables and folders in that store. `onceonly jars` shows
    where all are put, and where Spark and `onceonly services up` find them. Several processes may fetch at once.
    --json prints {"folder", "fetched": [names], "jars"}.
    """
    from onceonly.spark import jars

    base, folders_to_fetch = settings.jars, folders or jars.NEEDED
    steps = console.Steps(quiet=as_json)
    with steps.step("fetch") as words:
        fetched = jars.fetch(base, folders_to_fetch, repository or jars.SETTINGS)
        words.append(f"{', '.join(fetched) or 'nothing was missing'}: {base}")
    if as_json:
        jar_count = sum(len(jars.list_jars(folder)) for folder in folders_to_fetch)
        return print_json({"folder": str(base), "fetched": fetched, "jars": jar_count})
    if "spark" in folders_to_fetch and not _find_archive(base):
        steps.say(f"Spark is ready to run. To prepare its classes takes a minute or two, once; {GAIN}:", "dim")
        steps.say("  onceonly jars prepare", "dim")


@jars.command()
@json_option
@click.pass_obj
def prepare(settings: Settings, as_json: bool) -> None:
    """Prepare Spark's classes, so that each start of Spark takes about 4 s less: a minute or two, once, and 200 MB.

    Everything works without. A Spark runs through the usual steps of a stage, and the classes that it has loaded are
    kept beside the jars. They fit one Java, one PySpark and one list of jars: repeat it after a change of these.
    --json prints {"folder", "prepared": true if that was done now}.
    """
    from onceonly.spark import jars, jvm

    base, steps = settings.jars, console.Steps(quiet=as_json)
    if missing := jars.list_missing(base, "spark"):
        raise InvalidPipeline(
            f"jars of Spark are missing in {base / 'spark'}: {', '.join(jar.file for jar in missing)}.",
            "Classes are prepared for a list of jars, and would not fit another one.",
            "Fetch them first: onceonly jars fetch",
            code="jar-missing",
        )
    with steps.step("prepare") as words:
        steps.say(f"A Spark loads its classes, which takes a minute or two; {GAIN}.", "dim")
        is_new = jvm.make_archive(base)
        words.append("Spark's classes" if is_new else "nothing to do")
    if as_json:
        print_json({"folder": str(base), "prepared": is_new})


@jars.command()
@json_option
def packages(as_json: bool) -> None:
    """Print the value for spark-submit's --packages, if Spark is to fetch the jars.

    --json prints {"packages": [coordinates]}.
    """
    from onceonly.spark import jars

    if as_json:
        return print_json({"packages": [jar.coordinates for jar in jars.list_jars("spark")]})
    click.echo(jars.packages())
