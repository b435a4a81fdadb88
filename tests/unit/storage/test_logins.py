"""Object stores by Airflow connections: what becomes of each, and what is refused."""

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
from onceonly.settings import Settings
from onceonly.storage import logins
from onceonly.storage.logins import AZURE, GOOGLE, LOGINS, StoreLogin

SECRET = "5ecr/et+key="
AZURE_VARIABLES = {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_ACCOUNT_KEY": SECRET}
GOOGLE_VARIABLES = {"GOOGLE_SERVICE_ACCOUNT": "/keys/lake.json"}
FORMS = {
    AZURE: [
        (json.dumps({"conn_type": "wasb", "login": "ours", "password": SECRET}), AZURE_VARIABLES),
        (f"wasb://ours:{quote(SECRET, safe='')}@", AZURE_VARIABLES),
        (
            json.dumps({"conn_type": "wasb", "login": "ours", "extra": {"sas_token": SECRET}}),
            {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_SAS_TOKEN": SECRET},
        ),
    ],
    GOOGLE: [
        (
            json.dumps({"conn_type": "google_cloud_platform", "extra": {"key_path": "/keys/lake.json"}}),
            GOOGLE_VARIABLES,
        ),
        (json.dumps({"conn_type": "google_cloud_platform"}), {}),
    ],
}


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test takes up is forgotten after it."""
    for name in (*AZURE.credentials, *AZURE.exported, *GOOGLE.credentials):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("login", "form"), [(login, form) for login, forms in FORMS.items() for form in forms])
def test_a_connection_is_read_as_airflow_reads_it(
    login: StoreLogin, form: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, expected = form
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    monkeypatch.setenv(login.setting, "lake")
    taken: list[Any] = []

    def use_connection(conn_id: str, settings: Any) -> None:
        taken.append(login.to_variables(conn_id, settings))

    monkeypatch.setattr(login, "use_connection", use_connection)
    OnceonlyOperator(task_id="any").pre_execute({"ti": None})
    connections.log_in_to_stores()
    assert CliRunner().invoke(main, ["status"]).exit_code == 0
    assert taken == [expected] * 3


@pytest.mark.parametrize("login", LOGINS)
def test_a_driver_elsewhere_is_given_what_a_connection_has_set_and_nothing_without_one(login: StoreLogin) -> None:
    env = {**AZURE_VARIABLES, **GOOGLE_VARIABLES, "AWS_ACCESS_KEY_ID": "AKIA", "HOME": "/root"}
    given = logins.export_variables(Settings.from_env({login.setting: "lake"}).store_connections, env)
    prefix = login.setting.split("_")[1]
    assert given == {name: value for name, value in env.items() if name.startswith(prefix)} != {}
    assert logins.export_variables(Settings.from_env({}).store_connections, env) == {}


def test_a_key_takes_the_place_of_all_others_and_without_one_the_usual_chain_counts() -> None:
    env = {"AZURE_STORAGE_SAS_TOKEN": "old", "HOME": "/root"}
    AZURE.use_connection("lake", {"login": "ours"}, env)
    assert env == {"AZURE_STORAGE_SAS_TOKEN": "old", "AZURE_STORAGE_ACCOUNT_NAME": "ours", "HOME": "/root"}
    AZURE.use_connection("lake", {"login": "ours", "password": SECRET}, env)
    assert env == {**AZURE_VARIABLES, "HOME": "/root"}
    GOOGLE.use_connection("lake", {"key_path": "/keys/lake.json"}, env)
    assert env == {**AZURE_VARIABLES, **GOOGLE_VARIABLES, "HOME": "/root"}


@pytest.mark.parametrize(
    ("store", "settings"),
    [
        *((AZURE, {"login": "ours", name: SECRET}) for name in AZURE.AIRFLOW_ONLY),
        (AZURE, {"password": SECRET}),
        (AZURE, {"login": "ours", "password": SECRET, "sas_token": SECRET}),
        *((GOOGLE, {name: SECRET}) for name in GOOGLE.AIRFLOW_ONLY),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_secret(store: Any, settings: dict[str, str]) -> None:
    env = {"HOME": "/root"}
    with raises(InvalidPipeline, "connection-unusable") as refused:
        store.use_connection("lake", settings, env)
    assert SECRET not in str(refused.value) and env == {"HOME": "/root"}


@pytest.mark.parametrize("login", LOGINS)
def test_a_command_whose_connection_is_missing_says_so(login: StoreLogin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(login.setting, "lake")
    ended = CliRunner().invoke(main, ["status", "--json"])
    told = json.loads(ended.stdout)
    assert (ended.exit_code, told["error"]) == (2, "InvalidPipeline")
    assert (
        "AIRFLOW_CONN_LAKE" in told["why"] and f"type '{login.kind}'" in told["todo"] and login.setting in told["todo"]
    )
