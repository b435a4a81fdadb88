"""What commands find by themselves, and the files that their hints name."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceonly.cli import changing, main, target
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings

TWO = """
from onceonly import DeltaSink, KafkaSource, Pipeline
one, two = (
    Pipeline(name=name, source=KafkaSource("t"), transform="jobs.t:t", sinks=[DeltaSink("s", path="s")])
    for name in ("one", "two")
)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path


def found(project: Path, address: str, **env: str) -> str | None:
    (project / "home" / "services.json").write_text(json.dumps({"kafka": "127.0.0.1:1", "spark": address}))
    return changing.with_spark(Settings.from_env({"ONCEONLY_HOME": str(project / "home"), **env})).spark_remote


def test_the_spark_server_of_this_home_is_found(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"sc://localhost:{server.getsockname()[1]}"
        assert found(project, address) == address
        assert found(project, address, SPARK_REMOTE="sc://another:15002") == "sc://another:15002"
        assert not found(project, address, SPARK_REMOTE="")  # Spark in the process, as asked for
    assert found(project, address) is None  # it has died


def test_none_is_found_where_none_was_started(project: Path) -> None:
    settings = Settings.from_env({"ONCEONLY_HOME": str(project / "home")})
    assert changing.with_spark(settings) is settings


def test_hints_name_the_files_of_the_project(project: Path) -> None:
    assert "onceonly run FILE.py:NAME" in CliRunner().invoke(main, ["status"]).stdout
    (project / "dags").mkdir()
    (project / "dags" / "sales.py").write_text(TWO)
    assert "onceonly run dags/sales.py" in CliRunner().invoke(main, ["status"]).stdout
    with pytest.raises(InvalidPipeline, match=r"such as dags/sales\.py\."):
        target.load("dags/nowhere.py", project)
    with pytest.raises(InvalidPipeline, match=r"Use dags/sales\.py:one or dags/sales\.py:two\."):
        target.load("dags/sales.py", project)
