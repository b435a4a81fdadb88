"""onceonly infer: the schema file of JSON values, from a sample of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceonly.cli import changing, target
from onceonly.cli import console as show
from onceonly.cli.app import json_option, print_json
from onceonly.counts import count
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sources import KafkaSource
from onceonly.settings import Settings

if TYPE_CHECKING:
    from onceonly.sources.infer import Inferred

SAMPLE = 10_000


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
    pipeline = target.load_alone(file, settings.project)
    source = _source(pipeline, topic)
    path = settings.project / str(source.schema)
    _refuse_existing(path)
    found = _sampled(source, settings, records)
    _write(path, found.ddl)
    if as_json:
        shown = {"file": str(path), "ddl": found.ddl, "values": found.values, "broken": found.broken}
        return print_json({**shown, "notes": found.notes})
    show.console().print(f"{path}: {found.ddl}", markup=False, highlight=False)
    broken = [f"{count(found.broken, 'value')} of {found.values} no JSON object"] if found.broken else []
    for note in [*found.notes, *broken]:
        show.console().print(f"! {note}", style="yellow", markup=False, highlight=False)


def _source(pipeline: Pipeline, topic: str | None) -> KafkaSource:
    plain = [
        each
        for each in pipeline.sources
        if isinstance(each, KafkaSource) and each.topic and each.format == "json" and not each.registry
    ]
    readable = {each.topic: each for each in plain}
    chosen = [each for name, each in readable.items() if topic in (None, name)]
    if len(chosen) == 1:
        return chosen[0]
    raise InvalidPipeline(
        f"pipeline '{pipeline.name}' does not read {f'topic {topic!r}' if topic else 'one topic'} as JSON.",
        f"It reads as JSON, without a registry: {', '.join(readable) or 'none'}.",
        "Pass --topic, or set KafkaSource(format='json', schema='….ddl'). Nothing was written.",
    )


def _sampled(source: KafkaSource, settings: Settings, records: int) -> Inferred:
    from onceonly.sources import infer, sample

    parts = changing.parts(settings)
    found = infer.infer(sample.values(source.topic, parts.kafka(source.connection, source.bootstrap), records))
    if not found.fields:
        raise InvalidPipeline(
            f"topic '{source.topic}' shows no columns.",
            f"Of {count(found.values, 'value')} none is a JSON object with a field.",
            "Write records to it first, or correct the pipeline's topic and format. Nothing was written.",
        )
    if same := infer.alike(found.fields):
        raise InvalidPipeline(
            f"topic '{source.topic}' has fields that Spark cannot distinguish.",
            f"They differ only in case: {', '.join(same)}.",
            "Read it with format='raw' and parse it in the transform. Nothing was written.",
        )
    return found


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise InvalidPipeline(
            f"{path} exists.",
            "A schema that runs depend on is not replaced.",
            "Move it away first. Nothing was written.",
        )


def _write(path: Path, ddl: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(ddl + "\n")
    except FileExistsError:
        _refuse_existing(path)
    except OSError as error:
        raise NotCommitted(f"{path} cannot be written.", f"{error}.", "Make its folder writable and repeat.") from error
