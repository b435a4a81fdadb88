"""What only the services themselves know: how far a pipeline is behind its topics, and what a sink shows.

Nothing here is waited for by a page: it is loaded by requests of its own, with a time limit. Each question is asked
once at a time, and answered for a while from memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar

from airflow.models import Connection

from onceonly.airflow.ui import pages
from onceonly.airflow.versions import AirflowNotFoundException
from onceonly.coordinator.coordinator import Coordinator
from onceonly.errors import NotCommitted
from onceonly.kafka import airflow_connections
from onceonly.pipeline.definition import Pipeline
from onceonly.runtime import live_services
from onceonly.runtime.live_services import LiveServices
from onceonly.statetable.table import StateTable
from onceonly.views.summary import Lag, Summary

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
ANSWER_TTL_SECONDS = 10.0  # for which an answer stands
QUESTION_TTL_SECONDS = 600.0  # after which a question that nobody repeats is forgotten
MAX_CONCURRENT_QUESTIONS = 4  # each has a time limit of its own
ANSWER_TIMEOUT_SECONDS = 3.0  # for which a request waits


@dataclass
class Question(Generic[T]):
    """A question that was asked.

    Args:
        since: when, by the monotonic clock.
        previous: the answer to the question before.
    """

    since: float
    future: Future[T]
    previous: T | None = None

    @property
    def answer(self) -> T | None:
        """Return the answer, until it is there the previous one; raise the question's error."""
        return self.future.result() if self.future.done() else self.previous

    @property
    def last_answer(self) -> T | None:
        """Return the last answer that was no error."""
        failed = self.future.done() and self.future.exception() is not None
        return self.previous if failed else self.answer

    def is_stale(self) -> bool:
        """Whether there is an answer, and it stands no longer."""
        return self.future.done() and time.monotonic() - self.since > ANSWER_TTL_SECONDS


class Answers(Generic[K, T]):
    """Answers by key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(MAX_CONCURRENT_QUESTIONS, thread_name_prefix="onceonly-ui")
        self._questions: dict[K, Question[T]] = {}
        self._lock = Lock()

    def ask(self, questions: Mapping[K, Callable[[], T]], seconds: float) -> dict[K, T | None]:
        """Return the answers that are there within `seconds`; where it takes longer the last one, or None.

        The error of a question is raised here.
        """
        with self._lock:
            self._forget()
            current = {key: self._ask(key, call) for key, call in questions.items()}
        wait([question.future for question in current.values()], timeout=seconds)
        return {key: question.answer for key, question in current.items()}

    def _ask(self, key: K, call: Callable[[], T]) -> Question[T]:
        """Return the question that is under way or has an answer that stands; else ask it again."""
        question = self._questions.get(key)
        if question is None or question.is_stale():
            last_answer = question.last_answer if question else None
            question = Question(time.monotonic(), self._pool.submit(call), last_answer)
            self._questions[key] = question
        return question

    def _forget(self) -> None:
        """Forget old questions, but none that is under way: it would be asked twice at once."""
        oldest = time.monotonic() - QUESTION_TTL_SECONDS
        questions = {}
        for key, question in self._questions.items():
            if question.since > oldest or not question.future.done():
                questions[key] = question
        self._questions = questions


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


def targets(state_table: StateTable, pipeline: str) -> list[str] | None:
    """Return what there is to say of a pipeline's targets, line by line; None: no answer yet, ask again."""
    latest = state_table.view(pipeline).latest
    if latest is None:
        return []
    question = partial(_compare_targets, latest.definition.pipeline)
    return _target_lines.ask({pipeline: question}, ANSWER_TIMEOUT_SECONDS)[pipeline]


def _compare_targets(pipeline: Pipeline) -> list[str]:
    """Return the refusal of the next plan, if a target went back or does not answer; else the notes."""
    try:
        return coordinator().compare_targets(pipeline)
    except NotCommitted as error:
        return str(error).splitlines()


def coordinator() -> Coordinator:
    """Return a coordinator that looks connections up as the api-server does."""
    return live_services.open_coordinator(open_services())


def open_services() -> LiveServices:
    """Return the services of such a coordinator."""
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
        raise airflow_connections.missing_connection_error(
            conn_id, "Airflow has no connection of that name."
        ) from error
    pages.mask_secrets(extra)
    return extra


def _measure_lag(summary: Summary) -> Lag:
    return live_services.measure_lag(open_services(), summary)
