"""onceonly init, infer: files of a project: all that one begins with, and the schema of JSON values from a sample."""

from __future__ import annotations

import keyword
import os
import sys
import sysconfig
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

import click

from onceonly.cli import console, environment
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.names import NAME
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.sources.json_inference import InferredColumns

TEMPLATES, SUFFIX = Path(__file__).with_name("project"), ".template"
PLACEHOLDER = "NAME"  # in the name of a template; in its text: $name
# Modules of the project, or of what it imports: its folders come before others on the path of its tests.
RESERVED_NAMES = {
    "airflow",
    "dags",
    "jobs",
    "onceonly",
    "pipelines",
    "pyspark",
    "pytest",
    "recovery",
    "sample",
    "tests",
}
NEXT = """In {folder}:
  onceonly jars fetch       # once; needs Java 17 or newer
  onceonly services up      # a broker on this machine, if you have none
  python sample.py          # records to read
  onceonly check dags/pipelines/{name}.py
  onceonly run dags/pipelines/{name}.py
README.md there says what each file is for."""
SAMPLE = 10_000  # records


@click.command(short_help="Write a project to start from.")
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--name", help="Of the pipeline, its DAG, topic and table; else that of FOLDER, with '_' for '-'.")
@json_option
def init(folder: Path | None, name: str | None, as_json: bool) -> None:
    """Write a project into FOLDER: a pipeline with its DAG, transform, schema and test, and the recovery DAG.

    FOLDER is ONCEONLY_PROJECT unless given. Its name is that of the pipeline, the DAG, the topic and the table,
    unless --name is given. No file is replaced. --json prints {"folder", "name", "files": [names]}.
    """
    project = Path(os.path.abspath(folder or Settings.from_env().project))  # `init .` has the name of that folder
    name = _require_module_name(name or project.name.lower().replace("-", "_"))
    files = _read_templates(name)
    _refuse_existing_files(project, files)
    _write_project(project, files)
    if as_json:
        return print_json({"folder": str(project), "name": name, "files": sorted(files)})
    out = console.open_console()
    for file in sorted(files):
        out.print(f"  {file}", markup=False)
    out.print(NEXT.format(folder=project, name=name), style="dim", markup=False)


def _require_module_name(name: str) -> str:
    """Return the name of a pipeline that is a module, too. Raises InvalidPipeline: it cannot be both."""
    why = (
        "It is to be the name of a pipeline: lower-case letters, digits and '_', a letter first, at most 63 characters."
    )
    if NAME.fullmatch(name):
        if name not in RESERVED_NAMES and not keyword.iskeyword(name) and not _is_module(name):
            return name
        why = (
            "The pipeline is in a Python module of its name, which Python, a project or an installed package has, too."
        )
    raise InvalidPipeline(
        f"'{name}' cannot be the name of a new project.",
        why,
        "Name the pipeline: onceonly init FOLDER --name NAME. Nothing was written.",
        code="name-invalid",
    )


def _is_module(name: str) -> bool:
    """Whether Python or an installed package has a module of that name: the project's tests would import its DAG."""
    folders = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return name in sys.stdlib_module_names or PathFinder.find_spec(name, folders) is not None


def _read_templates(name: str) -> dict[str, str]:
    """Return the text of each file, by its path in the project, with the pipeline's name in place."""
    texts = {}
    for template in TEMPLATES.rglob(f"*{SUFFIX}"):
        if template.is_file():
            path = str(template.relative_to(TEMPLATES)).removesuffix(SUFFIX).replace(PLACEHOLDER, name)
            texts[path] = Template(template.read_text("utf-8")).substitute(name=name)
    return texts


def _refuse_existing_files(project: Path, files: dict[str, str]) -> None:
    existing = sorted(name for name in files if (project / name).exists())
    if existing:
        raise InvalidPipeline(
            f"{project} already has {', '.join(existing)}.",
            "A project is written beside what is there, and replaces nothing.",
            "Name another folder, or move these files. Nothing was written.",
            code="file-exists",
        )


