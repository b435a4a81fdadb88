"""onceonly init: what it writes, and what it leaves alone. That it runs is in tests/integration/test_wheel.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly.airflow import checkpoint_dag
from onceonly.cli import main
from onceonly.runtime import pipeline_file, transforms
from onceonly.settings import Settings

PIPELINE = "dags/pipelines/orders.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "orders"
    project.mkdir()
    monkeypatch.setenv("ONCEONLY_PROJECT", str(project))
    monkeypatch.delenv("ONCEONLY_HOME", raising=False)
    return project


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["shipments"], "shipments"),
        (["Web-Shop/"], "web_shop"),
        (["somewhere/else", "--name", "returns"], "returns"),
        (["2026", "--name", "y2026"], "y2026"),
    ],
)
def test_given_name_is_the_name_of_everything(
    arguments: list[str], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(main, ["init", *arguments])
    assert result.exit_code == 0 and f"onceonly run dags/pipelines/{name}.py" in result.stdout
    project = folder / arguments[0]
    pipeline = pipeline_file.load(f"dags/pipelines/{name}.py", project)
    (source,), (sink,) = pipeline.sources, pipeline.sinks
    assert (pipeline.name, source.input_name, sink.name, sink.path) == (name, name, name, f"lake/{name}")
    assert checkpoint_dag(pipeline, schedule="@hourly").dag_id == name
    assert f"from pipelines.{name} import {name}" in (project / "dags" / f"{name}.py").read_text()
    text = "".join(file.read_text() for file in project.rglob("*") if file.is_file() and file.suffix != ".pyc")
    assert "order" not in text and "$" not in text.replace("$PWD", "") and "NAME" not in text
    assert f'TOPIC, COUNT = "{name}"' in (project / "sample.py").read_text()


@pytest.mark.parametrize("name", ["2026", "class", "json", "recovery", "jobs", "deltalake", "a.b", "naïve", "a" * 64])
def test_name_that_no_module_can_have_is_refused(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for arguments in ([name], [".", "--name", name]):
        refused = CliRunner().invoke(main, ["init", *arguments, "--json"])
        assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (2, "name-invalid")
    assert list(folder.iterdir()) == []


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
