"""The trials of one promise each. Every worker takes the same steps at the same time, and tells the others what it saw.

A step is a request of the product's own, by one worker. What a store answers is no evidence that it is so: after each
race all workers look at what is there.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from onceonly.probe.findings import Observation, Promise
from onceonly.probe.places import Place
from onceonly.storage.object_files import UnmetCondition

DONE, TAKEN, MISSING, CHANGED, FAILED = "done", "taken", "missing", "changed", "failed"
ANSWERS = {FileExistsError: TAKEN, FileNotFoundError: MISSING, UnmetCondition: CHANGED}  # any other error is none
Answer = Mapping[str, Any]  # JSON
MAX_CLOCK_DIFFERENCE_SECONDS = 300.0  # a third of what S3's signatures allow; leftovers are removed after an hour

PUT_IF_ABSENT = Promise("put-if-absent", "of several that create one name at once, one is told that it did")
LIST_WRITTEN = Promise("listing-after-writing", "what was written is in every listing that begins afterwards")
LIST_DELETED = Promise("listing-after-deleting", "what was deleted is in no listing that begins afterwards")
READ_WRITTEN = Promise("reading-after-writing", "what was written is read by all")
READ_OVERWRITTEN = Promise("reading-after-overwriting", "after an overwrite, nobody reads the older content")
READ_DELETED = Promise("reading-after-deleting", "what was deleted is read by nobody")
WHOLE = Promise("whole-contents", "a reader gets one version, whole, while it is overwritten")
PUBLICATION = Promise("publication", "of several that give their files one final name at once, one does")
WITHDRAWAL = Promise("withdrawal", "what was withdrawn is not published by a process that is late")
CONDITIONAL_COPY = Promise("conditional-copies", "a copy of a file that has changed meanwhile is refused")
FOLDER_RENAME = Promise("folder-renames", "a renamed folder has all of its files under the new name")
DELTA_COMMIT = Promise("delta-commits", "of several commits of one version by delta-rs, one is made")
CLOCKS = Promise("clocks", f"the storage's clock differs by less than {MAX_CLOCK_DIFFERENCE_SECONDS:.0f} s from ours")
DURABILITY = Promise("durability", "files and folders can be synced to a disk that survives a power failure")


@dataclass
class Worker:
    """One of the workers of a probe, in one round of one trial."""

    place: Place
    number: int
    count: int
    round: int
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def is_leader(self) -> bool:
        return self.round % self.count == self.number

    @property
    def neighbour(self) -> int:
        return (self.number + 1) % self.count

    def name_shared(self, word: str) -> str:
        return f"{self.round:06d}-{word}"

    def name_of(self, word: str, number: int) -> str:
        return f"{self.round:06d}-{word}-{number:03d}"

    def transaction(self, trial: str, number: int) -> str:
        """Return a name of a worker's files, as the product gives one to a transaction."""
        return f"probe-onceonly_probe-{trial}-{self.round}-{number}-{self.place.name[-8:]}"


Step = Callable[[Worker], Answer]
Rounds = Sequence[Sequence[Answer]]  # by step, and by worker


class Trial(ABC):
    """A sequence of steps that shows whether promises are kept."""

    name: str
    promises: tuple[Promise, ...]

    @abstractmethod
    def list_steps(self) -> Sequence[Step]: ...

    @abstractmethod
    def judge(self, answers: Rounds) -> Iterator[Observation]: ...

    def clean(self, worker: Worker) -> None:
        """Remove what this worker has written, by its names."""
        return

    def why_untried(self, place: Place) -> str:
        """Return why it cannot be tried there; empty: it can."""
        return ""


def attempt(call: Callable[[], object]) -> dict[str, Any]:
    """Call it, and return its outcome as JSON."""
    try:
        call()
    except OSError as error:
        outcome = next((outcome for kind, outcome in ANSWERS.items() if isinstance(error, kind)), FAILED)
        return {"outcome": outcome, "why": f"{type(error).__name__}: {error}"}
    return {"outcome": DONE}


def read(call: Callable[[], bytes]) -> dict[str, Any]:
    """Return the digest of what is read, as JSON."""
    contents: list[bytes] = []
    answer = attempt(lambda: contents.append(call()))
    if contents:
        answer["digest"] = digest(contents[0])
    return answer


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def find_errors(promise: Promise, answers: Sequence[Answer]) -> list[Observation]:
    """Return an observation of the first answer that shows nothing."""
    for answer in answers:
        if answer["outcome"] == FAILED:
            return [Observation(promise.name, error=answer["why"])]
    return []


def find_undone(promise: Promise, preparations: Sequence[Answer]) -> list[Observation]:
    """Return an observation of the first step that had to be taken and was refused: what follows it shows nothing.

    A store may say of a write that the name is taken or its folder is missing, while others delete beside it.
    """
    for answer in preparations:
        if answer["outcome"] != DONE:
            return [Observation(promise.name, error=answer["why"])]
    return []


