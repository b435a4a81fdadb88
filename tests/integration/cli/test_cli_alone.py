"""The installed command in poor surroundings: nobody reads its output, it has no terminal, no locale, no user name and
no home, or a home that it cannot write to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from integration.projects.project import Project, make_project, produce
from patience import PATIENCE

from onceonly.dev.services.spark import TOKEN
from onceonly.statetable.table import StateTable

pytestmark = pytest.mark.integration
COMMAND = str(Path(sys.executable).with_name("onceonly"))
PIPELINE = """
from onceonly import DeltaSink, KafkaSource, Pipeline

numbers = Pipeline(
    name="numbers_chained",
    source=KafkaSource(topic="{topic}"),
    transform="transforms_{topic}:numbers",
    sinks=[DeltaSink("numbers", path="lake/chained", partition_by=["part"])],
)
"""
UNKNOWN = 54321  # a user id that has no name on this machine
# it may read what is root's, as this Python may be, and write what is its own
AS_UNKNOWN = [
    *("setpriv", f"--reuid={UNKNOWN}", f"--regid={UNKNOWN}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="changes the user: as root")


@pytest.fixture
def project(tmp_path: Path, broker: str, spark_server: str) -> Project:
    project = make_project(tmp_path, broker, spark_server, f"alone_{uuid.uuid4().hex[:8]}")
    (tmp_path / "pipelines.py").write_text(PIPELINE.format(topic=project.topic))
    produce(project, range(8))
    return project


def run(project: Project, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Without a terminal, in an environment that holds nothing else but what is given."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", TOKEN) if name in os.environ}
    return subprocess.run(
        command,
        env={**kept, **project.env(), **env},
        cwd=project.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=PATIENCE,
    )


def give_to_unknown(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, UNKNOWN, UNKNOWN)


def contents(folder: Path) -> Mapping[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("reader", ["head -1", "true"])
def test_a_run_whose_output_nobody_reads_publishes(project: Project, reader: str) -> None:
    piped = f"set -o pipefail; {COMMAND} run pipelines.py:numbers | {reader}"
    done = run(project, "bash", "-c", piped, SPARK_REMOTE=project.spark)
    assert done.returncode == 0, done.stderr
    # a slow machine names its waits
    assert all(line.startswith("… ") for line in done.stderr.splitlines()), done.stderr
    assert project.published() == Counter(range(8))


@as_root
def test_a_user_without_name_home_locale_and_terminal(project: Project) -> None:
    give_to_unknown(project.folder / "home")
    command, poor = [*AS_UNKNOWN, COMMAND, "run", "pipelines.py:numbers"], {"LC_ALL": "C", "LANG": "C"}
    refused = run(project, *command, **poor)
    assert refused.returncode == 2, refused.stderr
    assert f"User id {UNKNOWN} has no name" in refused.stderr
    assert project.published() == Counter()
    done = run(project, *command, **poor, SPARK_REMOTE=project.spark)
    assert done.returncode == 0, done.stderr
    assert project.published() == Counter(range(8))


@as_root
def test_a_home_that_cannot_be_written_to_is_refused_before_any_work(project: Project) -> None:
    before = contents(project.folder / "home")
    for code, step in ((1, ["run", "pipelines.py:numbers"]), (1, ["recover"]), (5, ["check", "pipelines.py:numbers"])):
        refused = run(project, *AS_UNKNOWN, COMMAND, *step, SPARK_REMOTE=project.spark)
        what, why, todo = refused.stderr.splitlines()[-3:]
        assert refused.returncode == code, refused.stderr
        assert what == f"✗ {project.settings.state} cannot be written to. [folder-not-writable]"
        assert f"User id {UNKNOWN} has no write permission" in why
        assert "ONCEONLY_HOME" in todo and "Nothing was written" in todo
    assert contents(project.folder / "home") == before
    assert StateTable(project.settings.state).view("numbers_chained").latest is None


@as_root
def test_check_names_a_target_that_cannot_be_written_to(project: Project) -> None:
    """And a run without a check stops there, too."""
    give_to_unknown(project.folder / "home")
    lake = project.folder / "home" / "lake"
    lake.mkdir(exist_ok=True)
    os.chown(lake, 0, 0)
    for command in ("check", "run"):
        refused = run(
            project, *AS_UNKNOWN, COMMAND, command, "pipelines.py:numbers", "--json", SPARK_REMOTE=project.spark
        )
        assert refused.returncode != 0, refused.stdout
        if command == "check":
            assert (refused.returncode, json.loads(refused.stdout)["code"]) == (5, "folder-not-writable")


def test_check_asks_the_spark_server_for_a_session(project: Project) -> None:
    """Where a server answers and refuses the token, the run would stop at the stage."""
    for code, command in ((5, "check"), (2, "run")):
        refused = run(
            project, COMMAND, command, "pipelines.py:numbers", "--json", **{TOKEN: "wrong"}, SPARK_REMOTE=project.spark
        )
        assert refused.stdout, (refused.returncode, refused.stderr)
        answer = json.loads(refused.stdout)
        assert (refused.returncode, answer["code"]) == (code, "spark-token-refused")
