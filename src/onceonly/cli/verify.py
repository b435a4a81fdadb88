"""onceonly verify: after the fact, does every record show in the targets, once?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.cli import console, environment
from onceonly.cli.app import error_json, json_option, print_error, print_json
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings
from onceonly.views import queries

if TYPE_CHECKING:
    from onceonly.verification.verify import Show

EXIT_CODES = {"right": 0, "wrong": 6, "unknown": 7}
JUDGEMENT_COLOURS = {"right": "green", "wrong": "red", "unknown": "yellow"}
REPORT_SUFFIXES = (".md", ".html")
MAX_FINDINGS_SHOWN = 20  # on the terminal; a report and --json have all


@click.command(short_help="Check after the fact that every record arrived once.")
@click.argument("pipeline")
@click.option("--since", metavar="TIME", help="Only checkpoints that were published since then.")
@click.option("--deep", is_flag=True, help="Read data files and logs, and count their records.")
@click.option("--report", metavar="FILE", help="Write a report that can be handed on: FILE.md or FILE.html.")
@json_option
@click.pass_context
def verify(ctx: click.Context, pipeline: str, since: str | None, deep: bool, report: str | None, as_json: bool) -> None:
    """Compare the sources and targets of PIPELINE with what the state table records, and say of every checkpoint:
    right, wrong, or can no longer be known, and why.

    Nothing is changed in them. The result is added to a table beside the state table: what was right once stays
    "right when checked on …" after its evidence has expired.

    \b
    It ends with 0 if all is right, 6 if something is wrong, 7 if nothing is wrong
    and something can no longer be known. --json prints {"id", "pipeline", "at",
    "seconds", "version", "state_table", "state_table_from", "state_id", "seq",
    "row_id", "deep", "since", "judgement", "verified_right_until", "checkpoints": {"right", "wrong",
    "unknown"}, "open", "subjects": [{"kind", "name", "counts", "right", "wrong",
    "unknown", "right_before", "examples"}], "findings": [{"judgement", "kind",
    "name", "epochs", "code", "why", "advice"}], "findings_left_out"}; epochs are
    texts such as "1-9, 12".
    """
    from onceonly.checkpoint.interval_text import parse_time
    from onceonly.runtime import verifications
    from onceonly.views import verification_report

    _check_report(report)
    settings = Settings.from_env()
    queries.check_pipeline_exists(queries.require_state_table(settings), pipeline)
    start = _to_utc(parse_time(since)) if since else None
    with _show_progress(as_json) as show:
        data, problem = verifications.verify_pipeline(environment.open_services(settings), pipeline, deep, start, show)
    if report:
        _write_report(report, verification_report, data)
    if as_json:
        print_json({**data, **queries.state_table_json(settings)})
    else:
        _print_result(data, report)
        console.open_console().print(queries.describe_state_table(settings), style="dim", markup=False)
    if problem:
        print_error(error_json(problem))
    ctx.exit(EXIT_CODES[data["judgement"]])


def _to_utc(time: datetime) -> datetime:
    from datetime import UTC

    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _check_report(report: str | None) -> None:
    if report and not report.endswith(REPORT_SUFFIXES):
        raise InvalidPipeline(
            f"--report {report} is neither Markdown nor HTML.",
            "The end of its name says which.",
            "Name a file that ends in .md or .html. Nothing was done.",
            code="option-invalid",
        )


def _write_report(report: str, renderer: Any, data: Mapping[str, Any]) -> None:
    render: Callable[[Mapping[str, Any]], str] = renderer.render_html
    if report.endswith(".md"):
        render = renderer.render_markdown
    try:
        Path(report).write_text(render(data), encoding="utf-8")
    except OSError as error:
        raise NotCommitted(
            f"the report could not be written to {report}.",
            str(error),
            "Name a file in a folder that this user can write to. The result itself is recorded.",
            code="file-not-writable",
        ) from error


@contextmanager
def _show_progress(as_json: bool) -> Iterator[Show]:
    """Show a bar for each thing that is gone through, while the block runs; nothing where nobody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    out = console.open_error_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=out, transient=True, disable=as_json or not out.is_terminal)
    tasks: dict[str, Any] = {}

    def show(what: str, done: int, of: int) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=of)
        bar.update(tasks[what], completed=done, total=of)

    with bar:
        yield show


def _print_result(data: Mapping[str, Any], report: str | None) -> None:
    from onceonly.views import verification_report as texts

    out, judgement = console.open_console(), data["judgement"]
    title = f"{texts.MARKS[judgement]} {data['pipeline']}: {texts.TITLES[judgement].lower()}. "
    out.print(Text.assemble((title, f"bold {JUDGEMENT_COLOURS[judgement]}"), texts.describe_judgement(data)))
    table = console.make_table("", *texts.TITLES.values(), right=tuple(texts.TITLES.values()))
    for subject in data["subjects"]:
        counts = subject["counts"]
        table.add_row(texts.name_subject(subject), *(f"{counts[title]:,}" for title in texts.TITLES))
    out.print(table)
    for finding in data["findings"][:MAX_FINDINGS_SHOWN]:
        out.print(_finding_text(finding))
    more = len(data["findings"]) - MAX_FINDINGS_SHOWN + data["findings_left_out"]
    if more > 0:
        out.print(f"{more:,} more: --report FILE.html has all of them.", style="dim")
    out.print(texts.describe_until(data), style="dim")
    if not data["deep"]:
        out.print("By names, sizes, statistics, offsets and marks. --deep reads data files and logs.", style="dim")
    if report:
        console.print_done(f"report in {report}")


def _finding_text(finding: Mapping[str, Any]) -> Text:
    from onceonly.views import verification_report as texts

    judgement = finding["judgement"]
    epochs = f" epoch {finding['epochs']}" if finding["epochs"] else ""
    head = f"{texts.MARKS[judgement]} {texts.name_subject(finding)}{epochs} [{finding['code']}] "
    text = Text.assemble((head, JUDGEMENT_COLOURS[judgement]), finding["why"])
    if finding["advice"]:
        text.append(f" {finding['advice']}", "dim")
    return text
