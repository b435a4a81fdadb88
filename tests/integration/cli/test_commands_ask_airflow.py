"""Commands find the connections that Airflow's own commands have added; the error's advice is enough to get there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from integration.services.airflow_database import copy_database
from patience import PATIENCE

from onceonly.dev.services import machine

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
SECRET = "s3cr3t-enough"
PIPELINE = """
from onceonly import DeltaSink, KafkaSource, Pipeline

events = Pipeline(
    name="events", source=KafkaSource("{topic}", connection="kafka_ev"), transform="shapes:shape",
    sinks=[DeltaSink("lake", path="lake/events")],
)
"""


class Shell:
    """Commands in one project, with an Airflow of its own."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "ONCEONLY"))}
        self.env = {
            **clean,
            "PATH": f"{BIN}:{clean['PATH']}",
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "ONCEONLY_PROJECT": str(folder),
            "ONCEONLY_HOME": str(folder / "home"),
            "ONCEONLY_JARS": os.environ.get("ONCEONLY_JARS", str(ROOT / ".jars")),
            **env,
        }

    def run(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            shlex.split(command), cwd=self.folder, env={**self.env, **env}, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip

    def check(self, **env: str) -> tuple[int, dict[str, object]]:
        done = self.run("onceonly check pipelines.py:events --json", **env)
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def topic(broker: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"ask_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(PATIENCE)
    return name


@pytest.fixture
def topic_shell(tmp_path: Path, topic: str) -> Shell:
    """With a topic that is there."""
    return open_shell(tmp_path, topic)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return open_shell(tmp_path, "no_topic")


def open_shell(tmp_path: Path, topic: str) -> Shell:
    (tmp_path / "pipelines.py").write_text(PIPELINE.format(topic=topic))
    (tmp_path / "shapes.py").write_text("def shape(batch):\n    return batch.select('key', 'value')\n")
    return Shell(tmp_path)


def test_advice_is_enough(topic_shell: Shell, broker: str) -> None:
    """Without a database, then with one that lacks the connection, then after the advised command."""
    code, answer = topic_shell.check()
    assert (code, answer["code"]) == (5, "connection-unanswered")
    copy_database(topic_shell.folder / "airflow")
    code, answer = topic_shell.check()
    assert (code, answer["code"]) == (5, "connection-missing")
    advice = re.search(r"airflow connections add .*?\}'", str(answer["todo"]))
    assert advice, answer["todo"]
    added = topic_shell.run(advice[0].replace("HOST:9092", broker))
    assert added.returncode == 0, added.stderr
    code, answer = topic_shell.check()
    assert code == 0, answer
    assert any("kafka_ev" in note for note in answer["notes"])  # type: ignore[attr-defined]


def test_connection_of_spark_that_a_dag_file_names_is_looked_for(shell: Shell) -> None:
    """Airflow lacks it, then has it by the command that the refusal advises."""
    copy_database(shell.folder / "airflow")
    (shell.folder / "dag.py").write_text("dag = checkpoint_dag(events, spark_conn_id='big_spark')\n")
    follow_advice(shell, "onceonly check pipelines.py:events --json")
    code, answer = shell.check()
    assert (code, answer["code"]) == (5, "connection-missing") and "kafka_ev" in str(answer["what"])


def test_secrets_backend_is_asked(topic_shell: Shell, broker: str) -> None:
    """One that fails is no connection that is missing."""
    connections = {"kafka_ev": {"conn_type": "generic", "extra": {"bootstrap.servers": broker}}}
    secrets = topic_shell.folder / "secrets.json"
    secrets.write_text(json.dumps(connections))
    backend = {
        "AIRFLOW__SECRETS__BACKEND": "airflow.secrets.local_filesystem.LocalFilesystemBackend",
        "AIRFLOW__SECRETS__BACKEND_KWARGS": json.dumps({"connections_file_path": str(secrets)}),
    }
    code, answer = topic_shell.check(**backend)
    assert code == 0, answer
    secrets.write_text("{broken")
    code, answer = topic_shell.check(**backend)
    assert (code, answer["code"]) == (5, "connection-unanswered")


def test_database_that_is_down_is_no_connection_that_is_missing(shell: Shell) -> None:
    """The answer names who could not be asked, and no password of its address."""
    address = f"postgresql+psycopg2://airflow:{SECRET}@127.0.0.1:{machine.free_port()}/airflow"
    code, answer = shell.check(AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=address)
    assert (code, answer["code"]) == (5, "connection-unanswered")
    assert "MetastoreBackend" in str(answer["why"])
    assert SECRET not in str(answer)


def test_values_are_not_shown(shell: Shell) -> None:
    """Not even those of a connection that cannot be used."""
    copy_database(shell.folder / "airflow")
    extra = json.dumps({"bootstrap.servers": "127.0.0.1:1", "sasl.password": SECRET})
    connection = json.dumps({"conn_type": "generic", "extra": extra})
    assert shell.run(f"airflow connections add kafka_ev --conn-json {shlex.quote(connection)}").returncode == 0
    done = shell.run("onceonly --traceback check pipelines.py:events")
    assert done.returncode == 5, done.stderr
    assert "connection-missing" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.heavy
def test_advice_is_enough_for_stores_and_registries(shell: Shell) -> None:
    """Airflow knows the types of stores by providers that are not here, and keeps the connections."""
    copy_database(shell.folder / "airflow")
    stores: dict[str, str] = {}
    for setting in ("ONCEONLY_AWS_CONNECTION", "ONCEONLY_AZURE_CONNECTION", "ONCEONLY_GOOGLE_CONNECTION"):
        stores[setting] = f"lake_{setting.split('_')[1].lower()}"
        follow_advice(shell, "onceonly status --json", **stores)
    done = shell.run("onceonly status --json", **stores)
    assert done.returncode == 0, done.stdout
    read = (
        'KafkaSource("no_topic", bootstrap="127.0.0.1:1", registry="registry_ev", format="avro", subject="shop.Order")'
    )
    text = PIPELINE.replace('KafkaSource("{topic}", connection="kafka_ev")', read)
    (shell.folder / "pipelines.py").write_text(text)
    follow_advice(shell, "onceonly check pipelines.py:events --json")
    assert shell.check()[1]["code"] != "connection-missing"


def follow_advice(shell: Shell, command: str, **env: str) -> None:
    """Run a command that lacks a connection, then the command that its error names."""
    answer = json.loads(shell.run(command, **env).stdout)
    assert answer["code"] == "connection-missing", answer
    advice = re.search(r"airflow connections add .*?(?:\}+|\])'", answer["todo"])
    assert advice, answer["todo"]
    added = shell.run(advice[0])
    assert added.returncode == 0, added.stderr


def test_type_that_no_provider_has_brought_is_enough(shell: Shell) -> None:
    copy_database(shell.folder / "airflow")
    added = shell.run("airflow connections add lake --conn-type aws --conn-login key --conn-password secret")
    assert added.returncode == 0, added.stderr
    done = shell.run("onceonly status --json", ONCEONLY_AWS_CONNECTION="lake")
    assert done.returncode == 0, done.stdout


def test_without_an_airflow_none_is_made(shell: Shell) -> None:
    home = shell.folder / "somebody"
    home.mkdir()
    del shell.env["AIRFLOW_HOME"], shell.env["AIRFLOW__CORE__LOAD_EXAMPLES"]
    code, answer = shell.check(HOME=str(home))
    assert (code, answer["code"]) == (5, "connection-unanswered")
    assert not (home / "airflow").exists()
