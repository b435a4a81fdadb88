"""Object stores by Airflow connections: what becomes of each, and what is refused."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from onceonly.airflow import connections
from onceonly.airflow.base import OnceonlyOperator
from onceonly.cli import main
from onceonly.errors import InvalidPipeline
from onceonly.settings import Settings
from onceonly.storage import azure_login, google_login, logins

SECRET = "5ecr/et+key="
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_ACCOUNT_KEY": SECRET}
GOOGLE = {"GOOGLE_SERVICE_ACCOUNT": "/keys/lake.json"}
FORMS = {
    "azure_connection": [
        (json.dumps({"conn_type": "wasb", "login": "ours", "password": SECRET}), AZURE),
        (f"wasb://ours:{quote(SECRET, safe='')}@", AZURE),
        (
            json.dumps({"conn_type": "wasb", "login": "ours", "extra": {"sas_token": SECRET}}),
            {"AZURE_STORAGE_ACCOUNT_NAME": "ours", "AZURE_STORAGE_SAS_TOKEN": SECRET},
        ),
    ],
    "google_connection": [
        (json.dumps({"conn_type": "google_cloud_platform", "extra": {"key_path": "/keys/lake.json"}}), GOOGLE),
        (json.dumps({"conn_type": "google_cloud_platform"}), {}),
    ],
}


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test takes up is forgotten after it."""
    for name in (*azure_login.CREDENTIALS, azure_login.NAME, *google_login.FILES):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("attribute", "form"), [(name, form) for name, forms in FORMS.items() for form in forms])
def test_a_connection_is_read_as_airflow_reads_it(attribute: str, form: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    text, expected = form
    variable, _, store = logins.STORES[attribute]
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    monkeypatch.setenv(variable, "lake")
    taken: list[Any] = []
    monkeypatch.setattr(store, "take_up", lambda name, settings: taken.append(store.variables(name, settings)))
    OnceonlyOperator(task_id="any").pre_execute({})
    connections.use_stores()
    assert CliRunner().invoke(main, ["status"]).exit_code == 0
    assert taken == [expected] * 3


@pytest.mark.parametrize("attribute", list(logins.STORES))
def test_a_driver_elsewhere_is_given_what_a_connection_has_set_and_nothing_without_one(attribute: str) -> None:
    env = {**AZURE, **GOOGLE, "AWS_ACCESS_KEY_ID": "AKIA", "HOME": "/root"}
    variable = logins.STORES[attribute][0]
    given = logins.taken_up(Settings.from_env({variable: "lake"}), env)
    prefix = attribute.partition("_")[0].upper()
    assert given == {name: value for name, value in env.items() if name.startswith(prefix)} != {}
    assert logins.taken_up(Settings.from_env({}), env) == {}


def test_a_key_takes_the_place_of_all_others_and_without_one_the_usual_chain_counts() -> None:
    env = {"AZURE_STORAGE_SAS_TOKEN": "old", "HOME": "/root"}
    azure_login.take_up("lake", {"login": "ours"}, env)
    assert env == {"AZURE_STORAGE_SAS_TOKEN": "old", "AZURE_STORAGE_ACCOUNT_NAME": "ours", "HOME": "/root"}
    azure_login.take_up("lake", {"login": "ours", "password": SECRET}, env)
    assert env == {**AZURE, "HOME": "/root"}
    google_login.take_up("lake", {"key_path": "/keys/lake.json"}, env)
    assert env == {**AZURE, **GOOGLE, "HOME": "/root"}


@pytest.mark.parametrize(
    ("store", "settings"),
    [
        *((azure_login, {"login": "ours", name: SECRET}) for name in azure_login.AIRFLOW_ONLY),
        (azure_login, {"password": SECRET}),
        (azure_login, {"login": "ours", "password": SECRET, "sas_token": SECRET}),
        *((google_login, {name: SECRET}) for name in google_login.AIRFLOW_ONLY),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_secret(store: Any, settings: dict[str, str]) -> None:
    env = {"HOME": "/root"}
    with pytest.raises(InvalidPipeline, match="cannot be used") as refused:
        store.take_up("lake", settings, env)
    assert SECRET not in str(refused.value) and env == {"HOME": "/root"}


@pytest.mark.parametrize("attribute", list(logins.STORES))
def test_a_command_whose_connection_is_missing_says_so(attribute: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variable, kind, _ = logins.STORES[attribute]
    monkeypatch.setenv(variable, "lake")
    ended = CliRunner().invoke(main, ["status", "--json"])
    told = json.loads(ended.stdout)
    assert (ended.exit_code, told["error"]) == (2, "InvalidPipeline")
    assert "AIRFLOW_CONN_LAKE" in told["why"] and f"type '{kind}'" in told["todo"] and variable in told["todo"]
