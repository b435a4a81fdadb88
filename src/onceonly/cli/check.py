"""onceonly check: everything that can be known before any work."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click
from rich.text import Text

from onceonly.checkpoint.model import Checkpoint
from onceonly.checkpoint.offsets import Interval, find_range
from onceonly.cli import connections, console, environment
from onceonly.cli.app import json_option, print_json
from onceonly.errors import InvalidPipeline, NotCommitted, OnceonlyError
from onceonly.kafka import airflow_connections
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.requirements import find_named_table, list_broker_ids, list_connection_ids, list_registry_ids
from onceonly.pipeline.sinks import KafkaSink
from onceonly.pipeline.sources import KafkaSource
from onceonly.runtime import dag_files, pipeline_file
from onceonly.runtime.dag_files import NamedConnections
from onceonly.settings import Settings
from onceonly.views import descriptions, gap_advice, queries

if TYPE_CHECKING:
    from onceonly.runtime.live_services import LiveServices
    from onceonly.statetable.table import StateTable

LOCAL_HOSTS = ("localhost", "127.0.0.1")
PROBLEM_EXIT_CODE = 5
NONE_NAMED = NamedConnections()
SPARK_CONNECTION = "spark"  # the default of `spark_conn_id`
AIRFLOW_LIMITS = (  # before this release of Airflow; docs/versions.md
    ((3, 2), "a second DAG with this pipeline's name is refused only while the first one has runs"),
    ((3, 3), "a run that is deleted and created again under its id is not planned again"),
)


@click.command(short_help="Check a pipeline before it runs.")
@click.argument("file", metavar="FILE.py:NAME")
@json_option
def check(file: str, as_json: bool) -> None:
    """Check Spark and connections, and the pipeline NAME in FILE.py: transform, topic, schema, sinks, the pipelines
    in its `after`, and the state table.

    No row is read or written. Into each folder that a run writes to it writes a small hidden file, and removes it.

    It ends with 5 if one of them cannot be used. Intervals that no run has covered are shown, and how many unread
    records are dated in the future. --json prints {"state_table", "state_table_from", "pipeline",
    "notes": […], "gaps": [{"start", "end"}], "dated_ahead": […], "never_probed": […]}.
    """
    settings = Settings.from_env()
    pipeline = pipeline_file.load(file, settings.project)
    try:
        dag_connections = _find_named_connections(file, pipeline, settings)
        notes, gaps = _notes(pipeline, settings, dag_connections), _gaps(pipeline, settings)
        ahead = _dated_ahead(pipeline, settings)
        offers = _offer_probes(pipeline, settings)
    except OnceonlyError as error:
        error.exit_code = PROBLEM_EXIT_CODE
        raise
    if as_json:
        answer = {
            "pipeline": pipeline.name,
            "notes": notes,
            **queries.gaps_json(gaps),
            "dated_ahead": ahead,
            "never_probed": offers,
        }
        return print_json({**queries.state_table_json(settings), **answer})
    for note in notes:
        console.print_done(note)
    for folder in offers:
        ahead.append(f"what Onceonly needs of {folder} was never tried from here: onceonly probe {quote(folder)}")
    for line in [*ahead, *gap_advice.describe_gaps(pipeline.name, gaps, quote(file))]:
        console.open_console().print(Text.assemble(("! ", "yellow"), line))


def _find_named_connections(file: str, pipeline: Pipeline, settings: Settings) -> NamedConnections:
    """Return the connections that the DAG files around the pipeline name for its tasks."""

    path, _, name = file.rpartition(":") if ":" in file else (file, "", Path(file).stem)
    folders = [settings.project / "dags"]
    for root in (Path.cwd(), settings.project):
        folder = (root / path).parent
        folders += [folder, folder.parent]
    return dag_files.find_connections(name, pipeline.name, dict.fromkeys(folders))


def _notes(pipeline: Pipeline, settings: Settings, dag_connections: NamedConnections) -> list[str]:
    """Check the pipeline, and return what was found, line by line; raises what is wrong."""
    from onceonly.coordinator import ranges, restore_check
    from onceonly.runtime import live_services

    notes = [f"pipeline '{pipeline.name}' is sound, in {pipeline.mode} mode"]
    services = environment.open_services(settings)
    notes += (
        _check_spark(services.settings, dag_connections)
        + _list_airflow_limits()
        + _check_stores(pipeline, services.settings)
    )
    for conn_id in sorted(list_connection_ids(pipeline)):
        notes.append(_check_connection(services, pipeline, conn_id))
    pipeline = live_services.locate_tables(pipeline, services)
    for config in _configs_with_tables(pipeline):
        notes.append(f"'{config.table}' is the table at {config.path}")
    notes_of_parts = live_services.check_pipeline(pipeline, services)
    if pipeline.gate:
        services.inspector(pipeline).check_suites()
    notes.append(f"transform {pipeline.transform} imports")
    for source in pipeline.sources:
        if isinstance(source, KafkaSource):
            notes.append(_describe_topics(source, services.kafka(source.connection, source.bootstrap).describe()))
    notes += notes_of_parts
    notes += _check_upstream(pipeline, services, settings)
    notes.append(_describe_state(settings))
    notes += live_services.check_written_folders(pipeline, services)
    state_table = queries.find_state_table(settings)
    restore_check.check_first_plan(state_table, pipeline, services)
    latest = state_table.view(pipeline.name).latest if state_table else None
    if latest:
        ranges.refuse_other_pipeline(pipeline, latest)
    notes += _check_targets(pipeline, services, settings)
    return notes


def _check_spark(settings: Settings, dag_connections: NamedConnections = NONE_NAMED) -> list[str]:
    """Check the Spark that commands use, and that of tasks: the connections that DAG files name, else `spark`.

    Raises:
        InvalidPipeline: Airflow has no connection that a DAG file names, or one of them cannot be used.
    """
    from onceonly.spark import check as spark

    notes = spark.notes(settings)
    if settings.spark_remote:
        notes.append(_check_session(settings.spark_remote, settings, "this process"))
    for place in dag_connections.unknown:
        notes.append(f"{place} names a connection by an expression, which only Airflow can tell: it was not looked for")
    for conn_id in [*(dag_connections.of_spark or (SPARK_CONNECTION,)), *dag_connections.of_notifiers]:
        try:
            reason = connections.add_variable(conn_id)
        except InvalidPipeline as error:
            if conn_id in dag_connections.all:
                notes.append(f"whether the Airflow connection '{conn_id}' exists is not known here: {error.why}")
            continue  # without an Airflow here, there are no tasks
        except NotCommitted as error:
            return [*notes, f"the connections of tasks were not checked: {error.why}"]
        connection = os.environ.get(airflow_connections.variable_name(conn_id), "").strip()
        if not connection and conn_id in dag_connections.all:
            raise _no_named_connection_error(conn_id, dag_connections, reason)
        if not connection and reason:
            notes.append(f"Airflow has no connection '{conn_id}', which tasks use unless a DAG file names another one")
        if connection and conn_id not in dag_connections.of_notifiers:
            notes += _check_spark_connection(conn_id, connection, settings)
    return notes


def _no_named_connection_error(conn_id: str, dag_connections: NamedConnections, reason: str) -> InvalidPipeline:
    place, variable = dag_connections.all[conn_id], airflow_connections.variable_name(conn_id)
    command = f"airflow connections add {quote(conn_id)} --conn-type generic --conn-host 'local[*]'"
    if conn_id in dag_connections.of_notifiers:
        command = f"airflow connections add {quote(conn_id)} --conn-type http --conn-host https://HOST"
    return InvalidPipeline(
        f"the Airflow connection '{conn_id}' does not exist.",
        f"{place} names it, and its tasks would fail. The environment variable {variable} is not set. {reason}".strip(),
        f"Correct its name there, or add it: {command}. Nothing was written.",
        code="connection-missing",
    )


def _check_spark_connection(conn_id: str, connection: str, settings: Settings) -> list[str]:
    """Check the Spark of an Airflow connection: a master, or a Connect server, which has to take its token."""
    from onceonly.runtime import spark_connection
    from onceonly.spark import check as spark

    target = spark_connection.parse_variable(conn_id, connection)
    address = target.remote or target.master
    if urlsplit(address).scheme not in spark.PORTS:
        return []
    notes = [spark.check_server(address, f"the Airflow connection '{conn_id}'")]
    if target.remote:
        notes.append(_check_session(target.remote, settings, f"the Airflow connection '{conn_id}'"))
    return notes


def _check_session(remote: str, settings: Settings, user: str) -> str:
    """Open a session on a Connect server, and close it. Raises InvalidPipeline: it refuses the token.

    Args:
        user: for whom it is, in the note that is returned.
    """
    from onceonly.spark import connect, jvm_jar

    has_jar = connect.require_session(remote, settings.home)
    note = f"Spark opens sessions for {user}"
    if has_jar:
        return f"{note}, and has {jvm_jar.JAR_NAME}"
    slower = "it reads topics more slowly, and Python workers write to Kafka"
    return f"{note}; without {jvm_jar.JAR_NAME} (of `onceonly jars`) {slower}"


def _list_airflow_limits() -> list[str]:
    """Return what the installed Airflow cannot do; nothing where there is none. To import it would take seconds."""
    try:
        version = metadata.version("apache-airflow-core")
    except metadata.PackageNotFoundError:
        return []
    release = tuple(int(part) for part in version.split(".")[:2])
    return [f"with Airflow {version}, {limit}" for since, limit in AIRFLOW_LIMITS if release < since]


def _configs_with_tables(pipeline: Pipeline) -> list[Any]:
    """Return the sources and sinks whose tables have names in a catalog."""
    return [config for config in (*pipeline.sources, *pipeline.sinks) if find_named_table(config)]


def _check_stores(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Check that Spark has the jars for the object stores; not for a remote Spark, which has its own."""
    from onceonly.spark import stores

    if settings.spark_remote:
        return []
    paths = (str(getattr(config, "path", "")) for config in (*pipeline.sinks, *pipeline.sources))
    return stores.make_notes(settings.jars, paths)


