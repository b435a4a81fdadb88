"""The sink of docs/add-a-sink.md, as a reader copies it: each file from its block, installed, and its suite run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from abc import ABCMeta
from pathlib import Path
from types import FunctionType

import pytest
from installed import read_project, write_metadata
from patience import PATIENCE

from onceonly import sinks
from onceonly.checkpoint import sink as interface
from onceonly.checkpoint import verification
from onceonly.checkpoint.sink import Sink

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "add-a-sink.md").read_text()
CAPABILITIES = PAGE.partition("## Capabilities\n")[2].partition("\n## ")[0]
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"^pytest (.*--onceonly-sink .*)$", re.MULTILINE)
ROW = re.compile(r"^\| `(\w+)(\(.*?\))?` \|", re.MULTILINE)
MIN_PASSED_TESTS = 40  # as many as the suite has for a sink without capabilities
MAX_SINK_LINES = 80  # of code: the page promises the smallest one


def read_files() -> dict[str, str]:
    """Return the content of each file that the page shows, by name."""
    return dict(BLOCK.findall(PAGE))


def install(folder: Path) -> None:
    """Write the files and what an installer writes beside them, so that Python finds the entry point."""
    for name, content in read_files().items():
        (folder / name).write_text(content)
    text = read_files()["pyproject.toml"]
    assert tomllib.loads(text)["tool"]["setuptools"]["py-modules"] == ["onceonly_sqlite"]  # else it would be empty
    write_metadata(folder, read_project(text))


def run_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python where the sink is installed."""
    search_path = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path, "ONCEONLY_HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )


def test_documented_sink_passes_the_contract(tmp_path: Path) -> None:
    install(tmp_path)
    option = OPTION.search(PAGE)
    assert option
    not_ours = "--noconftest"  # the suite's file lies below that of this repository
    done = run_python(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", not_ours, *option[1].split())
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= MIN_PASSED_TESTS, done.stdout


CHECK = """
from onceonly_sqlite import SqliteSink
from onceonly import KafkaSource, Pipeline
from onceonly.runtime.live_services import LiveServices, check_written_folders

sinks = [SqliteSink("s", "s.db")]
pipeline = Pipeline(name="flights", source=KafkaSource("flights"), transform="jobs:same", sinks=sinks)
services = LiveServices()
services.sink(pipeline, "s").check()  # makes the file
print(check_written_folders(pipeline, services))
"""


def test_file_of_the_documented_sink_is_taken_for_no_folder(tmp_path: Path) -> None:
    install(tmp_path)
    done = run_python(tmp_path, "-c", CHECK)
    assert done.returncode == 0 and "s.db" not in done.stdout, done.stdout + done.stderr


def test_documented_sink_is_small() -> None:
    lines = read_files()["onceonly_sqlite.py"].splitlines()
    assert len([line for line in lines if line.strip()]) <= MAX_SINK_LINES


def test_every_capability_is_in_the_table() -> None:
    classes, methods = set(), set()
    for name, arguments in ROW.findall(CAPABILITIES):
        if arguments:
            methods.add(name)
        else:
            classes.add(name)
    members = {**vars(interface), **vars(verification)}
    assert classes == {name for name, member in members.items() if is_capability(member)}
    functions = {name for name, member in vars(Sink).items() if isinstance(member, FunctionType)}
    assert methods == functions - Sink.__abstractmethods__


@pytest.mark.parametrize("name", [name for name, arguments in ROW.findall(CAPABILITIES) if not arguments])
def test_capability_is_exported(name: str) -> None:
    assert name in sinks.__all__


def is_capability(member: object) -> bool:
    modules = (interface.__name__, verification.__name__)
    return type(member) is ABCMeta and member.__module__ in modules and member is not Sink
