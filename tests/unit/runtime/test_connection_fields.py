"""The fields of a connection to Spark mean what they mean to Airflow's own Spark provider, and none is ignored."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from codes import raises

from onceonly.airflow import connections
from onceonly.errors import InvalidPipeline
from onceonly.runtime import spark_connection, spark_submit
from onceonly.runtime.spark_connection import SparkConnection, parse_connection
from onceonly.settings import Settings

CLUSTER = {"deploy-mode": "cluster"}
YARN = {**CLUSTER, "yarn_resourcemanager_webapp_address": "http://rm:8088"}
CONTENT = b"\x05\x02\x00\x00\x00\x4d" + bytes(range(200))
ENCODED = base64.b64encode(CONTENT).decode()


def connect(host: str | None, extra: dict[str, Any], port: int | None = None, **more: Any) -> SparkConnection:
    return parse_connection("spark", host, port, None, extra, **more)


# ---- where it is


@pytest.mark.parametrize(
    ("uri", "master"),
    [
        ("spark://there:7077", "spark://there:7077"),
        ("spark://local%5B2%5D", "local[2]"),
        ("spark://yarn", "yarn"),
        ("yarn://", "yarn"),
        ("k8s://https%3A%2F%2Fapi:6443", "k8s://https://api:6443"),
        ('{"conn_type": "spark", "host": "spark://there", "port": 7077}', "spark://there:7077"),
        ('{"conn_type": "spark", "host": "k8s://https://api:6443"}', "k8s://https://api:6443"),
        ('{"conn_type": "k8s", "host": "k8s://https://api:6443"}', "k8s://https://api:6443"),
        ('{"conn_type": "generic", "host": "local[2]"}', "local[2]"),
    ],
)
def test_a_master_as_the_provider_reads_it(monkeypatch: pytest.MonkeyPatch, uri: str, master: str) -> None:
    """Of a connection that is given as a URI, the type is the scheme of its master."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", uri)
    assert connections.read_spark_connection("spark").master == master


def test_the_fields_of_a_connect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"conn_type": "spark_connect", "host": "there", "port": 15002, "login": "etl", "password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK", json.dumps({**given, "extra": {"use_ssl": True}}))
    assert connections.read_spark_connection("spark").remote == "sc://there:15002/;user_id=etl;use_ssl=true;token=hush"
    assert connect("there", {"use_ssl": False}, kind="sc").remote == "sc://there"


def test_the_rest_server_of_a_master(monkeypatch: pytest.MonkeyPatch) -> None:
    tls = {**CLUSTER, "rest-scheme": "https", "rest-port": "6443"}
    assert connect("spark://there:7077", tls).cluster == "https://there:6443"
    assert connect("spark://there:7077", {**CLUSTER, "rest-scheme": "", "rest-port": ""}).cluster == "http://there:6066"
    with raises(InvalidPipeline, "spark-connection-invalid", match="rest-scheme 'ftp'"):
        connect("spark://there:7077", {**CLUSTER, "rest-scheme": "ftp"})


# ---- what makes no difference


@pytest.mark.parametrize("field", ["deploy_mode", "extra__spark__queue", "spark-home"])
def test_a_field_that_nobody_would_read_is_refused(field: str) -> None:
    with raises(InvalidPipeline, "spark-connection-invalid", match=rf"(?s){field}\..*deploy-mode"):
        connect("yarn", {field: "cluster"})


def test_another_spark_submit_than_ours_is_refused() -> None:
    assert connect("yarn", {"spark-binary": "spark-submit"}) == SparkConnection("yarn")
    with raises(InvalidPipeline, "spark-connection-invalid", match=r"spark3-submit"):
        connect("yarn", {"spark-binary": "spark3-submit"})


def test_settings_that_are_no_object_are_refused() -> None:
    assert connect("yarn", {"conf": None}).conf == {}
    with raises(InvalidPipeline, "spark-connection-invalid", match="'conf'"):
        connect("yarn", {"conf": '{"spark.cores.max": 2}'})


