"""What a stage job on another machine says, kept beside the state table for the task that waits for it.

Lines for people, then the job's exit code. Only for people, and for the kind of an error: whether anything was staged,
the state table says.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field

from onceonly.errors import InvalidPipeline
from onceonly.sinks.folders import file_system

FOLDER = "_jobs"  # in the state table's own: Delta passes over names that begin with '_'
END = "\x04"  # what the last line begins with; the exit code follows


@dataclass(frozen=True)
class Said:
    """As far as it is there: `code` is None as long as the job has not come to its end."""

    lines: tuple[str, ...] = ()
    code: int | None = None


@dataclass
class Report:
    """The report of one job, at a path or URI."""

    uri: str
    _text: str = field(default="", init=False)

    @classmethod
    def of(cls, state: str, job: str) -> Report:
        """That of a job of this state table; its name is its own.

        Raises:
            InvalidPipeline: pyarrow, unlike deltalake, has no file system for such a table.
        """
        report = cls(f"{re.sub('^s3a:', 's3:', state.rstrip('/'))}/{FOLDER}/{job}")
        try:
            file_system(report.uri)
        except (ValueError, NotImplementedError) as error:
            raise InvalidPipeline(
                f"a driver on the cluster cannot be heard beside the state table at {state}.",
                f"{error}",
                "Use deploy mode 'client', or a state table at a path or s3://, gs://, abfss://. Nothing was started.",
            ) from error
        return report

    def say(self, line: str) -> None:
        """Add a line. Object stores do not append, so all is written again."""
        self._add("".join(f"{part}\n" for part in line.split("\n")))

    def end(self, code: int) -> None:
        """Nothing more is to come."""
        self._add(f"{END}{code}\n")

    def read(self) -> Said:
        """What is there by now; a line that is being written is not."""
        files, path = file_system(self.uri)
        try:
            with files.open_input_file(path) as file:
                *lines, _ = file.read().decode(errors="replace").split("\n")
        except FileNotFoundError:
            return Said()
        if lines and lines[-1].startswith(END):
            return Said(tuple(lines[:-1]), int(lines[-1].removeprefix(END)))
        return Said(tuple(lines))

    def delete(self) -> None:
        files, path = file_system(self.uri)
        with suppress(FileNotFoundError):
            files.delete_file(path)

    def _add(self, text: str) -> None:
        self._text += text
        with suppress(OSError):  # a job does not fail for want of someone who hears it
            files, path = file_system(self.uri)
            files.create_dir(path.rpartition("/")[0], recursive=True)
            with files.open_output_stream(path) as out:
                out.write(self._text.encode())
