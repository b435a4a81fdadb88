"""S3 by an Airflow connection: what becomes of it, and what is refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from codes import raises

from onceonly.airflow import connections
from onceonly.airflow.base import OnceonlyOperator
from onceonly.cli import main
from onceonly.errors import InvalidPipeline
from onceonly.kafka import airflow_connections
from onceonly.settings import Settings
from onceonly.storage.logins import AWS, AWS_KEYS, executor_variables, export_variables

SECRET = "5ecr/et+key="
KEYS = {AWS.KEY: "AKIA", AWS.SECRET: SECRET}
EXTRA = {"region_name": "eu-west-1", "endpoint_url": "http://minio:9000"}
TAKEN_UP = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "eu-west-1",
    "AWS_ENDPOINT_URL": "http://minio:9000",
    "AWS_ALLOW_HTTP": "true",
}
FORMS = [
    json.dumps({"conn_type": "aws", "login": "AKIA", "password": SECRET, "extra": EXTRA}),
    json.dumps({"conn_type": "aws", "extra": json.dumps({**EXTRA, **KEYS})}),
    f"aws://AKIA:{quote(SECRET, safe='')}@/?__extra__={quote(json.dumps(EXTRA), safe='')}",
]


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test takes up is forgotten after it."""
    for name in (*AWS.VARIABLES.values(), "AWS_ALLOW_HTTP"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize("text", FORMS)
def test_a_connection_is_read_as_airflow_reads_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    monkeypatch.setenv("ONCEONLY_AWS_CONNECTION", "lake")
    assert (
        AWS.to_variables("lake", AWS.merge_settings(*airflow_connections.read_store_connection("lake", "", "aws")))
        == TAKEN_UP
    )
    taken: list[Any] = []
    monkeypatch.setattr(AWS, "use_connection", lambda name, settings: taken.append(AWS.to_variables(name, settings)))
    OnceonlyOperator(task_id="any").pre_execute({"ti": None})
    connections.log_in_to_stores()
    assert taken == [TAKEN_UP, TAKEN_UP]


def test_keys_of_a_connection_take_the_place_of_all_others() -> None:
    env = {"AWS_PROFILE": "dev", "AWS_SESSION_TOKEN": "old", "AWS_REGION": "us-east-1", "HOME": "/root"}
    AWS.use_connection("lake", {**EXTRA, **KEYS}, env)
    assert env == {**TAKEN_UP, "HOME": "/root"}


def test_without_keys_the_usual_chain_counts() -> None:
    env = {"AWS_PROFILE": "dev"}
    AWS.use_connection("lake", {"region_name": "eu-west-1"}, env)
    assert env == {"AWS_PROFILE": "dev", "AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "https://s3.example.com"])
def test_beside_an_endpoint_the_chain_has_to_be_asked_for(endpoint: str) -> None:
    """delta-rs would take keys of the environment or none."""
    found = AWS.to_variables("lake", {"endpoint_url": endpoint, AWS.PROFILE: "dev"})
    assert found["AWS_FORCE_CREDENTIAL_LOAD"] == "true"
    assert ("AWS_ALLOW_HTTP" in found) == endpoint.startswith("http:")
    assert "AWS_FORCE_CREDENTIAL_LOAD" not in AWS.to_variables("lake", {"endpoint_url": endpoint, **KEYS})


def test_without_a_connection_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEONLY_AWS_CONNECTION", raising=False)
    monkeypatch.setattr(connections, "_require_connection", lambda conn_id: pytest.fail(conn_id))
    connections.log_in_to_stores()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**KEYS, "role_arn": "arn:aws:iam::1:role/lake"}, "names a role"),
        ({AWS.KEY: "AKIA"}, "only one of"),
        ({AWS.SECRET: SECRET}, "only one of"),
        ({**KEYS, AWS.PROFILE: "dev"}, "give only one of them"),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_secret(settings: dict[str, str], why: str) -> None:
    env: dict[str, str] = {"AWS_PROFILE": "dev"}
    with raises(InvalidPipeline, "connection-unusable") as refused:
        AWS.use_connection("lake", settings, env)
    assert why in refused.value.why and len(str(refused.value).splitlines()) == 3
    assert SECRET not in str(refused.value)
    assert env == {"AWS_PROFILE": "dev"}


@pytest.mark.parametrize("text", ["", "{", '{"extra": "{secret"}'])
def test_a_command_whose_connection_is_missing_says_so(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEONLY_AWS_CONNECTION", "lake")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    ended = CliRunner().invoke(main, ["status", "--json"])
    told = json.loads(ended.stdout)
    assert (ended.exit_code, told["error"]) == (2, "InvalidPipeline")
    assert "AIRFLOW_CONN_LAKE" in told["why"] and "type 'aws'" in told["todo"]
    assert "secret" not in ended.output


def test_a_command_uses_its_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ONCEONLY_AWS_CONNECTION", "lake")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", FORMS[0])
    monkeypatch.setenv("ONCEONLY_HOME", str(tmp_path))
    taken: list[Any] = []

    def use_connection(conn_id: str, settings: Any) -> None:
        taken.append((conn_id, AWS.to_variables(conn_id, settings)))

    monkeypatch.setattr(AWS, "use_connection", use_connection)
    assert CliRunner().invoke(main, ["status"]).exit_code == 0
    assert taken == [("lake", TAKEN_UP)]


REACHED = {**{name: "…" for name in AWS_KEYS}, "AWS_ENDPOINT_URL": "http://here"}


def test_an_executor_is_handed_keys_for_what_is_on_s3_alone() -> None:
    env = {**REACHED, "HOME": "/root"}
    assert executor_variables("s3://lake/spool", env) == REACHED
    assert executor_variables("/lake/spool", env) == {}
    assert executor_variables("s3://lake/spool", {"AWS_PROFILE": "dev"}) == {}


def test_an_executor_is_handed_keys_for_what_is_on_azure_and_the_path_of_google_s() -> None:
    env = {
        "AZURE_STORAGE_ACCOUNT_NAME": "ours",
        "AZURE_STORAGE_ACCOUNT_KEY": "hidden",
        "GOOGLE_SERVICE_ACCOUNT": "/key",
    }
    assert executor_variables("gs://lake/spool", env) == {"GOOGLE_SERVICE_ACCOUNT": env.pop("GOOGLE_SERVICE_ACCOUNT")}
    assert executor_variables("az://lake/spool", env) == env


def test_a_worker_drops_the_credentials_of_other_work() -> None:
    worker = {"AWS_PROFILE": "dev", "AWS_SESSION_TOKEN": "old", "HOME": "/root"}
    AWS.use_variables(REACHED, worker)
    assert worker == {**REACHED, "HOME": "/root"}


def test_a_driver_elsewhere_is_given_what_the_connection_has_set() -> None:
    conn_ids = Settings.from_env({"ONCEONLY_AWS_CONNECTION": "lake"}).store_connections
    assert export_variables(conn_ids, {**REACHED, "HOME": "/root"}) == REACHED
    assert export_variables(Settings.from_env({}).store_connections, REACHED) == {}