def _write_project(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        try:
            _create_file(project / name, text)
        except OSError as error:
            raise _not_writable(project / name, error, "Name a folder that this user can write to.") from error


@click.command(short_help="Write the schema file of JSON values.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--topic", help="Which one, if the pipeline reads several as JSON.")
@click.option("--records", default=SAMPLE, show_default=True, type=click.IntRange(1), help="How many to look at.")
@json_option
def infer(file: str, topic: str | None, records: int, as_json: bool) -> None:
    """Read the last records of a topic that the pipeline NAME reads as JSON, and write its schema file.

    The file is the one that KafkaSource(schema=…) names. It must not exist yet. Check it before you use it: it
    lacks fields that are in none of these records.

    --json prints {"file", "ddl", "values", "broken": number of values that are not JSON objects, "notes": […]}.
    """
    settings = Settings.from_env()
    pipeline = pipeline_file.load_without_dags(file, settings.project)
    source = _source(pipeline, topic)
    path = settings.project / str(source.schema)
    _refuse_existing_schema(path)
    inferred = _infer_columns(source, settings, records)
    _write_schema(path, inferred.ddl)
    if as_json:
        answer = {"file": str(path), "ddl": inferred.ddl, "values": inferred.values, "broken": inferred.broken}
        return print_json({**answer, "notes": inferred.notes})
    console.open_console().print(f"{path}: {inferred.ddl}", markup=False, highlight=False)
    notes = list(inferred.notes)
    if inferred.broken:
        notes.append(f"{count(inferred.broken, 'value')} of {inferred.values} no JSON object")
    for note in notes:
        console.open_console().print(f"! {note}", style="yellow", markup=False, highlight=False)


def _source(pipeline: Pipeline, topic: str | None) -> KafkaSource:
    """Return the source of that topic; without one, the only source that is read as JSON without a registry."""
    json_sources = {}
    for source in pipeline.sources:
        if not isinstance(source, KafkaSource) or not source.topic:
            continue
        if source.format == "json" and not source.registry:
            json_sources[source.topic] = source
    candidates = [source for name, source in json_sources.items() if topic in (None, name)]
    if len(candidates) == 1:
        return candidates[0]
    what = f"topic {topic!r}" if topic else "one topic"
    raise InvalidPipeline(
        f"pipeline '{pipeline.name}' does not read {what} as JSON.",
        f"It reads as JSON, without a registry: {', '.join(json_sources) or 'none'}.",
        "Pass --topic, or set KafkaSource(format='json', schema='….ddl'). Nothing was written.",
        code="topic-not-json",
    )


def _infer_columns(source: KafkaSource, settings: Settings, records: int) -> InferredColumns:
    """Return the columns of a sample of the topic's last records.

    Raises:
        InvalidPipeline: there are none, or Spark cannot distinguish them.
    """
    from onceonly.sources import json_inference

    services = environment.open_services(settings)
    inferred = json_inference.infer_columns(
        json_inference.read_last_values(source.topic, services.kafka(source.connection, source.bootstrap), records)
    )
    if not inferred.fields:
        raise InvalidPipeline(
            f"no columns found in topic '{source.topic}'.",
            f"Of {count(inferred.values, 'value')} none is a JSON object with a field.",
            "Write records to it first, or correct the pipeline's topic and format. Nothing was written.",
            code="no-columns-found",
        )
    alike = json_inference.list_case_clashes(inferred.fields)
    if alike:
        raise InvalidPipeline(
            f"topic '{source.topic}' has fields that Spark cannot distinguish.",
            f"They differ only in case: {', '.join(alike)}.",
            "Read it with format='raw' and parse it in the transform. Nothing was written.",
            code="fields-ambiguous",
        )
    return inferred


def _refuse_existing_schema(path: Path) -> None:
    if path.exists():
        raise InvalidPipeline(
            f"{path} exists.",
            "A schema that runs depend on is not replaced.",
            "Move it away first. Nothing was written.",
            code="file-exists",
        )


def _write_schema(path: Path, ddl: str) -> None:
    try:
        _create_file(path, ddl + "\n")
    except OSError as error:
        _refuse_existing_schema(path)  # another process may have written it since
        raise _not_writable(path, error, "Make its folder writable and repeat.") from error


def _create_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)


def _not_writable(path: Path, error: OSError, todo: str) -> NotCommitted:
    return NotCommitted(f"{path} cannot be written.", f"{error}.", todo, code="file-not-writable")
