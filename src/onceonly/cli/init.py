"""onceonly init: a small project that runs as it is."""

from __future__ import annotations

from pathlib import Path

import click

from onceonly.cli import console
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
    project = (folder or Settings.from_env().project).absolute()
    files = _read_templates()
    _refuse_existing(project, files)
    _write(project, files)
    if as_json:
        return print_json({"folder": str(project), "files": sorted(files)})
    out = console.open_console()
    for name in sorted(files):
        out.print(f"  {name}", markup=False)
    out.print(NEXT.format(folder=project), style="dim", markup=False)


def _read_templates() -> dict[str, str]:
    """Return the text of each file, by its name in the project."""
    texts = {}
    for template in TEMPLATES.rglob(f"*{SUFFIX}"):
        if template.is_file():
            name = str(template.relative_to(TEMPLATES)).removesuffix(SUFFIX)
            texts[name] = template.read_text("utf-8")
    return texts


def _refuse_existing(project: Path, files: dict[str, str]) -> None:
    existing = sorted(name for name in files if (project / name).exists())
    if existing:
        raise InvalidPipeline(
            f"{project} already has {', '.join(existing)}.",
            "A project is written beside what is there, and replaces nothing.",
            "Name another folder, or move these files. Nothing was written.",
            code="file-exists",
        )


def _write(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = project / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise NotCommitted(
                f"{path} cannot be written.",
                f"{error}",
                "Name a folder that this user can write to.",
                code="file-not-writable",
            ) from error
