"""What a command waits for is on stderr after two seconds, and neither spoils its output nor is spoiled by others'."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import PATIENCE

pytestmark = pytest.mark.slow

COMMAND = """
import os, sys, time
import click
from onceonly import waits
from onceonly.cli import app, console

@click.group(cls=app.Cli)
def main(): pass

@main.command()
@app.json_option
def work(as_json):
    steps = console.Steps(quiet=as_json)
    with steps.step("stage") as words:
        with waits.wait_for("Spark to start") as wait:
            time.sleep(2.6)
            os.system("echo 26/11/26 WARN of a JVM; echo 26/11/26 INFO of a worker >&2")
            time.sleep(0.5)
        words.append("attempt 1")
    if as_json: app.print_json({"result": "done"})

@main.command()
@app.json_option
def brood(as_json):
    time.sleep(2.6)

@main.command()
@app.json_option
def ask(as_json):
    with waits.wait_for("nobody"):
        click.confirm("Continue?", abort=True)
        click.echo("continued")

main()
"""
ERASE = "\r\x1b[K"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "command.py").write_text(COMMAND, encoding="utf-8")
    return [sys.executable, str(tmp_path / "command.py")]


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, command: list[str], **env: str) -> None:
        self._ours, theirs = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **env}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self.output = ""

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.output:
            assert time.monotonic() < deadline, self.output
            if not self._read():
                break
        assert text in self.output

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def finish(self) -> list[str]:
        """Return the lines that are left on the screen."""
        while self._read():
            pass
        assert self.process.wait(PATIENCE) == 0
        os.close(self._ours)
        lines = []
        for line in self.output.split("\n"):
            visible = re.sub(r"\x1b\[[0-9;]*m", "", line.rstrip("\r").split(ERASE)[-1])
            lines.append(visible.rstrip())
        return [line for line in lines if line]

    def _read(self) -> bool:
        try:
            content = os.read(self._ours, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.output += content.decode("utf-8", "replace")
        return bool(content)


def test_terminal_shows_a_spinner_that_leaves_nothing(command: list[str]) -> None:
    terminal = Terminal([*command, "work"])
    lines = terminal.finish()
    assert re.search(r"stage: waiting for Spark to start, since \d\d:\d\d:\d\d UTC \(2 s\)", terminal.output)
    assert sorted(lines[:2]) == ["26/11/26 INFO of a worker", "26/11/26 WARN of a JVM"]  # of two pipes, in any order
    assert re.fullmatch(r"✓ stage   attempt 1  3\.\d s", lines[2]) and len(lines) == 3


def test_lines_of_other_processes_are_not_in_the_spinner(command: list[str]) -> None:
    terminal = Terminal([*command, "work"])
    terminal.finish()
    for words in ("26/11/26 WARN of a JVM", "26/11/26 INFO of a worker"):
        before = terminal.output.partition(words)[0]
        assert before.endswith((ERASE, "\n")), before[-80:]


def test_answer_in_json_stands_alone(command: list[str]) -> None:
    done = subprocess.run([*command, "work", "--json"], capture_output=True, text=True, timeout=PATIENCE)
    assert json.loads(done.stdout) == {"result": "done"}
    assert re.search(r"^… stage: waiting for Spark to start, since \d\d:\d\d:\d\d UTC$", done.stderr, re.MULTILINE)
    assert done.stderr.count("waiting for") == 1 and "\x1b" not in done.stderr


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": ""}])
def test_terminal_that_cannot_erase_gets_plain_lines(command: list[str], env: dict[str, str]) -> None:
    terminal = Terminal([*command, "work"], **env)
    terminal.finish()
    assert "… stage: waiting for Spark to start" in terminal.output and ERASE not in terminal.output


def test_spinner_without_its_characters(command: list[str]) -> None:
    terminal = Terminal([*command, "work"], PYTHONIOENCODING="ascii")
    terminal.finish()
    assert re.search(r"[-\\|/] stage: waiting for Spark to start", terminal.output)


def test_command_itself_is_named_where_nothing_else_is(command: list[str]) -> None:
    done = subprocess.run([*command, "brood"], capture_output=True, text=True, timeout=PATIENCE)
    assert re.fullmatch(r"… onceonly brood, since \d\d:\d\d:\d\d UTC\n", done.stderr) and done.stdout == ""


def test_question_keeps_its_line(command: list[str]) -> None:
    terminal = Terminal([*command, "ask"])
    terminal.read_until("Continue?")
    time.sleep(2.5)  # longer than any wait is silent
    terminal.type("y\n")
    lines = terminal.finish()
    assert lines == ["Continue? [y/N]: y", "continued"]
