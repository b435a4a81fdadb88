"""The probe of a storage: a folder of its own, the trials in it, and the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.probe import folders
from onceonly.probe.findings import Finding, Promise, Tally, read_tallies
from onceonly.probe.places import Place
from onceonly.probe.publishing_trials import list_trials
from onceonly.probe.trials import CLOCKS, DURABILITY, LIST_DELETED, LIST_WRITTEN, describe_difference
from onceonly.probe.workers import Job
from onceonly.storage import write_probe

LISTINGS = (LIST_WRITTEN.name, LIST_DELETED.name)  # where they are late, what is to be removed is not seen at once
LATE_LISTING_SECONDS = 5.0
Crew = Callable[[Job], dict[str, Any]]  # runs the workers, and returns what the first one does


def probe(job: Job, crew: Crew) -> tuple[list[Finding], int]:
    """Try all promises, and return what was seen, and the rounds. Whatever happens, the folder is removed.

    Raises:
        NotCommitted, InvalidPipeline: nothing can be written there, or the workers were lost.
    """
    place = job.open_place()
    write_probe.require_writable(job.uri, job.webhdfs)
    remove_leftovers(place, datetime.now(UTC))
    with _own_folder(place):
        result = crew(job)
    tallies = read_tallies(result["tallies"])
    if any(tally.breaches for name, tally in tallies.items() if name in LISTINGS):
        time.sleep(LATE_LISTING_SECONDS)
        _remove(place, place.name)
    return make_findings(tallies), int(result["rounds"])


@contextmanager
def _own_folder(place: Place) -> Iterator[None]:
    """Create the folder of the probe, and remove it after the block, also after an error or Ctrl-C."""
    try:
        place.begin()
    except FileNotFoundError as error:
        raise InvalidPipeline(
            f"{place.uri} cannot be probed.",
            "There is no such folder.",
            "Create it, or name the folder above. Nothing was written.",
            code="probe-folder-missing",
        ) from error
    try:
        yield
    finally:
        _remove(place, place.name)


def _remove(place: Place, name: str) -> None:
    """Remove the folder of a probe. Raises NotCommitted: it stays there."""
    try:
        place.remove_folder(name)
    except OSError as error:
        raise NotCommitted(
            f"{place.uri}/{name} could not be removed.",
            f"{error}",
            "Remove that folder. The next probe also removes it, once it is two hours old.",
            code="probe-not-removed",
        ) from error


def remove_leftovers(place: Place, now: datetime) -> list[str]:
    """Remove the folders of probes that were killed; return their names."""
    leftovers: list[str] = []
    with suppress(FileNotFoundError):
        leftovers = folders.list_leftovers(place.list_folders(), now)
    for name in leftovers:
        _remove(place, name)
    return leftovers


def list_promises() -> list[Promise]:
    """Return all promises of a storage, in the order of a report."""
    promises: list[Promise] = []
    for trial in list_trials():
        promises += trial.promises
    return promises


def make_findings(tallies: Mapping[str, Tally]) -> list[Finding]:
    findings = []
    for promise in list_promises():
        tally = tallies.get(promise.name, Tally(errors=1, first_error="nothing was seen of it"))
        findings.append(Finding(promise, _describe(promise, tally), tally.verdict))
    return findings


def _describe(promise: Promise, tally: Tally) -> str:
    words = tally.describe()
    if promise is CLOCKS and tally.figures:
        largest = max(tally.figures, key=abs)
        return f"{words}; at most {describe_difference(largest)}" if largest else f"{words}; no difference seen"
    if promise is DURABILITY and tally.figures:
        return f"{words}; {_median(tally.figures) * 1000:.1f} ms for a file and its folder"
    return words


def _median(figures: Sequence[float]) -> float:
    return sorted(figures)[len(figures) // 2]
