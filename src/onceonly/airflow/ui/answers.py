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
FRESH = 10.0  # seconds for which an answer stands
FORGET = 600.0  # seconds after which a question that nobody repeats is forgotten
AT_ONCE = 4  # questions; each has a time limit of its own


@dataclass
class Question(Generic[T]):
    since: float
    future: Future[T]
    before: T | None = None  # the answer to the question before

    @property
    def answer(self) -> T | None:
        return self.future.result() if self.future.done() else self.before

    @property
    def known(self) -> T | None:
        """The last answer that was no error."""
        failed = self.future.done() and self.future.exception() is not None
        return self.before if failed else self.answer


class Answers(Generic[K, T]):
    """Answers by key."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="onceonly-ui")
        self._asked: dict[K, Question[T]] = {}
        self._lock = Lock()

    def ask(self, questions: Mapping[K, Callable[[], T]], seconds: float) -> dict[K, T | None]:
        """The answers that are there within `seconds`; where it takes longer the last known one, or None.

        The error of a question is raised here.
        """
        with self._lock:
            self._forget()
            asked = {key: self._ask(key, question) for key, question in questions.items()}
        wait([each.future for each in asked.values()], timeout=seconds)
        return {key: each.answer for key, each in asked.items()}

    def _ask(self, key: K, question: Callable[[], T]) -> Question[T]:
        known = self._asked.get(key)
        if known is None or (known.future.done() and time.monotonic() - known.since > FRESH):
            before = known.known if known else None
            self._asked[key] = known = Question(time.monotonic(), self._pool.submit(question), before)
        return known

    def _forget(self) -> None:
        old = time.monotonic() - FORGET
        self._asked = {key: each for key, each in self._asked.items() if each.since > old or not each.future.done()}
