"""The report of a job on another machine, in a folder of the state table, for the task that waits for the job.

It contains lines of text, then the job's exit code. They are for display, and for the class of an error; whether
anything was staged is decided by the state table alone. A file beside it names the driver, so that the driver can be
killed when no task waits for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow.fs as pafs

from onceonly.checkpoint.model import Checkpoint
from onceonly.errors import InvalidPipeline
from onceonly.statetable.table import StateTable
from onceonly.storage.folders import arrow_file_system

MAX_SILENCE = timedelta(hours=6)  # since the last line of a report
DRIVER_SUFFIX = ".driver"  # suffix of the file that names the driver
NONCE_DIGITS = 12  # hexadecimal digits at the end of a job's name
PROGRESS_SUFFIX = ".progress"  # suffix of the file that says how far a stage is
DRIVER_ID = re.compile(r"[\w-]+")  # of a driver on any cluster: it becomes part of an address
JOB_NAME = re.compile(
    rf"(?:stage|gate)-(?P<pipeline>[^-]+)-(?P<epoch>\d+)-[0-9a-f]{{{NONCE_DIGITS}}}(?:{re.escape(DRIVER_SUFFIX)}|{re.escape(PROGRESS_SUFFIX)})?"
)
JOBS_FOLDER = "_jobs"  # in the state table's folder: Delta ignores names that start with '_'
EXIT_CODE_MARK = "\x04"  # start of the last line, before the exit code


@dataclass(frozen=True)
class Received:
    """The part of a report that has arrived so far; `code` is None until the job has ended."""

    lines: tuple[str, ...] = ()
    code: int | None = None


@dataclass
class Report:
    """The report of one job, at a path or URI."""

    uri: str
    _text: str = field(default="", init=False)

    @classmethod
    def for_job(cls, state: str, job: str) -> Report:
        """Return the report of a job of this state table.

        Raises:
            InvalidPipeline: pyarrow, unlike deltalake, has no file system for the table's URI.
        """
        report = cls(f"{_folder(state)}/{job}")
        try:
            arrow_file_system(report.uri)
        except (ValueError, NotImplementedError) as error:
            raise InvalidPipeline(
                f"a driver on the cluster cannot write its report beside the state table at {state}.",
                f"{error}",
                "Use deploy mode 'client', or a state table at a path or s3://, gs://, abfss://. Nothing was started.",
                code="report-not-writable",
            ) from error
        return report

    def say(self, line: str) -> None:
        """Add a line. Object stores cannot append, so the whole report is written again."""
        self._add("".join(f"{part}\n" for part in line.split("\n")))

    def end(self, code: int) -> None:
        """Add the exit code, as the last line."""
        self._add(f"{EXIT_CODE_MARK}{code}\n")

    def read(self) -> Received:
        """Return all complete lines so far."""
        files, path = arrow_file_system(self.uri)
        try:
            with files.open_input_file(path) as file:
                *lines, _ = file.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return Received()
        if lines and lines[-1].startswith(EXIT_CODE_MARK):
            return Received(tuple(lines[:-1]), int(lines[-1].removeprefix(EXIT_CODE_MARK)))
        return Received(tuple(lines))

    def delete(self) -> None:
        _delete(self.uri)

    def name_driver(self, driver: Mapping[str, Any]) -> None:
        """Record which driver runs this job, for which task, and since when (`at`, in seconds since 1970)."""
        _write(f"{self.uri}{DRIVER_SUFFIX}", json.dumps(driver))

    def note_end(self) -> None:
        """Record that somebody has asked for the driver's end: no later try waits for it."""
        files, path = arrow_file_system(self.uri)
        driver = _read_driver(files, f"{path}{DRIVER_SUFFIX}")
        if driver:
            with suppress(OSError):  # at worst, the next try waits for a driver that is ending
                self.name_driver({**driver, "ending": True})

    def forget_driver(self) -> None:
        _delete(f"{self.uri}{DRIVER_SUFFIX}")

    def is_followed(self) -> bool:
        """Return whether a later driver was submitted for the same step of the checkpoint, by the task's next try."""
        files, path = arrow_file_system(self.uri)
        folder, _, name = path.rpartition("/")
        submitted_at = _read_driver(files, f"{path}{DRIVER_SUFFIX}").get("at")
        infos = files.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        if submitted_at is None:
            return False
        for info in infos:
            is_of_same_step = info.base_name.startswith(name[:-NONCE_DIGITS]) and info.base_name.endswith(DRIVER_SUFFIX)
            if is_of_same_step and _read_driver(files, info.path).get("at", 0.0) > submitted_at:
                return True
        return False

    def _add(self, text: str) -> None:
        self._text += text
        with suppress(OSError):  # a job does not fail because its report cannot be written
            _write(self.uri, self._text)


