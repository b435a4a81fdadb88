"""How many tasks of Spark run at the same time, and what becomes of them if the probe ends."""

from __future__ import annotations

import pytest

from onceonly.errors import NotCommitted
from onceonly.probe import spark_tasks
from onceonly.probe.spark_tasks import Crew, count_simultaneous
from onceonly.probe.workers import Job


class Session:
    """A session of Spark whose jobs fail."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.interruptions = error, 0

    def range(self, *_: int) -> Session:
        return self

    def mapInArrow(self, *_: object, **__: object) -> Session:
        return self

    def collect(self) -> None:
        raise self.error

    def interruptAll(self) -> None:
        self.interruptions += 1


@pytest.mark.parametrize(
    ("tasks", "count"),
    [
        ([("a", 0, 1)], 1),
        ([("a", 0, 1), ("a", 0.5, 1.5)], 2),
        ([("a", 0, 1), ("a", 1, 2)], 1),
        ([("a", 0, 1), ("b", 100, 101), ("b", 100.5, 101.5)], 3),
    ],
)
def test_tasks_at_the_same_time_are_counted_by_host(tasks: list[tuple[str, float, float]], count: int) -> None:
    assert count_simultaneous(tasks) == count


@pytest.mark.parametrize("error", [ValueError("no executor is left"), KeyboardInterrupt()], ids=["failure", "Ctrl-C"])
def test_the_tasks_of_a_probe_that_ends_are_ended(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_tasks, "TASK_END_SECONDS", 0)
    session, job = Session(error), Job("/nowhere", "_onceonly-probe-20261127T120000Z-00000000", 2, 0)
    expected = NotCommitted if isinstance(error, Exception) else KeyboardInterrupt
    with pytest.raises(expected) as raised:
        spark_tasks.run_tasks(session, job, Crew(1, 2))
    assert session.interruptions == 1
    if isinstance(raised.value, NotCommitted):
        assert raised.value.code == "probe-not-completed" and "no executor is left" in raised.value.why
