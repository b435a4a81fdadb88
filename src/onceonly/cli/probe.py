"""onceonly probe: the promises that Onceonly needs of a storage or of brokers, tried where they will be needed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from onceonly.cli import console, environment
from onceonly.cli.app import HINT, json_option, print_error, print_json
from onceonly.counts import count
from onceonly.documentation import name_page
from onceonly.errors import InvalidPipeline
from onceonly.pipeline.sinks import KafkaSink
from onceonly.probe.findings import Finding, Verdict, list_broken
from onceonly.probe.folders import MAX_PROBE_SECONDS, make_name
from onceonly.redaction import CREDENTIALS
from onceonly.settings import Settings
from onceonly.waits import wait_for

if TYPE_CHECKING:
    from onceonly.probe.workers import Job

Show = Callable[[Mapping[str, Any]], None]
RunCrew = Callable[["Job", Show], dict[str, Any]]
KAFKA_PREFIX = "kafka://"
BROKEN_EXIT_CODE = 8
MAX_WORKERS = 128
VERDICT_COLOURS = {Verdict.KEPT: "green", Verdict.BROKEN: "bold red", Verdict.UNTRIED: "yellow"}


@click.command(short_help="Try what Onceonly needs of a storage or of brokers.")
@click.argument("url")
@click.option(
    "--seconds", type=click.FloatRange(0, MAX_PROBE_SECONDS), default=60.0, show_default=True, help="Time for trials."
)
@click.option(
    "--workers", type=click.IntRange(2, MAX_WORKERS), default=16, show_default=True, help="How many try at once."
)
@click.option(
    "--from",
    "source",
    type=click.Choice(["processes", "spark"]),
    default="processes",
    show_default=True,
    help="Where: processes of this machine, or tasks of the project's Spark. Storages only.",
)
@click.option(
    "--id-prefix",
    default=KafkaSink.id_prefix,
    show_default=True,
    help="Of transactional ids, as KafkaSink(id_prefix=…). Brokers only.",
)
@json_option
@click.pass_context
def probe(
    ctx: click.Context, url: str, seconds: float, workers: int, source: str, id_prefix: str, as_json: bool
) -> None:
    """Try the promises that Onceonly needs of URL, where it will be used: s3://BUCKET/PATH, abfss://…, gs://…,
    hdfs://…, the path of a local, mounted or network folder, or kafka://CONNECTION, kafka://HOST:PORT, both also
    with /TOPIC, whose settings and grants are looked at.

    It writes into a hidden folder, or a topic, of its own there, and removes that at the end, also after Ctrl-C.
    Credentials are those of other commands: the environment's, or of Airflow connections.

    It ends with 8 if a promise is broken. --json prints {"probe", "place", "from", "at", "seconds", "rounds",
    "version", "verdict", "promises": [{"promise", "means", "seen", "verdict"}]}.
    """
    settings = Settings.from_env()
    _refuse_credentials(url)
    ctx.meta[HINT] = lambda: (
        f"What it wrote was removed. What is left after a kill, the next probe removes: {_repeat_command(url)}"
    )
    with _end_as_interrupted():
        if url.startswith(KAFKA_PREFIX):
            _refuse_spark(source)
            report, findings = _probe_brokers(url, settings, seconds, id_prefix)
        else:
            report, findings = _probe_storage(url, settings, seconds, workers, source)
    _keep(settings, report)
    if as_json:
        print_json(report)
    else:
        _print(report, findings)
    broken = list_broken(findings)
    if broken:
        if not as_json:
            print_error(_explain(url, broken))
        ctx.exit(BROKEN_EXIT_CODE)


def _repeat_command(url: str) -> str:
    return f"onceonly probe {url}"


def _refuse_credentials(url: str) -> None:
    """Refuse a login in the URL: other users of this machine see it, and the history of the shell has it.

    Raises:
        InvalidPipeline: there is one. It is not repeated.
    """
    match = CREDENTIALS.search(url)
    if match is None or url.lower().startswith("abfs"):  # abfss://CONTAINER@ACCOUNT…
        return
    raise InvalidPipeline(
        "the URL has a login in it.",
        "Arguments are seen by other users of this machine.",
        f"Give credentials by the environment or a connection ({name_page('object-stores', 'credentials')}). "
        "Nothing was written.",
        code="uri-invalid",
    )


@contextmanager
def _end_as_interrupted() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that it cleans up."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    try:
        previous = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _probe_storage(
    url: str, settings: Settings, seconds: float, workers: int, source: str
) -> tuple[dict[str, Any], Sequence[Finding]]:
    from onceonly.probe import results, storage
    from onceonly.probe.workers import Job

    job = Job(url, make_name(datetime.now(UTC)), workers, seconds, settings.webhdfs)
    place = job.open_place()
    prepare = _prepare_tasks if source == "spark" else _prepare_processes
    job, crew, described_workers = prepare(job, settings)
    with wait_for(f"{described_workers} that try {place.uri}") as wait:

        def show(progress: Mapping[str, Any]) -> None:
            wait.detail = f"{progress['elapsed']:.0f} of {seconds:.0f} s, round {progress['round']}"

        findings, rounds = storage.probe(job, lambda job: crew(job, show))
    report = _report(place.uri, results.name_storage(url), described_workers, seconds, findings)
    return {**report, "kind": place.kind, "rounds": rounds}, findings


def _prepare_processes(job: Job, settings: Settings) -> tuple[Job, RunCrew, str]:
    from onceonly.probe import processes

    return job, processes.run_processes, f"{job.workers} processes"


def _prepare_tasks(job: Job, settings: Settings) -> tuple[Job, RunCrew, str]:
    """Open the project's Spark, and plan as many tasks as it runs at the same time."""
    from onceonly.probe import spark_tasks
    from onceonly.spark.session import session

    spark = session(environment.use_embedded_spark(settings))
    crew = spark_tasks.plan_crew(spark, job.workers)
    words = f"{count(crew.workers, 'thread')} in {count(crew.tasks, 'task')} of Spark"
    return replace(job, workers=crew.workers), lambda job, show: spark_tasks.run_tasks(spark, job, crew), words