def judge_race(
    promise: Promise, creations: Sequence[Answer], looks: Sequence[Answer], contents: Sequence[str]
) -> Observation:
    """Judge a race for one name, of which all workers have looked at the result.

    The answer to the winner may be lost, so that nobody was told; then one of the contents is there all the same.
    """
    winners = [number for number, answer in enumerate(creations) if answer["outcome"] == DONE]
    if len(winners) > 1:
        return Observation(promise.name, f"{len(winners)} of {len(creations)} writers were told that they had won")
    errors = find_errors(promise, looks)
    if errors:
        return errors[0]
    digests = {look.get("digest") for look in looks}
    if len(digests) > 1:
        return Observation(promise.name, "not all readers saw the same content under the name")
    content = digests.pop()
    if winners and content != contents[winners[0]]:
        what = "nothing is there" if content is None else "the content of another writer is there"
        return Observation(promise.name, f"one writer was told that it had won, and {what}")
    if not winners and content not in contents:
        errors = find_errors(promise, creations)
        if errors:
            return errors[0]
        return Observation(promise.name, "no writer was told that it had won, and nothing is there")
    return Observation(promise.name)


class CreateRace(Trial):
    """All workers create one entry, and then once more."""

    name, promises = "race", (PUT_IF_ABSENT,)

    def list_steps(self) -> Sequence[Step]:
        return self._create, self._read, self._create, self._read

    def _create(self, worker: Worker) -> Answer:
        content = f"by {worker.number} of {worker.count}".encode()
        creations = attempt(lambda: worker.place.create(worker.name_shared("race"), content))
        return {**creations, "content": digest(content)}

    def _read(self, worker: Worker) -> Answer:
        return read(lambda: worker.place.read(worker.name_shared("race")))

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        creations, looks, told_again, looks_again = answers
        contents = [str(answer["content"]) for answer in creations]
        race = judge_race(PUT_IF_ABSENT, creations, looks, contents)
        outcomes = {answer["outcome"] for answer in told_again}
        if race.breach or race.error:
            yield race
        elif DONE in outcomes:
            yield Observation(PUT_IF_ABSENT.name, "a name that was taken was given to another writer")
        elif looks != looks_again and not find_errors(PUT_IF_ABSENT, looks_again):
            yield Observation(PUT_IF_ABSENT.name, "a refused write has changed the content")
        else:
            yield race

    def clean(self, worker: Worker) -> None:
        if worker.is_leader:
            worker.place.remove(worker.name_shared("race"))


class LifeOfEntries(Trial):
    """Each worker writes, overwrites and deletes an entry; after each of it, all list, and a neighbour reads."""

    name = "life"
    promises = (LIST_WRITTEN, READ_WRITTEN, READ_OVERWRITTEN, LIST_DELETED, READ_DELETED, CLOCKS)

    def list_steps(self) -> Sequence[Step]:
        return self._write, self._look, self._overwrite, self._look, self._delete, self._look

    def _write(self, worker: Worker) -> Answer:
        content = f"first of {worker.number}".encode()
        began = time.time()
        creations = attempt(lambda: worker.place.write(worker.name_of("life", worker.number), content))
        worker.memory["written"] = began, time.time()
        return {**creations, "content": digest(content)}

    def _look(self, worker: Worker) -> Answer:
        """List from before the first entry of the round, as the state table's log does, and read a neighbour's."""
        place, names = worker.place, {worker.name_of("life", number): number for number in range(worker.count)}
        entries: dict[str, float] = {}
        listed = attempt(lambda: entries.update(place.list_entries(after=worker.name_shared("life"))))
        numbers = sorted(names[name] for name in entries if name in names)
        answer = {"listed": {**listed, "numbers": numbers}}
        answer["read"] = read(lambda: place.read(worker.name_of("life", worker.neighbour)))
        changed, interval = entries.get(worker.name_of("life", worker.number)), worker.memory.pop("written", None)
        if changed is not None and interval is not None:
            answer["clock"] = {"difference": measure_difference(changed, *interval)}
        return answer

    def _overwrite(self, worker: Worker) -> Answer:
        if not worker.place.has_overwrites:
            return {"outcome": MISSING}
        content = f"second of {worker.number}, of another length".encode()
        return {
            **attempt(lambda: worker.place.write(worker.name_of("life", worker.number), content)),
            "content": digest(content),
        }

    def _delete(self, worker: Worker) -> Answer:
        return attempt(lambda: worker.place.remove(worker.name_of("life", worker.number)))

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        written, after_writing, overwritten, after_overwriting, deleted, after_deleting = answers
        yield self._judge_listing(LIST_WRITTEN, written, after_writing, has_entries=True)
        yield self._judge_reading(READ_WRITTEN, written, after_writing)
        if any(answer["outcome"] != MISSING for answer in overwritten):
            yield self._judge_reading(READ_OVERWRITTEN, overwritten, after_overwriting)
        else:
            yield Observation(READ_OVERWRITTEN.name, error="Onceonly overwrites no file there")
        yield self._judge_listing(LIST_DELETED, deleted, after_deleting, has_entries=False)
        yield self._judge_deleted(deleted, after_deleting)
        for look in after_writing:
            if "clock" in look:
                difference = look["clock"]["difference"]
                breach = ""
                if abs(difference) > MAX_CLOCK_DIFFERENCE_SECONDS:
                    breach = f"its clock is {describe_difference(difference)}"
                yield Observation(CLOCKS.name, breach, figure=difference)

    def _judge_listing(
        self, promise: Promise, changes: Sequence[Answer], looks: Sequence[Answer], has_entries: bool
    ) -> Observation:
        errors = find_undone(promise, changes) or find_errors(promise, [look["listed"] for look in looks])
        if errors:
            return errors[0]
        numbers = list(range(len(changes))) if has_entries else []
        for look in looks:
            if look["listed"]["numbers"] != numbers:
                listed = f"{len(look['listed']['numbers'])} of {len(changes)} entries"
                state = "written" if has_entries else "deleted"
                return Observation(promise.name, f"a listing showed {listed} that had been {state} before it began")
        return Observation(promise.name)

    def _judge_reading(self, promise: Promise, writes: Sequence[Answer], looks: Sequence[Answer]) -> Observation:
        errors = find_undone(promise, writes) or find_errors(promise, [look["read"] for look in looks])
        if errors:
            return errors[0]
        for number, look in enumerate(looks):
            content = look["read"].get("digest")
            if content is None:
                return Observation(promise.name, "a reader was told that the entry does not exist")
            if content != writes[(number + 1) % len(writes)]["content"]:
                return Observation(promise.name, "a reader got another content than the one written last")
        return Observation(promise.name)

    def _judge_deleted(self, deleted: Sequence[Answer], looks: Sequence[Answer]) -> Observation:
        errors = find_undone(READ_DELETED, deleted) or find_errors(READ_DELETED, [look["read"] for look in looks])
        if errors:
            return errors[0]
        if any(look["read"]["outcome"] == DONE for look in looks):
            return Observation(READ_DELETED.name, "a reader got an entry that had been deleted")
        return Observation(READ_DELETED.name)


