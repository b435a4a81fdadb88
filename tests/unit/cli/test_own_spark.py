"""The Spark server that commands find by themselves."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from onceonly.cli import environment
from onceonly.settings import Settings


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ONCEONLY_STATE", raising=False)
    monkeypatch.setenv("ONCEONLY_PROJECT", str(tmp_path))
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path


def found(project: Path, address: str, **env: str) -> str | None:
    (project / "home" / "services.json").write_text(json.dumps({"kafka": "127.0.0.1:1", "spark": address}))
    return environment.use_embedded_spark(
        Settings.from_env({"ONCEONLY_HOME": str(project / "home"), **env})
    ).spark_remote


def test_the_spark_server_of_this_home_is_found(project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"sc://localhost:{server.getsockname()[1]}"
        assert found(project, address) == address
        assert found(project, address, SPARK_REMOTE="sc://another:15002") == "sc://another:15002"
        assert not found(project, address, SPARK_REMOTE="")  # Spark in the process, as asked for
    assert found(project, address) is None  # it has died


def test_none_is_found_where_none_was_started(project: Path) -> None:
    settings = Settings.from_env({"ONCEONLY_HOME": str(project / "home")})
    assert environment.use_embedded_spark(settings) is settings
