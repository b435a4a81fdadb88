"""The workers of a probe: they take each step of each trial together, and the first of them judges what all saw.

They meet in `Meeting.exchange`: each gives an answer, and gets those of all. It is all that a crew has to provide, be
it of threads, of processes or of Spark's tasks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from threading import Barrier, BrokenBarrierError
from typing import Any, Protocol

from onceonly.probe.findings import Observation, Tallies
from onceonly.probe.places import Place
from onceonly.probe.publishing_trials import list_trials
from onceonly.probe.trials import Answer, Trial, Worker

OPENER = "onceonly.probe.places:open_place"


@dataclass(frozen=True)
class Job:
    """What all workers of a probe are given; it can be pickled.

    Args:
        uri: of the folder that is probed.
        folder: the name of the probe's own folder in it.
        workers: how many there are.
        seconds: for which trials are begun; each is made once at least.
        webhdfs: HTTP address of the NameNode.
        opener: module:function that opens the place.
    """

    uri: str
    folder: str
    workers: int
    seconds: float
    webhdfs: str | None = None
    opener: str = OPENER

    def open_place(self) -> Place:
        module, _, function = self.opener.partition(":")
        place: Place = getattr(import_module(module), function)(self.uri, self.folder, self.webhdfs)
        return place


class Meeting(Protocol):
    """Where the workers of one probe meet."""

    def exchange(self, answer: Answer) -> Sequence[Answer]:
        """Give this worker's answer, and return those of all workers, by their numbers."""


def run_worker(job: Job, number: int, meeting: Meeting, place: Place | None = None) -> dict[str, Any]:
    """Take part in all trials until the time is over.

    Args:
        place: shared with other workers of this process.
    Returns:
        The rounds, and of the first worker the tallies, as JSON.
    """
    place = place or job.open_place()
    trials, tallies = [], Tallies()
    for trial in list_trials():
        reason = trial.why_untried(place)
        if reason:
            tallies.add(Observation(promise.name, error=reason) for promise in trial.promises)
        else:
            trials.append(trial)
    deadline, round_number = time.monotonic() + job.seconds, 0
    while _is_going_on(meeting, round_number, deadline, job.seconds):
        for trial in trials:
            if round_number and not _is_going_on(meeting, round_number, deadline, job.seconds):
                break
            worker = Worker(place, number, job.workers, round_number)
            answers = [meeting.exchange(step(worker)) for step in trial.list_steps()]
            if number == 0:
                tallies.add(trial.judge(answers))
            _clean(trial, worker)
            meeting.exchange({})  # nobody begins the next one while another still removes what this one has written
        round_number += 1
    return {"rounds": round_number, "tallies": tallies.to_json() if number == 0 else {}}


def _is_going_on(meeting: Meeting, round_number: int, deadline: float, seconds: float) -> bool:
    """Return whether the first worker's time is not over; at least one round is made."""
    rest = deadline - time.monotonic()
    progress = {"goes_on": rest > 0 or not round_number, "round": round_number + 1, "elapsed": seconds - rest}
    return bool(meeting.exchange(progress)[0]["goes_on"])


def _clean(trial: Trial, worker: Worker) -> None:
    """Remove what the worker has written; what a fault keeps is removed with the folder."""
    with suppress(OSError):
        trial.clean(worker)


class ThreadMeeting:
    """Where threads of one process meet.

    Args:
        relay: gives the answers of all threads to those elsewhere, and returns all answers; it is called by one thread.
    """

    def __init__(self, threads: int, relay: Callable[[list[Answer]], Sequence[Answer]] | None = None) -> None:
        self._answers: list[Answer] = [{}] * threads
        self._all_answers: Sequence[Answer] = ()
        self._relay, self._barrier = relay or list, Barrier(threads, self._share)

    def _share(self) -> None:
        self._all_answers = self._relay(list(self._answers))

    def exchange(self, number: int, answer: Answer) -> Sequence[Answer]:
        self._answers[number] = answer
        self._barrier.wait()
        return self._all_answers

    def abort(self) -> None:
        """Let every other thread fail that waits here."""
        self._barrier.abort()


@dataclass(frozen=True)
class _Seat:
    """One thread's place in a meeting."""

    meeting: ThreadMeeting
    number: int

    def exchange(self, answer: Answer) -> Sequence[Answer]:
        return self.meeting.exchange(self.number, answer)


def run_threads(
    job: Job, first: int, threads: int, relay: Callable[[list[Answer]], Sequence[Answer]] | None = None
) -> dict[str, Any]:
    """Run some of the workers in threads of this process, and return what the first one does.

    Args:
        first: number of the first of them among all workers.
        relay: see `ThreadMeeting`; None: these are all workers.
    """
    meeting, place = ThreadMeeting(threads, relay), job.open_place()

    def run(thread: int) -> dict[str, Any]:
        try:
            return run_worker(job, first + thread, _Seat(meeting, thread), place)
        except BaseException:
            meeting.abort()
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(run, thread) for thread in range(threads)]
    errors = [error for error in (future.exception() for future in futures) if error]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return futures[0].result()