@dataclass(frozen=True)
class ProgressFile:
    """A file that says how far one attempt's stage is, at a path or URI."""

    uri: str

    @classmethod
    def of_attempt(cls, state: str, checkpoint: Checkpoint) -> ProgressFile:
        """Return the file of the current attempt: its claim's nonce is part of the name, as of a job's."""
        nonce = checkpoint.claims[checkpoint.attempt].nonce
        return cls(f"{_folder(state)}/stage-{checkpoint.pipeline}-{checkpoint.epoch}-{nonce}{PROGRESS_SUFFIX}")

    def write(self, progress: Mapping[str, Any]) -> None:
        _write(self.uri, json.dumps(progress))

    def read(self) -> dict[str, Any]:
        """Return what was written last; raises OSError or ValueError if nothing was, or it is being written."""
        files, path = arrow_file_system(self.uri)
        with files.open_input_file(path) as file:
            progress: dict[str, Any] = json.loads(file.read())
        return progress

    def delete(self) -> None:
        _delete(self.uri)


@dataclass(frozen=True)
class NamedDriver:
    """A driver that is not known to have ended, as `Report.name_driver` recorded it.

    Its report is the one beside the record, whatever that says: who may write there is not to have other files deleted.
    """

    pipeline: str
    epoch: int
    driver: Mapping[str, Any]


def list_drivers(state_table: StateTable) -> list[NamedDriver]:
    """Return the drivers that jobs of this state table have named; none of a table that its folder was copied from."""
    named_drivers = []
    for info in _list_files(state_table.uri):
        if not info.base_name.endswith(DRIVER_SUFFIX):
            continue
        named_driver = _read_named_driver(state_table.uri, info.base_name)
        if named_driver and named_driver.driver.get("state") == state_table.id:
            named_drivers.append(named_driver)
    return named_drivers


def _read_named_driver(state: str, name: str) -> NamedDriver | None:
    """Return what a driver's file records; None if its name or the driver's id is not of the form that jobs write."""
    job = JOB_NAME.fullmatch(name)
    files, folder = arrow_file_system(_folder(state))
    if job is None:
        return None
    driver = _read_driver(files, f"{folder}/{name}")
    if not DRIVER_ID.fullmatch(str(driver.get("driver", ""))):
        return None
    report = f"{_folder(state)}/{name.removesuffix(DRIVER_SUFFIX)}"
    return NamedDriver(job["pipeline"], int(job["epoch"]), {**driver, "report": report})


def _read_driver(files: pafs.FileSystem, path: str) -> dict[str, Any]:
    """Return the content of a driver's file; empty if it does not exist, or is being written or deleted."""
    with suppress(OSError, ValueError), files.open_input_file(path) as file:
        driver: dict[str, Any] = json.loads(file.read())
        return driver
    return {}


def sweep_reports(state_table: StateTable) -> list[str]:
    """Remove reports that no task will read: old ones, of settled checkpoints. Returns their names.

    The task that waited for such a job was killed, or is so late that it uses the state table alone.
    """
    swept = []
    for name in _list_silent_reports(state_table.uri):
        if _is_settled(state_table, name) and _try_to_delete(state_table.uri, name):
            swept.append(name)
    return swept


def _list_silent_reports(state: str) -> list[str]:
    now = datetime.now(UTC)
    return [info.base_name for info in _list_files(state) if info.mtime and now - info.mtime > MAX_SILENCE]


def _list_files(state: str) -> list[pafs.FileInfo]:
    """Return the files of jobs beside that state table, by name."""
    try:
        files, path = arrow_file_system(_folder(state))
        infos = files.get_file_info(pafs.FileSelector(path, allow_not_found=True))
    except (OSError, ValueError, NotImplementedError):  # the last two: pyarrow does not support the storage
        return []
    return sorted(infos, key=lambda info: info.base_name)


def _is_settled(state_table: StateTable, name: str) -> bool:
    """Return whether the job's checkpoint is settled, or no longer exists."""
    job = JOB_NAME.fullmatch(name)
    if job is None:
        return False
    checkpoint = state_table.view(job["pipeline"]).checkpoint(int(job["epoch"]))
    return checkpoint is None or checkpoint.state.is_settled


def _try_to_delete(state: str, name: str) -> bool:
    """Delete a report, and return whether that was possible."""
    with suppress(OSError):  # it may be another user's, and does no harm
        Report(f"{_folder(state)}/{name}").delete()
        return True
    return False


def _folder(state: str) -> str:
    return f"{re.sub('^s3a:', 's3:', state.rstrip('/'))}/{JOBS_FOLDER}"


def _write(uri: str, text: str) -> None:
    files, path = arrow_file_system(uri)
    files.create_dir(path.rpartition("/")[0], recursive=True)
    with files.open_output_stream(path) as out:
        out.write(text.encode())


def _delete(uri: str) -> None:
    files, path = arrow_file_system(uri)
    with suppress(FileNotFoundError):
        files.delete_file(path)
