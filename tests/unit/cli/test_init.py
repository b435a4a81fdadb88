"""onceonly init: what it writes, and what it leaves alone. That it runs is in tests/integration/test_wheel.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly.airflow import checkpoint_dag
from onceonly.cli import main
from onceonly.cli.project_files import PIPELINE
from onceonly.runtime import pipeline_file, transforms
from onceonly.settings import Settings


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.delenv("ONCEONLY_HOME", raising=False)
    return tmp_path


def test_the_definition_loads_its_transform_is_found_and_it_makes_a_dag(folder: Path) -> None:
    assert CliRunner().invoke(main, ["init"]).exit_code == 0
    pipeline = pipeline_file.load(PIPELINE, folder)
    settings = Settings.from_env()
    assert transforms.load(pipeline.transform, settings).__name__ == "by_day"
    assert [(folder / str(source.schema)).is_file() for source in pipeline.sources] == [True]
    assert checkpoint_dag(pipeline, schedule="@hourly").dag_id == "orders"


def test_every_file_is_python_or_explained(folder: Path) -> None:
    said = json.loads(CliRunner().invoke(main, ["init", "--json"]).stdout)
    assert said["folder"] == str(folder)
    readme = (folder / "README.md").read_text()
    for name in said["files"]:
        if name.endswith(".py"):
            compile((folder / name).read_text(), name, "exec")
        assert name in readme or name in ("README.md", "pytest.ini", ".gitignore", "dags/.airflowignore"), name


def test_the_definition_needs_no_airflow(folder: Path) -> None:
    """Nor does anything else that a command reads; and Airflow, which sees `airflow` and `dag` in no file, skips it."""
    CliRunner().invoke(main, ["init"])
    text = (folder / PIPELINE).read_text()
    assert "onceonly.airflow" not in text and "from airflow" not in text


def test_no_file_is_replaced_and_other_files_stay(folder: Path) -> None:
    (folder / "jobs").mkdir()
    (folder / "jobs" / "orders.py").write_text("mine")
    (folder / "notes.txt").write_text("mine, too")
    before = sorted(folder.rglob("*"))
    refused = CliRunner().invoke(main, ["init"])
    assert refused.exit_code == 2 and "jobs/orders.py" in refused.stderr
    assert sorted(folder.rglob("*")) == before
    assert (folder / "jobs" / "orders.py").read_text() == "mine"
    (folder / "jobs" / "orders.py").unlink()
    assert CliRunner().invoke(main, ["init"]).exit_code == 0
    assert (folder / "notes.txt").read_text() == "mine, too"
