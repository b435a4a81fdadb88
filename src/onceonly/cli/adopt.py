"""onceonly adopt: a pipeline begins where another job has ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from onceonly import redaction
from onceonly.checkpoint.earlier_job import BatchOutcome
from onceonly.cli import console, environment
from onceonly.cli.app import json_option, print_json
from onceonly.cli.manual import person
from onceonly.runtime import pipeline_file
from onceonly.settings import Settings
from onceonly.views import descriptions, queries

if TYPE_CHECKING:
    from onceonly.checkpoint.model import Checkpoint
    from onceonly.coordinator.adopt import Takeover
    from onceonly.pipeline.definition import Pipeline

OUTCOME_WORDS = {
    BatchOutcome.PUBLISHED: "published: the log of its table has it, so it is not read again",
    BatchOutcome.NOT_PUBLISHED: "not published: the log of its table ends before it, so it is read again",
}


@click.command(short_help="Begin where another job has ended.")
@click.argument("file", metavar="FILE.py:NAME")
@click.option("--checkpoint", "folder", metavar="FOLDER", help="Of a query: its checkpointLocation.")
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Of a query: the Delta table that it writes.")
@click.option("--group", metavar="NAME", help="The consumer group of a job, such as one of Flink.")
@click.option("--write", is_flag=True, help="Record it: the first checkpoint begins there.")
@json_option
def adopt(
    file: str, folder: str | None, tables: tuple[str, ...], group: str | None, write: bool, as_json: bool
) -> None:
    """Show where the pipeline NAME in FILE.py has to begin, if it takes over from another job that has been stopped:
    a Structured Streaming query, by its checkpoint folder, or whatever commits its offsets to a consumer group.

    It says what the query has planned and not recorded as committed. Whether that is published is read from the log
    of the Delta table that the query writes with Spark's own sink: a Delta sink of the pipeline, or --table. If that
    does not show it, the command is refused. The job must have ended: nothing here can stop it.

    --write records the place as the pipeline's first checkpoint, which reads nothing. A pipeline that has begun is
    refused.

    \b
    --json prints {"pipeline", "job", "start": {TOPIC: {PARTITION: OFFSET}},
    "planned": {"batch", "outcome", "starts", "ends"}, "unread": [TOPIC], "epoch"}.
    """
    from onceonly.runtime import adoption, live_services

    if (folder is None) == (group is None) or (tables and folder is None):
        raise click.UsageError("Give --checkpoint or --group; --table belongs to --checkpoint.")
    settings = Settings.from_env()
    services = environment.open_services(settings)
    pipeline = live_services.locate_tables(pipeline_file.load_without_dags(file, settings.project), services)
    job = adoption.EarlierJob(_locate(folder) if folder else None, [_locate(table) for table in tables], group)
    takeover = adoption.look_at_job(services, pipeline, job)
    recorded = _find_recorded(settings, pipeline, takeover)
    if write and recorded is None:
        recorded = live_services.open_planner(services).adopt(pipeline, takeover, person())
    if as_json:
        return print_json(redaction.hide_credentials(_to_json(pipeline, takeover, recorded)))
    _print(file, pipeline, takeover, recorded)


def _locate(path: str) -> str:
    """Return a path of the command line as an absolute path or URI. A relative one is below the current folder."""
    return path if urlsplit(path).scheme else str(Path(path).absolute())


def _find_recorded(settings: Settings, pipeline: Pipeline, takeover: Takeover) -> Checkpoint | None:
    """Return the checkpoint that records it already; None: the pipeline has not begun. Raises: it has."""
    from onceonly.coordinator.adopt import find_adoption

    state_table = queries.find_state_table(settings)
    if state_table is None:
        return None
    return find_adoption(state_table.view(pipeline.name), pipeline, takeover)


def _print(file: str, pipeline: Pipeline, takeover: Takeover, recorded: Checkpoint | None) -> None:
    out = console.open_console()
    out.print(f"{pipeline.name} begins where {descriptions.describe_adopted(takeover.origin)} has ended.", markup=False)
    for topic, starts in takeover.starts.items():
        out.print(f"  topic '{topic}': start={starts}", markup=False)
    if takeover.planned and takeover.outcome:
        words = OUTCOME_WORDS[takeover.outcome]
        out.print(f"Batch {takeover.planned.number} was planned and not recorded as committed. It is {words}.")
        for line in _list_spans(takeover):
            out.print(f"  {line}", markup=False)
    if "group" in takeover.origin:
        out.print("What the job has read behind these offsets is read again; rows that it has written of that stay.")
    if pipeline.state:
        out.print(f"! The state '{pipeline.state.name}' begins empty: that of the job is not taken over.", markup=False)
    for topic in takeover.unread:
        out.print(f"! The job has read topic '{topic}' as well, and this pipeline does not.", markup=False)
    if recorded:
        console.print_done(f"epoch {recorded.epoch}: the first checkpoint begins there, recorded by {recorded.owner}")
    else:
        out.print("Nothing was recorded. The option --write records it.")


def _list_spans(takeover: Takeover) -> list[str]:
    """Return a line for each partition of the planned batch: up to where it reads."""
    lines = []
    assert takeover.planned is not None
    for topic, ends in sorted(takeover.planned.ends.items()):
        for partition, end in sorted(ends.items()):
            start = takeover.before.get(topic, {}).get(partition, "its start")
            if start != end:
                lines.append(f"topic '{topic}' partition {partition}: offsets from {start} up to {end}")
    return lines


def _to_json(pipeline: Pipeline, takeover: Takeover, recorded: Checkpoint | None) -> dict[str, Any]:
    planned = None
    if takeover.planned and takeover.outcome:
        outcome = takeover.outcome.value
        planned = {
            "batch": takeover.planned.number,
            "outcome": outcome,
            "starts": takeover.before,
            "ends": takeover.planned.ends,
        }
    return {
        "pipeline": pipeline.name,
        "job": dict(takeover.origin),
        "start": takeover.starts,
        "planned": planned,
        "unread": list(takeover.unread),
        "epoch": recorded.epoch if recorded else None,
    }
