"""Help, settings and completions, as a person at a terminal meets them."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from onceonly.cli import COMMANDS, main
from onceonly.settings import VARIABLES


def onceonly(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_commands_come_first() -> None:
    shown = onceonly("--help").output
    assert shown.index("Commands:") < shown.index("Options:") < shown.index("onceonly help settings")
    assert onceonly("help").output.startswith(shown)
    assert len(shown.splitlines()) <= 45


def test_settings_have_a_page_of_their_own() -> None:
    shown, settings = onceonly("--help").output, onceonly("help", "settings").output
    for variable in VARIABLES:
        assert f"{variable.name}\n    {variable.meaning}" in settings
        assert variable.name not in shown


@pytest.mark.parametrize("command", [*COMMANDS, "state fork"])
def test_help_of_a_command(command: str) -> None:
    shown = onceonly("help", *command.split())
    assert (shown.exit_code, shown.output) == (0, onceonly(*command.split(), "--help").output)


@pytest.mark.parametrize("words", [("stat",), ("state", "forq"), ("run", "now"), ("settings", "now")])
def test_a_command_that_there_is_not(words: tuple[str, ...]) -> None:
    refused = onceonly("help", *words)
    assert refused.exit_code == 2
    assert "[command-unknown]" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("pager", ["cat", "no-such-pager"])
def test_a_page_on_a_terminal(pager: str) -> None:
    """It is formatted, and a pager of the person's choice gets it, on the terminal itself."""
    process, reader = pty.fork()
    if process == 0:
        termios.tcsetwinsize(1, (500, 80))
        environment = {**os.environ, "PAGER": pager, "TERM": "xterm", "COLUMNS": "80"}
        path = os.pathsep.join(sys.path)
        os.execve(
            sys.executable,
            [sys.executable, "-c", "from onceonly.cli import main; main()", "help", "threat-model"],
            {**environment, "PYTHONPATH": path},
        )
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while part := os.read(reader, 65536):
            shown += part
    os.waitpid(process, 0)
    text = shown.decode()
    assert "Threat model" in text and "# Threat model" not in text and "\x1b[" in text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SHELL", shutil.which("bash") or "")
    return tmp_path


def complete(home: Path, *words: str) -> list[str]:
    """What a new interactive bash of this user offers after these words."""
    typed = " ".join(f"'{word}'" for word in ("onceonly", *words))
    ask = f"COMP_WORDS=({typed}); COMP_CWORD={len(words)}; _onceonly_completion onceonly"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(home)}
    shell = [
        shutil.which("bash") or "bash",
        "--rcfile",
        str(home / ".bashrc"),
        "-i",
        "-c",
        f"{ask}; echo ${{COMPREPLY[@]}}",
    ]
    done = subprocess.run(shell, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=True)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_new_bash_completes(home: Path) -> None:
    (home / ".bashrc").write_text("alias ll='ls -l'\n")
    for _ in range(2):
        assert onceonly("completions").exit_code == 0
    start_file = (home / ".bashrc").read_text()
    assert start_file.startswith("alias ll='ls -l'\n")
    assert start_file.count("source ") == 1
    assert {"repair", "resolve", "rewind"} <= set(complete(home, "re"))
    assert "--reprocess" in complete(home, "run", "--rep")


@pytest.mark.parametrize(
    ("shell", "script", "start_file"),
    [
        ("zsh", ".local/share/onceonly/completions.zsh", ".zshrc"),
        ("fish", ".config/fish/completions/onceonly.fish", None),
    ],
)
def test_other_shells(home: Path, shell: str, script: str, start_file: str | None) -> None:
    assert onceonly("completions", shell).exit_code == 0
    assert "_ONCEONLY_COMPLETE" in (home / script).read_text()
    if start_file:
        assert str(home / script) in (home / start_file).read_text()


def test_a_script_may_only_be_printed(home: Path) -> None:
    assert "_onceonly_completion" in onceonly("completions", "--print").output
    assert list(home.iterdir()) == []


def test_a_shell_that_is_not_known(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/dash")
    refused = onceonly("completions")
    assert refused.exit_code == 2
    assert "[shell-unknown]" in refused.output
    assert list(home.iterdir()) == []
