"""The trials of what sinks do: to publish files under final names, to withdraw them, and to commit to Delta tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from onceonly.probe.findings import Observation
from onceonly.probe.places import S3, Place
from onceonly.probe.trials import (
    CONDITIONAL_COPY,
    DELTA_COMMIT,
    DONE,
    FAILED,
    FOLDER_RENAME,
    MISSING,
    PUBLICATION,
    TAKEN,
    WITHDRAWAL,
    Answer,
    CreateRace,
    LifeOfEntries,
    Rounds,
    Step,
    SyncTrial,
    Trial,
    WholeContents,
    Worker,
    attempt,
    digest,
    find_errors,
    find_undone,
    judge_race,
    read,
)

DATA = "data"  # the staged file of a transaction
RENAMED_FILES = 3


class Publication(Trial):
    """All workers give their staged files one final name, by link, rename, upload or conditional copy."""

    name, promises = "publication", (PUBLICATION,)

    def list_steps(self) -> Sequence[Step]:
        return self._stage, self._publish, self._read

    def _stage(self, worker: Worker) -> Answer:
        return stage(worker, self.name, self._final(worker))

    def _final(self, worker: Worker) -> str:
        return worker.transaction("final", 0)

    def _publish(self, worker: Worker) -> Answer:
        return publish(worker, self.name, self._final(worker))

    def _read(self, worker: Worker) -> Answer:
        path = worker.place.published_path(self._final(worker)).path
        return read(lambda: worker.place.files.read(path).encode())

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        staged, published, looks = answers
        errors = find_undone(PUBLICATION, staged)
        if errors:
            yield errors[0]
            return
        yield judge_race(PUBLICATION, published, looks, [str(answer["content"]) for answer in staged])

    def clean(self, worker: Worker) -> None:
        discard(worker, self.name)
        if worker.is_leader:
            worker.place.files.remove(worker.place.published_path(self._final(worker)))


class Withdrawal(Trial):
    """What each worker has prepared is withdrawn by its neighbour, and the worker tries to publish it then."""

    name, promises = "withdrawal", (WITHDRAWAL,)

    def list_steps(self) -> Sequence[Step]:
        return self._stage, self._withdraw, self._publish, self._look

    def _stage(self, worker: Worker) -> Answer:
        return stage(worker, self.name, worker.transaction(self.name, worker.number))

    def _withdraw(self, worker: Worker) -> Answer:
        place, transaction = worker.place, worker.transaction(self.name, worker.neighbour)

        def withdraw() -> None:
            place.files.delete(place.staged_path(transaction))
            place.files.end_uploads(place.target, transaction)

        return attempt(withdraw)

    def _publish(self, worker: Worker) -> Answer:
        return publish(worker, self.name, worker.transaction(self.name, worker.number))

    def _look(self, worker: Worker) -> Answer:
        path = worker.place.published_path(worker.transaction(self.name, worker.number)).path
        return read(lambda: worker.place.files.read(path).encode())

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        staged, withdrawn, published, looks = answers
        errors = find_undone(WITHDRAWAL, [*staged, *withdrawn]) or find_errors(WITHDRAWAL, looks)
        if errors:
            yield errors[0]
            return
        late = sum(look["outcome"] == DONE for look in looks)
        answers_of_success = sum(answer["outcome"] == DONE for answer in published)
        if late or answers_of_success:
            number = max(late, answers_of_success)
            breach = f"{number} of {len(looks)} files were published after they had been withdrawn"
            yield Observation(WITHDRAWAL.name, breach)
            return
        yield from find_errors(WITHDRAWAL, published) or [Observation(WITHDRAWAL.name)]

    def clean(self, worker: Worker) -> None:
        discard(worker, self.name)
        worker.place.files.remove(worker.place.published_path(worker.transaction(self.name, worker.number)))


class ConditionalCopy(Trial):
    """Each worker copies a file on the condition that it is what it was, and it is not."""

    name, promises = "copy", (CONDITIONAL_COPY,)

    def list_steps(self) -> Sequence[Step]:
        return self._stage, self._copy

    def _stage(self, worker: Worker) -> Answer:
        place = worker.place
        staged = place.staged_path(worker.transaction(self.name, worker.number))

        def write() -> None:
            place.files.begin(staged)
            place.files.write(staged.join(DATA).path, "as it was")

        return attempt(write)

    def _copy(self, worker: Worker) -> Answer:
        transaction = worker.transaction(self.name, worker.number)
        source = worker.place.staged_path(transaction).join(DATA).path
        new = worker.place.published_path(transaction).path
        return attempt(lambda: worker.place.copy_changed(source, b"as it is now", new, transaction))

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        staged, copied = answers
        errors = find_undone(CONDITIONAL_COPY, staged)
        if errors:
            yield errors[0]
            return
        copies = sum(answer["outcome"] == DONE for answer in copied)
        if copies:
            yield Observation(CONDITIONAL_COPY.name, f"{copies} of {len(copied)} changed files were copied")
            return
        yield from find_errors(CONDITIONAL_COPY, copied) or [Observation(CONDITIONAL_COPY.name)]

    def clean(self, worker: Worker) -> None:
        discard(worker, self.name)
        worker.place.files.remove(worker.place.published_path(worker.transaction(self.name, worker.number)))

    def why_untried(self, place: Place) -> str:
        return "" if place.has_conditional_copies else f"not needed: on {place.kind} files keep their identity"


class FolderRename(Trial):
    """Two workers rename one folder with some files to the same new name, as two recoveries do."""

    name, promises = "rename", (FOLDER_RENAME,)

    def list_steps(self) -> Sequence[Step]:
        return self._fill, self._rename, self._look

    def _fill(self, worker: Worker) -> Answer:
        if not worker.is_leader:
            return {"outcome": DONE}
        files, folder = worker.place.files, worker.place.staged_path(self._transaction(worker))

        def fill() -> None:
            files.begin(folder)
            files.make_folder(folder.join("old").path, folder.path)
            for number in range(RENAMED_FILES):
                files.write(folder.join(f"old/{number}").path, f"file {number}")

        return attempt(fill)

    def _transaction(self, worker: Worker) -> str:
        return worker.transaction(self.name, worker.round % worker.count)

    def _rename(self, worker: Worker) -> Answer:
        if not worker.is_leader and (worker.round + 1) % worker.count != worker.number:
            return {"outcome": MISSING}
        folder = worker.place.staged_path(self._transaction(worker))
        return attempt(lambda: worker.place.files.rename_folder(folder.join("old"), folder.join("new")))

    def _look(self, worker: Worker) -> Answer:
        files, folder = worker.place.files, worker.place.staged_path(self._transaction(worker))
        names: dict[str, Any] = {}

        def look() -> None:
            for side in ("old", "new"):
                names[side] = []
                with suppress(FileNotFoundError):
                    names[side] = sorted(files.list_visible(folder.join(side).path))

        return {**attempt(look), **names}

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        filled, renamed, looks = answers
        errors = find_undone(FOLDER_RENAME, filled) or find_errors(FOLDER_RENAME, [*renamed, *looks])
        if errors:
            yield errors[0]
            return
        names = [str(number) for number in range(RENAMED_FILES)]
        for look in looks:
            if look.get("new") != names or look.get("old"):
                names_seen = (
                    f"{len(look.get('new', []))} files under the new name and {len(look.get('old', []))} under the old"
                )
                yield Observation(FOLDER_RENAME.name, f"{names_seen}, of {RENAMED_FILES}")
                return
        yield Observation(FOLDER_RENAME.name)

    def clean(self, worker: Worker) -> None:
        if worker.is_leader:
            worker.place.files.delete(worker.place.staged_path(self._transaction(worker)))


class DeltaCommit(Trial):
    """All workers commit version 1 of a Delta table by delta-rs."""

    name, promises = "delta", (DELTA_COMMIT,)

    def list_steps(self) -> Sequence[Step]:
        return self._create, self._open, self._commit, self._look

    def _table_uri(self, worker: Worker) -> str:
        return f"{worker.place.table_uri}/{worker.round:06d}"

    def _create(self, worker: Worker) -> Answer:
        if not worker.is_leader:
            return {"outcome": DONE}
        import pyarrow as pa
        from deltalake import DeltaTable

        def create() -> None:
            DeltaTable.create(self._table_uri(worker), pa.schema([pa.field("x", pa.int64())]))

        return _attempt_delta(create)

    def _open(self, worker: Worker) -> Answer:
        from deltalake import DeltaTable

        def load() -> None:
            worker.memory["table"] = DeltaTable(self._table_uri(worker))

        return _attempt_delta(load)

    def _commit(self, worker: Worker) -> Answer:
        from onceonly.delta.commits import commit_entry

        table = worker.memory.get("table")
        if table is None:
            return {"outcome": FAILED, "why": "the table was not opened"}
        return _attempt_delta(lambda: commit_entry(table, [], [], f"probe-{worker.number}", 1, exactly_next=True))

    def _look(self, worker: Worker) -> Answer:
        from deltalake import DeltaTable

        answer: dict[str, Any] = {}

        def look() -> None:
            table = DeltaTable(self._table_uri(worker))
            answer["version"] = table.version()
            answer["is_there"] = table.transaction_version(f"probe-{worker.number}") is not None

        return {**_attempt_delta(look), **answer}

    def judge(self, answers: Rounds) -> Iterator[Observation]:
        created, opened, committed, looks = answers
        errors = find_undone(DELTA_COMMIT, [*created, *opened, *looks])
        if errors:
            yield errors[0]
            return
        is_told = [answer["outcome"] == DONE for answer in committed]
        is_there = [bool(look["is_there"]) for look in looks]
        if sum(is_told) > 1:
            breach = f"{sum(is_told)} of {len(is_told)} writers were told that they had committed version 1"
        elif any(is_told) and is_there != is_told:
            breach = "the log has not the commit of the writer that was told so"
        elif sum(is_there) > 1 or {look["version"] for look in looks} != {int(any(is_there))}:
            breach = f"the log has {sum(is_there)} of the commits, and version {max(look['version'] for look in looks)}"
        elif not any(is_there) and (errors := find_errors(DELTA_COMMIT, committed)):
            yield errors[0]
            return
        else:
            breach = "" if any(is_there) else "no writer has committed"
        yield Observation(DELTA_COMMIT.name, breach)

    def why_untried(self, place: Place) -> str:
        return "" if place.has_delta else f"on {place.kind}, only Spark writes Delta tables"


def _attempt_delta(call: Any) -> dict[str, Any]:
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        return attempt(call)
    except CommitFailedError as error:
        # delta-rs says of a version that another one has made: "… already exists"; anything else is no answer.
        is_taken = "exist" in str(error) or "conflict" in str(error).lower()
        return {"outcome": TAKEN if is_taken else FAILED, "why": f"CommitFailedError: {error}"}
    except DeltaError as error:
        return {"outcome": FAILED, "why": f"{type(error).__name__}: {error}"}


def stage(worker: Worker, trial: str, final: str) -> Answer:
    """Stage a file of this worker, and prepare it for its final name."""
    place, transaction = worker.place, worker.transaction(trial, worker.number)
    staged, content = place.staged_path(transaction), f"staged by {worker.number} in round {worker.round}"

    def prepare() -> None:
        place.files.begin(staged)
        place.files.write(staged.join(DATA).path, content)
        worker.memory["prepared"] = place.files.prepare(staged.join(DATA).path, place.published_path(final).path)

    return {**attempt(prepare), "content": digest(content.encode())}


def publish(worker: Worker, trial: str, final: str) -> Answer:
    """Give the file that this worker has staged its final name."""
    place, prepared = worker.place, worker.memory.get("prepared")
    staged = place.staged_path(worker.transaction(trial, worker.number)).join(DATA)
    if prepared is None:
        return {"outcome": FAILED, "why": "nothing was staged"}
    return attempt(lambda: place.files.move(staged, place.published_path(final).path, prepared))


def discard(worker: Worker, trial: str) -> None:
    """Remove what this worker has staged."""
    place, transaction = worker.place, worker.transaction(trial, worker.number)
    with suppress(OSError):
        place.files.delete(place.staged_path(transaction))
        if place.kind == S3:
            place.files.end_uploads(place.target, transaction)


def list_trials() -> list[Trial]:
    """Return all trials, in the order of a report."""
    publishing = Publication(), Withdrawal(), ConditionalCopy(), FolderRename(), DeltaCommit()
    return [CreateRace(), LifeOfEntries(), WholeContents(), *publishing, SyncTrial()]