@pytest.mark.parametrize("setting", ["spark.master", "spark.remote", "spark.submit.deployMode"])
def test_settings_do_not_say_where_spark_is(setting: str) -> None:
    """Drivers would be where nobody looks for them, and nobody ends them."""
    with raises(InvalidPipeline, "spark-connection-invalid", match=setting):
        connect("yarn", {"conf": {setting: "cluster"}})


def test_a_driver_in_this_process_group_is_one_whatever_the_defaults_say(tmp_path: Path) -> None:
    """Else spark-submit takes the mode of spark-defaults.conf, and its driver outlives the task."""
    said = spark_submit.build_client_arguments(
        connect("yarn", {}), Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}), "stage", []
    )
    assert "spark.submit.deployMode=client" in said


# ---- secrets


@pytest.mark.parametrize(
    ("host", "extra"),
    [
        ("spark://etl:hush@there:7077", {}),
        ("spark://etl:hush@there:7077", CLUSTER),
        ("k8s://https://etl:hush@api", CLUSTER),
        ("yarn", {**YARN, "yarn_resourcemanager_webapp_address": "http://rm:8088,http://etl:hush@rm2:8088"}),
        ("mesos://etl:hush@there", CLUSTER),
    ],
)
def test_a_login_in_an_address_is_refused(host: str, extra: dict[str, Any]) -> None:
    """It would be in the file that names a driver, in the trigger's row, in logs and in arguments."""
    with pytest.raises(InvalidPipeline) as caught:
        connect(host, extra)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("given", [ENCODED, base64.encodebytes(CONTENT).decode()], ids=["one line", "as base64 wraps"])
@pytest.mark.parametrize("extra", [{}, YARN], ids=["client", "cluster"])
def test_a_keytab_is_no_argument_but_a_file(tmp_path: Path, given: str, extra: dict[str, Any]) -> None:
    """The provider's form asks for `base64 etl.keytab`: whoever has that is who the keytab is of."""
    found = connect("yarn", {**extra, "principal": "etl@REALM", "keytab": given})
    file = Path(found.conf["spark.kerberos.keytab"])
    assert file.read_bytes() == CONTENT
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    said = str(
        spark_submit.build_client_arguments(
            found, Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}), "stage", ["p", "1"]
        )
    )
    assert f"spark.kerberos.keytab={file}" in said
    assert given not in said
    assert ENCODED not in said


def test_a_process_that_this_one_starts_can_read_it() -> None:
    file = connect("yarn", {"keytab": ENCODED}).conf["spark.kerberos.keytab"]
    assert subprocess.run(["cat", file], capture_output=True, check=True).stdout == CONTENT


def test_a_keytab_may_be_a_path() -> None:
    assert connect("yarn", {"keytab": "/etc/etl.keytab"}).conf == {"spark.kerberos.keytab": "/etc/etl.keytab"}
    assert not spark_connection.decode_keytab("/etc/etl/keytab")


@pytest.mark.parametrize("given", [ENCODED[4:], "mine.keytab"])
def test_what_is_neither_is_refused_and_not_shown(given: str) -> None:
    with raises(InvalidPipeline, "keytab-unusable") as caught:
        connect("yarn", {"keytab": given})
    assert given not in str(caught.value)


def test_no_keytab_travels_to_a_driver_of_a_standalone_master() -> None:
    with raises(InvalidPipeline, "keytab-unusable"):
        connect("spark://there:7077", {**CLUSTER, "keytab": ENCODED})


def test_a_keytab_is_masked_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    masked: list[str] = []
    monkeypatch.setattr(connections, "mask_secret", masked.append)
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": "yarn", "extra": {"keytab": ENCODED}})
    )
    connections.read_spark_connection("spark")
    assert masked == [ENCODED]