def measure_difference(changed: float, began: float, ended: float) -> float:
    """Return by how many seconds a storage's clock is ahead of ours, at least; some show whole seconds."""
    if changed > ended:
        return changed - ended
    return min(0.0, changed + 1.0 - began)


def describe_difference(difference: float) -> str:
    return f"{abs(difference):,.1f} s {'ahead of' if difference > 0 else 'behind'} ours"


class WholeContents(Trial):
    """One worker overwrites an entry of some size while the others read it."""

    name, promises = "whole", (WHOLE,)
    bytes, reads = 256 << 10, 3

    def list_steps(self) -> Sequence[Step]:
        return self._write, self._overwrite_or_read

    def _write(self, worker: Worker) -> Answer:
        if not worker.is_leader:
            return {"outcome": DONE}
        return attempt(lambda: worker.place.write(worker.name_shared("whole"), b"a" * self.bytes))

    def _overwrite_or_read(self, worker: Worker) -> Answer:
        name = worker.name_shared("whole")
        if worker.is_leader:
            return {**attempt(lambda: worker.place.write(name, b"b" * self.bytes)), "is_writer": True}
        answer: Answer = {"outcome": DONE}
        for _ in range(self.reads):
            answer = read(lambda: worker.place.read(name))
            if answer.get("digest") not in self._digests():
                return answer
        return answer

    def _digests(self) -> tuple[str, str]:
        return digest(b"a" * self.bytes), digest(b"b" * self.bytes)

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        writes = [*answers[0], *(answer for answer in answers[1] if "is_writer" in answer)]
        reads = [answer for answer in answers[1] if "is_writer" not in answer]
        errors = find_undone(WHOLE, writes) or find_errors(WHOLE, reads)
        if errors:
            yield errors[0]
            return
        for answer in reads:
            if answer.get("digest") not in self._digests():
                yield Observation(WHOLE.name, "a reader got neither the older nor the newer version")
                return
        yield Observation(WHOLE.name)

    def clean(self, worker: Worker) -> None:
        if worker.is_leader:
            worker.place.remove(worker.name_shared("whole"))

    def why_untried(self, place: Place) -> str:
        return "" if place.has_overwrites else f"Onceonly overwrites no file on {place.kind}"


class SyncTrial(Trial):
    """Each worker syncs a file and its folder."""

    name, promises = "sync", (DURABILITY,)

    def list_steps(self) -> Sequence[Step]:
        return (self._sync,)

    def _sync(self, worker: Worker) -> Answer:
        measured: dict[str, Any] = {}
        name = worker.name_of("sync", worker.number)
        return {**attempt(lambda: measured.update(worker.place.measure_sync(name))), **measured}

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        for answer in answers[0]:
            if answer["outcome"] == DONE:
                yield Observation(DURABILITY.name, answer["objection"], figure=answer["seconds"])
            else:
                yield Observation(DURABILITY.name, f"it cannot be synced: {answer.get('why', answer['outcome'])}")

    def clean(self, worker: Worker) -> None:
        with suppress(OSError):
            worker.place.remove(worker.name_of("sync", worker.number))

    def why_untried(self, place: Place) -> str:
        from onceonly.probe.places import DISK

        return "" if place.kind == DISK else "what it acknowledges is taken as durable: only a power failure could tell"
