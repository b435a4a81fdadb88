"""Which of Spark's settings are secret, and how they reach spark-submit without being shown."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from codes import raises

from onceonly import redaction
from onceonly.dev.services.spark import TOKEN, SparkConnect
from onceonly.errors import InvalidPipeline
from onceonly.redaction import hide_credentials

KEY = "spark.hadoop.fs.s3a.secret.key"


@pytest.fixture(autouse=True)
def airflow_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Airflow writes its configuration; not to the home of whoever runs the tests."""
    if "AIRFLOW_HOME" not in os.environ:
        monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))


# ---- which


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (KEY, "k"),
        ("spark.hadoop.fs.s3a.access.key", "k"),
        ("spark.hadoop.fs.s3a.session.token", "k"),
        ("spark.ssl.keyStorePassword", "k"),
        ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "k"),
        ("spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net", "k"),
        ("spark.driver.extraJavaOptions", "-Xss4m -Djavax.net.ssl.trustStorePassword=k"),
        ("spark.kafka.jaas", 'LoginModule required username="u" password="k";'),
        ("spark.sql.catalog.db.url", "jdbc:postgresql://user:k@host/db"),
    ],
)
def test_what_is_secret(key: str, value: str) -> None:
    assert redaction.secret({key: value, "spark.cores.max": "2"}) == {key: value}
    assert redaction.public({key: value, "spark.cores.max": "2"}) == {"spark.cores.max": "2"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.endpoint", "https://s3.example.com:443"),
        ("spark.hadoop.fs.s3a.aws.credentials.provider", "com.amazonaws.auth.WebIdentityTokenCredentialsProvider"),
        ("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -Dlog.level=INFO"),
        ("spark.security.token.enabled", "False"),
        ("spark.serializer", "org.apache.spark.serializer.KryoSerializer"),
    ],
)
def test_what_is_not(key: str, value: str) -> None:
    assert redaction.secret({key: value}) == {}


def test_a_password_in_an_address_may_hold_an_at_sign() -> None:
    assert (
        hide_credentials("no answer of hdfs://user:p@ss@namenode:8020/lake")
        == "no answer of hdfs://…@namenode:8020/lake"
    )


# ---- the file


def read(text: str) -> dict[str, str]:
    """As java.util.Properties does, as far as it is used."""
    pairs = (line.split("=", 1) for line in text.splitlines())
    return {unescaped(key): unescaped(value) for key, value in pairs}


