"""Secrets of the Spark connection reach a real Spark and no process's arguments; and the Connect server asks for its
token."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from integration.programs.children import output, start, without_spark
from patience import PATIENCE

from onceonly.airflow import connections
from onceonly.dev.services import Services
from onceonly.dev.services.spark import TOKEN
from onceonly.kafka import airflow_connections
from onceonly.runtime import client_job, spark_submit
from onceonly.statetable.table import StateTable

pytestmark = [pytest.mark.integration]
KEY = "spark.hadoop.fs.s3a.secret.key"
SECRET = "5ecret of=the: job\\é"
LOOK = """
import psutil

def look(spark):
    found = spark.sparkContext._jsc.hadoopConfiguration().get("fs.s3a.secret.key")
    commands = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
    shown = [command for command in commands if found in command]
    print("FOUND", found, flush=True)
    print("SHOWN BY", shown, flush=True)
    print("DEFAULTS", spark.conf.get("spark.onceonly.default", "none"), flush=True)
"""
JOB = f"""{LOOK}
from pyspark.sql import SparkSession
look(SparkSession.builder.getOrCreate())
"""
GATE = f"""{LOOK}
from onceonly.airflow import connections
from onceonly.runtime.live_services import LiveServices
look(connections.open_gate_services(LiveServices(), "spark").spark())
"""
CLIENT = """
from onceonly.settings import Settings
from onceonly.spark.session import session
try:
    print("COUNTED", session(Settings.from_env()).range(5).count())
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, with a Spark connection that has secrets, and Spark's own defaults."""
    (tmp_path / "conf").mkdir()
    (tmp_path / "stage.py").write_text(JOB)
    monkeypatch.setattr(spark_submit, "program", lambda step: tmp_path / f"{step}.py")
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.onceonly.default  kept\n")
    conf = {KEY: SECRET, "spark.ui.enabled": "false"}
    spark = {"conn_type": "spark", "host": "local[1]", "extra": {"conf": conf}}
    given = {
        "AIRFLOW_CONN_SPARK": json.dumps(spark),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "ONCEONLY_HOME": str(tmp_path / "home"),
        "ONCEONLY_PROJECT": str(tmp_path),
        "SPARK_CONF_DIR": str(tmp_path / "conf"),
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    StateTable.make(str(tmp_path / "home" / "state"))
    return tmp_path / "home"


def run(script: Path, env: dict[str, str]) -> str:
    return output(start(str(script), env=env), PATIENCE)


def test_spark_submit_is_given_the_secrets_and_shows_none(home: Path) -> None:
    told: list[str] = []
    spark = connections.read_spark_connection("spark")
    client_job.make_stage_job(spark, told.append, lambda checkpoint, row: None, airflow_connections.read_variable).run(
        "a_pipeline", 1, "a run"
    )
    assert [line for line in told if line.startswith(("FOUND", "SHOWN", "DEFAULTS"))] == [
        f"FOUND {SECRET}",
        "SHOWN BY []",
        "DEFAULTS kept",
    ]


@pytest.mark.heavy
def test_the_session_of_a_gate_is_given_the_secrets_and_shows_none(home: Path) -> None:
    script = home.parent / "gate.py"
    script.write_text(GATE)
    said = run(script, {**without_spark(os.environ), "SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"]})
    assert f"FOUND {SECRET}\nSHOWN BY []\nDEFAULTS kept\n" in said


def test_a_connect_server_serves_those_who_have_its_token(services: Services, spark_server: str, home: Path) -> None:
    script = home.parent / "client.py"
    script.write_text(CLIENT)
    token = services.up(spark=True).spark_token or ""
    assert token
    nobody = {name: value for name, value in without_spark(os.environ).items() if name != TOKEN}

    def ask(**env: str) -> str:
        return run(script, {**nobody, "SPARK_REMOTE": spark_server, **env})

    assert "COUNTED 5" in ask(ONCEONLY_HOME=str(services.home))
    assert "COUNTED 5" in ask(SPARK_REMOTE=f"{spark_server}/;token={token}")
    assert "COUNTED 5" in ask(SPARK_CONNECT_AUTHENTICATE_TOKEN=token)
    for refused in (ask(), ask(SPARK_CONNECT_AUTHENTICATE_TOKEN="guessed")):
        assert f"InvalidPipeline the Spark Connect server at {spark_server} refuses this process." in refused
        assert "Set its token" in refused
        assert token not in refused
    assert not [
        process for process in psutil.process_iter(["cmdline"]) if token in " ".join(process.info["cmdline"] or ())
    ]
