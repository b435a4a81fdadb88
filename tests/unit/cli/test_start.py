"""What a command imports before it answers: looking at a small state table takes no engine and no client."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from unit.world import Durable

import onceonly

HEAVY = {"airflow", "confluent_kafka", "great_expectations", "kafka", "pandas", "psutil", "pyspark", "requests"}
SLOW = {"pyarrow.compute", "pyarrow.dataset", "pyarrow.fs", "pyarrow.parquet", "importlib.metadata", "rich.progress"}
CODE = """
import json, sys
from onceonly.cli import main
try:
    main(sys.argv[1:])
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.__stderr__)
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("home")
    Durable(found).run("run-1")
    return found


def imported(home: Path, *command: str) -> set[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCEONLY_", "SPARK_"))}
    env = {**kept, "ONCEONLY_HOME": str(home), "PYTHONPATH": str(Path(onceonly.__file__).parents[1])}
    told = subprocess.run(
        [sys.executable, "-c", CODE, *command], env=env, check=True, capture_output=True, text=True, timeout=PATIENCE
    )
    assert "flights" in told.stdout
    return set(json.loads(told.stderr.splitlines()[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["status"], ["status", "flights"], ["status", "--json"], ["describe", "flights", "1"]]
)
def test_looking_imports_nothing_heavy(home: Path, command: list[str]) -> None:
    found = imported(home, *command)
    assert sorted(found & HEAVY) == []
    if command[0] == "status":
        assert sorted(found & SLOW) == []


@pytest.mark.slow
def test_a_command_does_not_import_the_others(home: Path) -> None:
    ours = {name.removeprefix("onceonly.cli.") for name in imported(home, "status") if name.startswith("onceonly.cli.")}
    assert ours == {"app", "console", "status", "wait_line"}


LOADED = """
import sys
from pathlib import Path
from onceonly.runtime import pipeline_file
print(pipeline_file.load_without_dags(sys.argv[1], Path.cwd()).name, "airflow" in sys.modules)
dag = sys.modules["onceonly_target_" + Path(sys.argv[1].partition(":")[0]).stem].dag
print(type(dag).__name__, dag.dag_id)
with dag as made:
    print(sorted(made.task_ids), "airflow" in sys.modules)
"""


@pytest.mark.slow
def test_a_run_takes_the_pipeline_of_a_dag_file_without_airflow(airflow_home: None) -> None:
    """Its DAG is made as soon as something is asked of it."""
    root = Path(onceonly.__file__).parents[2]
    told = subprocess.run(
        [sys.executable, "-c", LOADED, "dags/flights.py:flights"],
        cwd=root, check=True, capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(Path(onceonly.__file__).parents[1])},
    ).stdout.splitlines()  # fmt: skip
    assert told == ["flights False", "UnbuiltDag flights", "['abort', 'commit', 'plan', 'stage'] True"]


@pytest.mark.slow
def test_a_file_that_imports_airflow_has_its_dag_at_once(tmp_path: Path, airflow_home: None) -> None:
    root = Path(onceonly.__file__).parents[2]
    text = (root / "dags" / "flights.py").read_text()
    (tmp_path / "own.py").write_text(f"import airflow\n{text}")
    told = subprocess.run(
        [sys.executable, "-c", LOADED, f"{tmp_path}/own.py:flights"],
        cwd=root, check=True, capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "PYTHONPATH": str(Path(onceonly.__file__).parents[1])},
    ).stdout.splitlines()  # fmt: skip
    assert told[1] == "DAG flights"


def test_start_says_who_has_the_usual_port(monkeypatch: pytest.MonkeyPatch) -> None:
    from onceonly.cli import services
    from onceonly.dev.services import machine

    monkeypatch.setattr(machine, "is_free", lambda port: port != 19092)
    assert services._describe_taken_port("127.0.0.1:19092") == ""
    assert "19092" in services._describe_taken_port("127.0.0.1:41569")
    monkeypatch.setattr(machine, "is_free", lambda port: True)
    assert services._describe_taken_port("127.0.0.1:41569") == ""