def unescaped(text: str) -> str:
    units = re.sub(r"\\u([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("in_memory", [True, False])
def test_only_this_user_can_read_the_file_and_nothing_stays_of_it(
    in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onceonly.runtime.child_process import hidden_properties

    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    conf = {KEY: "a=b:c d\\e#!ü𝄞\n'\"$", "spark.ssl.keyPassword": " "}
    with hidden_properties(conf) as made:
        flag, path, defaults = made.arguments
        assert (flag, defaults) == ("--properties-file", "--load-spark-defaults")
        file = Path(path)
        assert file.is_file()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert read(file.read_text()) == read(file.read_text()) == conf  # the launcher and Spark read it
        assert len(made.inherited) == in_memory
        assert len(list(tmp_path.glob("onceonly-*"))) == (not in_memory)
    assert not file.exists()


def test_without_secrets_there_is_no_file() -> None:
    from onceonly.runtime.child_process import hidden_properties

    with hidden_properties({}) as made:
        assert not made.arguments
        assert not made.inherited


# ---- the connection


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Sets the Airflow connection 'spark'; answers what it means."""
    from onceonly.airflow import connections

    def connect(host: str, conf: dict[str, str], **more: Any) -> Any:
        extra = {"conf": conf, **more.pop("extra", {})}
        monkeypatch.setenv(
            "AIRFLOW_CONN_SPARK", json.dumps({"conn_type": "spark", "host": host, "extra": extra} | more)
        )
        return connections.read_spark_connection("spark")

    return connect


def test_arguments_show_no_secret(connect: Any, tmp_path: Path) -> None:
    from onceonly.runtime import spark_submit
    from onceonly.settings import Settings

    spark = connect("spark://master", {KEY: "the-secret", "spark.cores.max": "2"})
    arguments = spark_submit.build_client_arguments(
        spark, Settings.from_env({"ONCEONLY_PROJECT": str(tmp_path)}), "stage", ["p", "1"]
    )
    assert "spark.cores.max=2" in arguments
    assert "the-secret" not in str(arguments)
    assert "the-secret" not in repr(spark)
    assert spark.conf[KEY] == "the-secret"


def test_secrets_for_a_driver_on_the_cluster_are_refused(connect: Any) -> None:
    cluster = {"deploy-mode": "cluster"}
    with raises(InvalidPipeline, "secret-visible", match=rf"(?s){re.escape(KEY)}.*spark-defaults\.conf") as caught:
        connect("spark://master", {KEY: "the-secret"}, extra=cluster)
    assert "the-secret" not in str(caught.value)
    assert connect("spark://master", {"spark.cores.max": "2"}, extra=cluster).cluster == "http://master:6066"


def test_secrets_that_would_be_arguments_of_a_jvm_are_refused(connect: Any) -> None:
    key = "spark.executor.extraJavaOptions"
    with raises(InvalidPipeline, "secret-visible", match=rf"(?s){re.escape(key)}.*Java process.*'@'") as caught:
        connect("spark://master", {key: "-Dkey.password=the-secret"})
    assert "the-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("host", "remote"),
    [
        ("sc://there", "sc://there:15002/;token=a%2Fb%3Bc"),
        ("sc://there/;use_ssl=true", "sc://there/;use_ssl=true;token=a%2Fb%3Bc"),
    ],
)
def test_the_password_of_a_connect_server_is_its_token(connect: Any, host: str, remote: str) -> None:
    port = {} if ";" in host else {"port": 15002}
    found = connect(host, {}, password="a/b;c", **port)
    assert found.remote == remote
    assert "token" not in repr(found)


# ---- the embedded Connect server


def test_each_start_draws_a_token_that_only_this_user_can_read(tmp_path: Path) -> None:
    server = SparkConnect(tmp_path, 0)
    server.folder.mkdir(parents=True)
    assert server.token() is None
    tokens = set()
    for _ in range(2):
        command = server.command(1)
        token = server.token() or ""
        assert len(token) > 30
        assert token not in " ".join(command)
        assert server.environment()[TOKEN] == token
        assert stat.S_IMODE((server.folder / "token").stat().st_mode) == 0o600
        tokens.add(token)
    assert len(tokens) == 2


@pytest.mark.parametrize(
    ("remote", "found"),
    [
        ("sc://localhost:15002", "sc://localhost:15002/;token=drawn"),
        ("sc://127.0.0.1:15002/", "sc://localhost:15002/;token=drawn"),
        ("sc://localhost", "sc://localhost:15002/;token=drawn"),
        ("sc://localhost:15003", "sc://localhost:15003"),
        ("sc://elsewhere:15002", "sc://elsewhere:15002"),
        ("sc://localhost:15002/;token=mine", "sc://localhost:15002/;token=mine"),
    ],
)
def test_a_token_is_sent_to_the_server_of_this_home_and_to_no_other(tmp_path: Path, remote: str, found: str) -> None:
    from onceonly.spark import connect

    (tmp_path / "services" / "spark").mkdir(parents=True)
    (tmp_path / connect.TOKEN_FILE).write_text("drawn")
    assert connect.address(remote, tmp_path) == remote
    (tmp_path / "services.json").write_text(json.dumps({"kafka": "localhost:1", "spark": None}))
    assert connect.address(remote, tmp_path) == remote
    (tmp_path / "services.json").write_text(json.dumps({"kafka": "localhost:1", "spark": "sc://localhost:15002"}))
    assert connect.address(remote, tmp_path) == found