def _refuse_spark(source: str) -> None:
    if source == "spark":
        raise InvalidPipeline(
            "brokers cannot be probed from Spark.",
            "They are tried by one process.",
            "Leave --from out. Nothing was written.",
            code="options-conflict",
        )


def _probe_brokers(
    url: str, settings: Settings, seconds: float, id_prefix: str
) -> tuple[dict[str, Any], Sequence[Finding]]:
    from onceonly.cli import connections
    from onceonly.kafka.connection import KafkaConnection, require_clients
    from onceonly.probe import results

    require_clients()
    from onceonly.probe.brokers import BrokerProbe

    name, _, topic = url.removeprefix(KAFKA_PREFIX).partition("/")
    if ":" in name or not name:
        connection = KafkaConnection.plaintext(settings.brokers(name or None))
    else:
        connection = KafkaConnection.parse(connections.read_extra(name), name)
    with wait_for(f"transactions that are tried on {connection.describe()}") as wait:

        def show(elapsed: float, round_number: int) -> None:
            wait.detail = f"{elapsed:.0f} of {seconds:.0f} s, round {round_number}"

        findings, rounds = BrokerProbe(connection, topic or None, seconds, id_prefix, show).run()
    place = results.name_brokers(name or connection.bootstrap)
    report = _report(url, place, "this process", seconds, findings)
    return {**report, "kind": "Kafka", "rounds": rounds}, findings


def _report(uri: str, place: str, source: str, seconds: float, findings: Sequence[Finding]) -> dict[str, Any]:
    is_broken = bool(list_broken(findings))
    return {
        "probe": uri,
        "place": place,
        "from": source,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": seconds,
        "version": version("onceonly"),
        "verdict": (Verdict.BROKEN if is_broken else Verdict.KEPT).value,
        "promises": [finding.to_json() for finding in findings],
    }


def _keep(settings: Settings, report: Mapping[str, Any]) -> None:
    """Keep the report for `onceonly check`; a home that cannot be written to is no reason to fail."""
    from onceonly.probe import results

    try:
        results.keep(settings.home, report)
    except OSError as error:
        console.open_error_console().print(f"The result was not kept in {settings.home}: {error}", style="yellow")


def _print(report: Mapping[str, Any], findings: Sequence[Finding]) -> None:
    out = console.open_console()
    out.print(Text(f"{report['probe']} ({report['kind']}), from {report['from']}, {report['rounds']:,} rounds"))
    table = console.make_table("promise", "verdict", "seen")
    for finding in findings:
        table.add_row(
            finding.promise.name, Text(finding.verdict.value, VERDICT_COLOURS[finding.verdict]), Text(finding.seen)
        )
    out.print(table, soft_wrap=False)


def _explain(url: str, broken: Sequence[Finding]) -> dict[str, str]:
    lines = [f"{finding.promise.name}: {finding.promise.means}." for finding in broken]
    verb = "is" if len(broken) == 1 else "are"
    return {
        "what": f"{count(len(broken), 'promise')} that Onceonly needs {verb} broken at {url}.",
        "why": "\n".join(lines),
        "todo": f"Use another storage, or other settings of it ({name_page('probe')}).",
        "code": "promise-broken",
    }