def _check_upstream(pipeline: Pipeline, services: LiveServices, settings: Settings) -> list[str]:
    """Check the pipelines that write what this one reads."""
    from onceonly.coordinator import upstream

    if not pipeline.after:
        return []
    state = queries.find_state_table(settings)
    if state is None:
        raise InvalidPipeline(
            f"{pipeline.name}: it is after {', '.join(map(repr, pipeline.after))}, which has not run.",
            f"There is no state table at {settings.state} yet.",
            "Run that pipeline first, with the same state table: onceonly run OTHER_FILE.py:NAME. Or correct "
            "Pipeline(after=…). "
            "Nothing was written.",
            code="upstream-missing",
        )
    return upstream.check_upstreams(state, services, pipeline)


def _check_targets(pipeline: Pipeline, services: LiveServices, settings: Settings) -> list[str]:
    """Check that the targets have what was published before; raises ActionNeeded if one lacks it."""
    from onceonly.coordinator import target_history
    from onceonly.statetable.table import StateTable

    if queries.find_snapshot(settings) is None:
        return []
    state = StateTable(settings.state)  # read again where a target seems to lack something
    view = state.view(pipeline.name)
    notes = target_history.check(state, services, pipeline, view)
    published = sorted(set(view.head.last_publications) & {sink.name for sink in pipeline.sinks})
    if notes or not published:
        return notes
    return [f"targets: {', '.join(published)} have what was published to them"]


