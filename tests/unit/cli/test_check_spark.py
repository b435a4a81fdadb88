"""`onceonly check` looks at the Spark of tasks, too: the Airflow connection `spark`, wherever it is found."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from codes import raises

from onceonly.cli import check, connections
from onceonly.errors import InvalidPipeline, NotCommitted
from onceonly.settings import Settings
from onceonly.spark import check as spark_check
from onceonly.spark import connect


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(spark_check, "notes", lambda settings: [])
    monkeypatch.setattr(connections, "entry_points", lambda group: [])
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", "")
    return Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)})


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def use(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", **fields}))


@pytest.mark.parametrize("host", ["spark://127.0.0.1", "sc://127.0.0.1"])
def test_server_of_the_connection_is_asked(
    settings: Settings, port: int, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions: list[str] = []
    monkeypatch.setattr(connect, "require_session", lambda remote, home: sessions.append(remote))
    use(monkeypatch, host=host, port=port, password="s3cret")
    with pytest.raises(InvalidPipeline) as caught:
        check._check_spark(settings)
    assert caught.value.code == "spark-unreachable" and "s3cret" not in str(caught.value)
    with socket.create_server(("127.0.0.1", port)):
        notes = check._check_spark(settings)
    assert notes[0] == f"Spark answers at {host}:{port}"
    assert sessions == ([f"sc://127.0.0.1:{port}/;token=s3cret"] if host.startswith("sc") else [])


def test_connection_for_this_process_is_not_asked(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, host="local[*]")
    assert check._check_spark(settings) == []


@pytest.mark.parametrize("text", ["{nothing", '{"host": "spark://h", "port": "many"}', "spark://h:port"])
def test_connection_that_cannot_be_read_is_refused(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", text)
    with pytest.raises(InvalidPipeline) as caught:
        check._check_spark(settings)
    assert caught.value.code == "spark-connection-invalid"


def test_airflow_that_cannot_be_asked_is_a_note(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(conn_id: str) -> str:
        raise NotCommitted("not known.", "The database does not answer.", code="connection-unanswered")

    monkeypatch.setattr(connections, "add_variable", fail)
    assert check._check_spark(settings) == ["the Spark of tasks was not checked: The database does not answer."]


def test_where_no_airflow_is_there_is_no_spark_of_tasks(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(conn_id: str) -> str:
        raise InvalidPipeline("not known.", "There is no Airflow here.", code="connection-unanswered")

    monkeypatch.setattr(connections, "add_variable", refuse)
    assert check._check_spark(settings) == []


@pytest.mark.parametrize(
    "call", ["checkpoint_dag(orders, schedule=timedelta(days=1), {})", "PlanOperator(pipeline=p.orders, {})"]
)
def test_connection_that_a_dag_file_names_is_checked(
    settings: Settings, tmp_path: Path, port: int, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of `spark`: in the folder of the pipeline's file, or in the one above it."""
    dags = tmp_path / "dags"
    (dags / "pipelines").mkdir(parents=True)
    (dags / "orders.py").write_text(f"dag = {call.format('spark_conn_id=SPARK')}\n")
    file = f"{dags}/pipelines/orders.py:orders"
    assert check._list_spark_connections(file, settings) == ["spark"]
    other = "checkpoint_dag(parcels, spark_conn_id='other')"
    (dags / "more.py").write_text(f"dag = {call.format('spark_conn_id=' + repr('big'))}\n{other}\n")
    assert check._list_spark_connections(file, settings) == ["big"]
    monkeypatch.setenv(
        "AIRFLOW_CONN_BIG", json.dumps({"conn_type": "spark", "host": "spark://127.0.0.1", "port": port})
    )
    with raises(InvalidPipeline, "spark-unreachable", "'big'"):
        check._check_spark(settings, check._list_spark_connections(file, settings))
