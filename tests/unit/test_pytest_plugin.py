"""`pytest --onceonly-sink`, as the author of a sink calls it. tests/contract/test_documented_sink.py runs it whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE

from onceonly.testing import plugin

pytestmark = pytest.mark.slow  # each starts a pytest
ROOT = Path(__file__).parents[2]
TARGET = "from onceonly.testing.contract import Target\nclass Lines(Target): ...\nclass Other: ...\n"


def collect(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """List the tests that pytest would run in that folder."""
    (folder / "lines_target.py").write_text(TARGET)
    (folder / "test_own.py").write_text("def test_own(): ...\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", plugin.__name__, "--noconftest", "--collect-only", "-q", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_suite_is_collected_in_place_of_the_folder(tmp_path: Path) -> None:
    done = collect(tmp_path, "--onceonly-sink", "lines_target:Lines")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TestSink::test_" in done.stdout and "test_own" not in done.stdout


def test_suite_is_collected_beside_given_paths(tmp_path: Path) -> None:
    done = collect(tmp_path, "--onceonly-sink", "lines_target:Lines", "test_own.py")
    assert "TestSink::test_" in done.stdout and "test_own.py::test_own" in done.stdout


def test_without_the_option_nothing_is_added(tmp_path: Path) -> None:
    assert "TestSink" not in collect(tmp_path).stdout


@pytest.mark.parametrize("name", ["lines_target", "lines_target:Missing", "lines_target:Other", "missing:Lines"])
def test_wrong_name_is_refused_with_what_to_give(tmp_path: Path, name: str) -> None:
    done = collect(tmp_path, "--onceonly-sink", name)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert name in done.stderr and plugin.HOW_TO_NAME in done.stderr
