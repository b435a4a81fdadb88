"""onceonly init: a small project that runs as it is."""

from __future__ import annotations

from pathlib import Path

import click

from onceonly.cli import console as show
from onceonly.cli.app import json_option, print_json
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings

TEMPLATES, SUFFIX = Path(__file__).with_name("project"), ".template"
PIPELINE = "dags/pipelines/orders.py"
NEXT = f"""In {{folder}}:
  onceonly jars fetch       # once; needs Java 17 or newer
  onceonly services up      # a broker on this machine, if you have none
  python sample.py          # orders to read
  onceonly run {PIPELINE}
README.md there says what each file is for."""


@click.command(short_help="Write a project to start from.")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@json_option
def init(folder: Path | None, as_json: bool) -> None:
    """Write a project into FOLDER: a pipeline with its DAG, transform, schema and test, and the recovery DAG.

    FOLDER is ONCEONLY_PROJECT unless given. No file is replaced. --json prints {"folder", "files": [names]}.
    """
    into = (folder or Settings.from_env().project).absolute()
    files = _files()
    _check_free(into, files)
    _write(into, files)
    if as_json:
        return print_json({"folder": str(into), "files": sorted(files)})
    out = show.console()
    for name in sorted(files):
        out.print(f"  {name}", markup=False)
    out.print(NEXT.format(folder=into), style="dim", markup=False)


def _files() -> dict[str, str]:
    """What is written, by its name in the project."""
    found = (file for file in TEMPLATES.rglob(f"*{SUFFIX}") if file.is_file())
    return {str(file.relative_to(TEMPLATES)).removesuffix(SUFFIX): file.read_text("utf-8") for file in found}


def _check_free(into: Path, files: dict[str, str]) -> None:
    if there := sorted(name for name in files if (into / name).exists()):
        raise InvalidPipeline(
            f"{into} already has {', '.join(there)}.",
            "A project is written beside what is there, and replaces nothing.",
            "Name another folder, or move these files. Nothing was written.",
        )


def _write(into: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        try:
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            with (into / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise NotCommitted(
                f"{into / name} cannot be written.", f"{error}", "Name a folder that this user can write to."
            ) from error