def _check_connection(services: LiveServices, pipeline: Pipeline, conn_id: str) -> str:
    """Check a connection, which is that of a registry, of brokers, or of a sink that checks it itself."""
    registry = None
    if conn_id in list_registry_ids(pipeline):
        registry = services.registry(conn_id)
    if registry:
        return f"connection '{conn_id}' is there: {registry.connection.describe()}"
    if conn_id in list_broker_ids(pipeline):
        return f"connection '{conn_id}' is there: {services.kafka(conn_id, None).describe()}"
    services.connections(conn_id)
    return f"connection '{conn_id}' is there"


def _gaps(pipeline: Pipeline, settings: Settings) -> list[Interval]:
    """Return the intervals that its runs so far leave out."""
    state = queries.find_state_table(settings)
    latest = _find_latest(state, pipeline)
    if state is None or latest is None:
        return []
    return queries.list_gaps(state, [latest]).get(pipeline.name, [])


def _find_latest(state_table: StateTable | None, pipeline: Pipeline) -> Checkpoint | None:
    if state_table is None:
        return None
    return state_table.view(pipeline.name).latest


def _dated_ahead(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Return a line for each source that is read by times: how many unread records are dated in the future."""
    from onceonly.coordinator.boundaries import count_ahead
    from onceonly.runtime import live_services

    if pipeline.mode != "interval" or pipeline.after:
        return []
    services = environment.open_services(settings)
    latest = _find_latest(queries.find_state_table(settings), pipeline)
    now, lines = datetime.now(UTC), []
    for topic, source in services.sources(live_services.locate_tables(pipeline, services)).items():
        log, number = source.log(), count_ahead(source, _next_offsets(latest, topic), now)
        if number != 0:
            lines.append(descriptions.describe_future_records(log.label, number, log.kind))
    return lines


def _next_offsets(latest: Checkpoint | None, topic: str) -> Mapping[int, int]:
    """Return by partition where the next checkpoint begins; empty where nothing was read yet."""
    last_range = find_range(latest.ranges, topic) if latest else None
    if last_range is None:
        return {}
    return last_range.ends


def _describe_topics(source: KafkaSource, brokers: str) -> str:
    """Return what the check has established of a source without a note."""
    text = f"topic '{source.input_name}' is there on {brokers}"
    if source.topic_pattern:
        text = f"topics '{source.input_name}' are there on {brokers}"
    if source.schema:
        text += f", decoded by {source.schema}"
    return text


def _offer_probes(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Return a folder of each storage, and the brokers, that were never probed; not what is of this machine alone."""
    from onceonly.probe import results

    paths = [settings.state]
    for config in pipeline.sinks:
        path = getattr(config, "path", None)
        if path:
            paths.append(settings.locate(path))
        if isinstance(config, KafkaSink) and config.guarantee != "none":
            paths.append(settings.spool)
    folders: dict[str, str] = {}  # by storage
    for path in paths:
        storage = results.name_storage(path)
        if not results.is_own_disk(path) and results.find(settings.home, storage) is None:
            folders.setdefault(storage, path)
    for name in _list_brokers(pipeline, settings):
        brokers = results.name_brokers(name)
        if results.find(settings.home, brokers) is None:
            folders[brokers] = brokers
    return list(folders.values())


def _list_brokers(pipeline: Pipeline, settings: Settings) -> list[str]:
    """Return the connections, or addresses, of the brokers that are written to; not those of this machine."""
    names = []
    for config in pipeline.sinks:
        if isinstance(config, KafkaSink):
            name = config.connection or config.bootstrap or settings.bootstrap or ""
            if name and name.split(":")[0] not in LOCAL_HOSTS:
                names.append(name)
    return names


def _describe_state(settings: Settings) -> str:
    state, place = queries.find_state_table(settings), queries.describe_state_table(settings)
    if state is None:
        return f"{place}; it will be created by the first run"
    return f"{place}, id {state.id}; compare-and-set works there"
