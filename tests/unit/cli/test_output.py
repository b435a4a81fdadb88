"""What a command does and how it ends, whatever becomes of its output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

pytestmark = pytest.mark.slow

COMMAND = """
import sys
import click
from onceonly.cli import app

@click.group(cls=app.Cli)
def main(): pass

@main.command()
@app.json_option
def work(as_json):
    print("a transform prints when it is imported", flush=True)
    import os; os.system("echo and so does a process that it starts")
    click.echo("step 1 \u2713")
    click.echo("step 2", err=True)
    open(os.environ["DONE"], "w").close()
    if as_json: app.print_json({"result": "done"})

main()
"""


def start(tmp_path: Path, *arguments: str, **settings) -> subprocess.Popen:
    env = {**os.environ, "DONE": str(tmp_path / "done"), **settings.pop("env", {})}
    (tmp_path / "command.py").write_text(COMMAND, encoding="utf-8")
    return subprocess.Popen([sys.executable, str(tmp_path / "command.py"), *arguments], env=env, **settings)


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_a_pipe_that_is_closed_changes_nothing(tmp_path, closed):
    read, write = os.pipe()
    os.close(read)
    other = subprocess.DEVNULL
    streams = {"stdout": other if closed == "stderr" else write, "stderr": other if closed == "stdout" else write}
    process = start(tmp_path, "work", **streams)
    assert process.wait(PATIENCE) == 0
    assert (tmp_path / "done").exists()
    os.close(write)


@pytest.mark.parametrize(
    "setting", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"TERM": "dumb"}]
)
def test_an_encoding_without_our_characters_changes_nothing(tmp_path, setting):
    process = start(tmp_path, "work", env=setting, stdout=subprocess.PIPE)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert b"step 1" in said


def test_without_any_output_at_all(tmp_path):
    process = start(tmp_path, "work", preexec_fn=lambda: (os.close(1), os.close(2)))
    assert process.wait(PATIENCE) == 0
    assert (tmp_path / "done").exists()


def test_json_stands_alone_on_stdout(tmp_path):
    process = start(tmp_path, "work", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, aside = process.communicate(timeout=PATIENCE)
    assert json.loads(said) == {"result": "done"}
    for words in (b"a transform prints", b"and so does a process", b"step 1", b"step 2"):
        assert words in aside


def test_a_usage_error_is_json_too_where_that_was_asked_for(tmp_path):
    process = start(tmp_path, "work", "--json", "--unheard-of", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert json.loads(said)["what"] == "No such option '--unheard-of'."


def test_a_user_id_without_a_name_is_a_name(monkeypatch):
    from onceonly.cli.manual import person

    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 1_000_580_000)
    assert person() == "uid 1000580000"
