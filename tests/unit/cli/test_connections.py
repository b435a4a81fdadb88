"""Commands look where tasks look: the environment first, then whoever provides `onceonly.connections`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from patience import PATIENCE

from onceonly.airflow import outside_tasks
from onceonly.cli import connections, main
from onceonly.errors import InvalidPipeline, NotCommitted

VARIABLE = "AIRFLOW_CONN_KAFKA_EV"
EXTRA = {"bootstrap.servers": "b:9092"}
JSON = '{"conn_type": "generic", "extra": {"bootstrap.servers": "b:9092"}}'


class Provider:
    """An entry point whose function answers by `answer`, and remembers what it was asked."""

    def __init__(self, answer: Callable[[], tuple[str | None, str]]) -> None:
        self.answer, self.asked = answer, list[str]()

    def load(self) -> Any:
        return self

    def __call__(self, conn_id: str) -> tuple[str | None, str]:
        self.asked.append(conn_id)
        return self.answer()


@pytest.fixture
def provide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Provider]]:
    def use(*answers: Callable[[], tuple[str | None, str]]) -> list[Provider]:
        providers = [Provider(answer) for answer in answers]
        monkeypatch.setattr(connections, "entry_points", lambda group: providers)
        monkeypatch.setenv(VARIABLE, "")
        return providers

    return use


def test_environment_comes_first(provide: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (provider,) = provide(lambda: (None, "never asked"))
    monkeypatch.setenv(VARIABLE, JSON)
    assert connections.read_extra("kafka_ev") == EXTRA
    assert provider.asked == []


def test_what_a_provider_knows_is_asked_for_once(provide: Any) -> None:
    first, second, third = provide(lambda: (None, "unknown"), lambda: (JSON, ""), lambda: (None, "unknown"))
    for _ in range(2):
        assert connections.read_extra("kafka_ev") == EXTRA
    assert (first.asked, second.asked, third.asked) == (["kafka_ev"], ["kafka_ev"], [])


def test_stores_ask_too(provide: Any) -> None:
    provide(lambda: ('{"conn_type": "aws", "login": "key", "password": "s3cret"}', ""))
    found = connections.read_store_connection("kafka_ev", "ONCEONLY_AWS_CONNECTION", "aws")
    assert found == ({}, "key", "s3cret")


@pytest.mark.parametrize(
    "read",
    [connections.read_extra, lambda id: connections.read_store_connection(id, "ONCEONLY_AWS_CONNECTION", "aws")],
)
def test_missing_one_says_where_it_was_looked_for(provide: Any, read: Callable[[str], Any]) -> None:
    provide(lambda: (None, "Airflow has none."))
    with pytest.raises(InvalidPipeline) as caught:
        read("kafka_ev")
    assert caught.value.code == "connection-missing"
    assert VARIABLE in caught.value.why and "Airflow has none." in caught.value.why


def test_unknown_is_not_missing(provide: Any) -> None:
    def fail() -> tuple[str | None, str]:
        raise NotCommitted("not known.", "No answer.", code="connection-unanswered")

    provide(fail)
    with pytest.raises(NotCommitted) as caught:
        connections.read_extra("kafka_ev")
    assert caught.value.code == "connection-unanswered"
    assert VARIABLE in caught.value.why and "No answer." in caught.value.why
    assert caught.value.why in str(caught.value)


def test_another_provider_may_know_it(provide: Any) -> None:
    def fail() -> tuple[str | None, str]:
        raise NotCommitted("not known.", "No answer.", code="connection-unanswered")

    provide(fail, lambda: (JSON, ""))
    assert connections.read_extra("kafka_ev") == EXTRA


@pytest.mark.parametrize("is_installed", [False, True])
def test_no_airflow_here_is_not_missing(is_installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(outside_tasks.CONFIGURATION_PREFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    if not is_installed:
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
        monkeypatch.setattr(outside_tasks, "find_spec", lambda name: None)
    with pytest.raises(InvalidPipeline) as caught:
        outside_tasks.find_connection("kafka_ev")
    assert caught.value.code == "connection-unanswered"
    assert ("not installed" in caught.value.why) is not is_installed


def test_airflow_is_not_imported_for_what_the_environment_has(tmp_path: Path) -> None:
    """Nor is the module that would ask it."""
    code = (
        "import sys; from onceonly.cli import connections; connections.read_extra('kafka_ev'); "
        "print([name for name in sys.modules if name.startswith(('airflow', 'onceonly.airflow'))])"
    )
    env = {**os.environ, VARIABLE: JSON, "AIRFLOW_HOME": str(tmp_path / "airflow")}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.strip() == "[]", done.stderr
    assert not (tmp_path / "airflow").exists()


def test_commands_that_read_no_store_ask_for_no_connection(provide: Any) -> None:
    (provider,) = provide(lambda: (None, "unknown"))
    env = {"ONCEONLY_AWS_CONNECTION": "kafka_ev"}
    explained = CliRunner().invoke(main, ["explain", "connection-missing"], env=env)
    assert (explained.exit_code, provider.asked) == (0, [])
    refused = CliRunner().invoke(main, ["status", "--json"], env=env)
    assert (refused.exit_code, json.loads(refused.stdout)["code"]) == (2, "connection-missing")
    assert provider.asked == ["kafka_ev"]


def test_services_of_every_command_look_there() -> None:
    """A command that makes its own services without this lookup would read the environment only."""
    for module in sorted(Path(connections.__file__).parent.rglob("*.py")):
        for arguments in re.findall(r"\bLiveServices\((.*?)\)\n", module.read_text()):
            assert "connections.read_extra" in arguments, module
