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
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import DeltaSource
from onceonly.runtime import dag_files
from onceonly.runtime.dag_files import NamedConnections
from onceonly.settings import Settings
from onceonly.spark import check as spark_check
from onceonly.spark import connect

ORDERS = Pipeline(name="orders", source=DeltaSource("in"), transform="jobs:f", sinks=[DeltaSink("out", "out")])


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
    assert check._check_spark(settings) == ["the connections of tasks were not checked: The database does not answer."]


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
    found = dag_files.find_connections("orders", "orders", [dags])
    assert (found.all, found.unknown) == ({}, ("orders.py:1",))
    assert check._check_spark(settings, found) == [
        "orders.py:1 names a connection by an expression, which only Airflow can tell: it was not looked for"
    ]
    other = "checkpoint_dag(parcels, spark_conn_id='other')"
    (dags / "more.py").write_text(f"dag = {call.format('spark_conn_id=' + repr('big'))}\n{other}\n")
    monkeypatch.setenv(
        "AIRFLOW_CONN_BIG", json.dumps({"conn_type": "spark", "host": "spark://127.0.0.1", "port": port})
    )
    named = check._find_named_connections(f"{dags}/pipelines/orders.py:orders", ORDERS, settings)
    assert named.of_spark == {"big": "more.py:1"}
    with raises(InvalidPipeline, "spark-unreachable", "'big'"):
        check._check_spark(settings, named)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("StageOperator(pipeline='orders', spark_conn_id='a')", {"a"}),
        ("GateOperator(pipeline=orders.name, spark_conn_id='a')", {"a"}),
        ("CommitOperator(pipeline='parcels', spark_conn_id='a')", set()),
        ("GateOperator(pipeline=parcels.name, spark_conn_id='a')", set()),
        ("recovery_dag(spark_conn_id='a')", {"a"}),
        ("RecoverOperator(task_id='recover', spark_conn_id='{{ params.spark }}')", set()),
        (
            "f(orders, on_held=[WebhookNotifier('chat'), WebhookNotifier(conn_id='mail')])",
            {"chat", "mail"},
        ),
        ("print(spark_conn_id='a')", set()),
        ("not Python, with spark_conn_id", set()),
    ],
)
def test_each_connection_that_a_dag_file_names_is_found(tmp_path: Path, text: str, named: set[str]) -> None:
    (tmp_path / "dag.py").write_text(text)
    found = dag_files.find_connections("orders", "orders", [tmp_path])
    assert set(found.all) == named
    assert bool(found.unknown) == ("{{" in text)


@pytest.mark.parametrize("call", ["checkpoint_dag(orders, spark_conn_id='none')", "WebhookNotifier('none')"])
def test_named_connection_that_airflow_lacks_is_refused(
    settings: Settings, tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dag.py").write_text(call)
    found = dag_files.find_connections("orders", "orders", [tmp_path])
    monkeypatch.setattr(connections, "add_variable", lambda conn_id: "Airflow has no connection of that name, either.")
    with raises(InvalidPipeline, "connection-missing", "'none'") as refused:
        check._check_spark(settings, found)
    assert "dag.py:1 names it" in refused.value.why and "airflow connections add none" in refused.value.todo


def test_named_connection_is_not_known_where_no_airflow_is(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(conn_id: str) -> str:
        raise InvalidPipeline("not known.", "There is no Airflow here.", code="connection-unanswered")

    monkeypatch.setattr(connections, "add_variable", refuse)
    assert check._check_spark(settings, NamedConnections({"big": "dag.py:1"})) == [
        "whether the Airflow connection 'big' exists is not known here: There is no Airflow here."
    ]
