"""Questions to other services: each asked once at a time, answered for a while from memory, never waited for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
ANSWER_TTL_SECONDS = 10.0  # for which an answer stands
QUESTION_TTL_SECONDS = 600.0  # after which a question that nobody repeats is forgotten
MAX_CONCURRENT_QUESTIONS = 4  # each has a time limit of its own


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
