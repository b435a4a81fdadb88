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
from onceonly.runtime import factory, lag
from onceonly.runtime.factory import LiveParts
from onceonly.statetable.table import StateTable
from onceonly.views.summary import Lag, Summary

WAIT = 3.0  # seconds that a request waits for answers

_lags: Answers[str, Lag] = Answers()
_compared: Answers[str, list[str]] = Answers()
_shown: Answers[tuple[str, int, str], list[str]] = Answers()


def lags(summaries: list[Summary]) -> dict[str, Lag | None]:
    """By pipeline; None: no answer yet, ask again."""
    return _lags.ask({each.name: partial(_lag, each) for each in summaries}, WAIT)


def evidence(pipeline: str, epoch: int, sink: str) -> list[str] | None:
    """What the sink shows of a checkpoint, line by line; None: no answer yet, ask again."""
    key = pipeline, epoch, sink
    return _shown.ask({key: lambda: coordinator().evidence(pipeline, epoch, sink)}, 2 * WAIT)[key]


def targets(state: StateTable, pipeline: str) -> list[str] | None:
    """What there is to say of a pipeline's targets, line by line; None: no answer yet, ask again."""
    latest = state.view(pipeline).latest
    if latest is None:
        return []
    return _compared.ask({pipeline: partial(_compare, Pipeline.from_json(latest.definition))}, WAIT)[pipeline]


def _compare(pipeline: Pipeline) -> list[str]:
    """The refusal of the next plan, if a target went back or does not answer; else the notes."""
    try:
        return coordinator().compare_targets(pipeline)
    except NotCommitted as error:
        return str(error).splitlines()


def coordinator() -> Coordinator:
    return factory.coordinator(parts())


def parts() -> LiveParts:
    return LiveParts(connections=from_server)


def from_server(conn_id: str) -> Mapping[str, Any]:
    """The extra of a connection, as the api-server finds it: in its secrets backends, environment and database."""
    try:
        extra: Mapping[str, Any] = Connection.get_connection_from_secrets(conn_id).extra_dejson
    except AirflowNotFoundException as error:
        raise lookup.missing(conn_id, "Airflow has no connection of that name.") from error
    masking.remember(extra)
    return extra


def _lag(summary: Summary) -> Lag:
    return lag.behind(parts(), summary)
