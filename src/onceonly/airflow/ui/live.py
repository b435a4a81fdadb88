"""What only the services themselves know: how far a pipeline is behind its topics, and what a sink shows.

Nothing here is waited for by a page: it is loaded by requests of its own, with a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from airflow.models import Connection

from onceonly.airflow.ui import masking
from onceonly.airflow.ui.answers import Answers
from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import NotCommitted
from onceonly.kafka import lookup
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import lag, live_services
from onceonly.runtime.live_services import LiveServices
from onceonly.statetable.table import StateTable
from onceonly.views.summary import Lag, Summary

ANSWER_TIMEOUT_SECONDS = 3.0  # for which a request waits

_lags: Answers[str, Lag] = Answers()
_target_lines: Answers[str, list[str]] = Answers()
_evidence_lines: Answers[tuple[str, int, str], list[str]] = Answers()


def lags(summaries: list[Summary]) -> dict[str, Lag | None]:
    """Return the lag of each pipeline by name; None: no answer yet, ask again."""
    questions = {summary.name: partial(_measure_lag, summary) for summary in summaries}
    return _lags.ask(questions, ANSWER_TIMEOUT_SECONDS)


def evidence(pipeline: str, epoch: int, sink: str) -> list[str] | None:
    """Return what the sink shows of a checkpoint, line by line; None: no answer yet, ask again."""
    key = pipeline, epoch, sink
    questions = {key: lambda: coordinator().evidence(pipeline, epoch, sink)}
    return _evidence_lines.ask(questions, 2 * ANSWER_TIMEOUT_SECONDS)[key]


def targets(state: StateTable, pipeline: str) -> list[str] | None:
    """Return what there is to say of a pipeline's targets, line by line; None: no answer yet, ask again."""
    latest = state.view(pipeline).latest
    if latest is None:
        return []
    question = partial(_compare_targets, Pipeline.from_json(latest.definition))
    return _target_lines.ask({pipeline: question}, ANSWER_TIMEOUT_SECONDS)[pipeline]


def _compare_targets(pipeline: Pipeline) -> list[str]:
    """Return the refusal of the next plan, if a target went back or does not answer; else the notes."""
    try:
        return coordinator().compare_targets(pipeline)
    except NotCommitted as error:
        return str(error).splitlines()


def coordinator() -> Coordinator:
    """Return a coordinator that looks connections up as the api-server does."""
    return live_services.open_coordinator(parts())


def parts() -> LiveServices:
    """Return the parts of such a coordinator."""
    return LiveServices(connections=read_connection)


def read_connection(conn_id: str) -> Mapping[str, Any]:
    """Return the extra of a connection, as the api-server finds it: in its secrets backends, environment and database.

    Pages mask its secrets from now on.

    Raises:
        InvalidPipeline: there is no such connection.
    """
    try:
        extra: Mapping[str, Any] = Connection.get_connection_from_secrets(conn_id).extra_dejson
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error
    masking.remember(extra)
    return extra


def _measure_lag(summary: Summary) -> Lag:
    return lag.measure_lag(parts(), summary)
