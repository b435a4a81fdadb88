"""Commands of Airflow in messages: each is taken out of the message, run as it stands, and cures what was reported."""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import closing

import pytest
from integration.services.airflow_server import Server
from patience import PATIENCE

pytestmark = [pytest.mark.integration, pytest.mark.heavy]
PIPELINE = """
from onceonly.airflow.operators import PlanOperator, StageOperator
from onceonly.pipeline.definition import Pipeline
from onceonly.pipeline.sinks import DeltaSink
from onceonly.pipeline.sources import KafkaSource
from airflow.sdk import DAG

def make_pipeline(name):
    sinks = [DeltaSink("lake", f"lake/{{name}}")]
    return Pipeline(name=name, source=KafkaSource("{topic}"), transform="shapes:shape", sinks=sinks)
"""
PLAN = """
with DAG("{dag_id}", schedule=None):
    PlanOperator(task_id="plan", pipeline=make_pipeline("{pipeline}"), spark_conn_id={spark!r})
"""
LOST = """
from airflow.sdk import task

with DAG("lost", schedule=None):
    @task(task_id="plan")
    def forget():
        return None

    forget() >> StageOperator(task_id="stage", pipeline="parcels")
"""
DAY = "2026-05-02T00:00:00+00:00"


class Site:
    """An Airflow without a scheduler, whose DAG files come and go; `airflow dags test` runs them."""

    def __init__(self, server: Server, header: str) -> None:
        self.server, self.header = server, header

    def place(self, dag_id: str, pipeline: str = "", text: str = PLAN, spark: str | None = None) -> None:
        """Write a DAG file, which `airflow dags test` parses."""
        file = self.server.folder / "dags" / f"{dag_id}.py"
        file.write_text(self.header + text.format(dag_id=dag_id, pipeline=pipeline or dag_id, spark=spark))

    def remove(self, dag_id: str) -> None:
        """Remove a DAG file, and let Airflow notice it."""
        (self.server.folder / "dags" / f"{dag_id}.py").unlink()
        self.run("airflow dag-processor --num-runs 1")

    def run(self, command: str) -> str:
        words = shlex.split(command)
        assert words.pop(0) == "airflow"
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words], env=self.server._environment, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def try_run(self, dag_id: str, date: str = "") -> str:
        """What a run of the DAG says in its logs."""
        words = ["dags", "test", dag_id, *([date] if date else [])]
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words], env=self.server._environment, capture_output=True, text=True,
            timeout=PATIENCE,
        )  # fmt: skip
        return done.stdout + done.stderr

    def dags_shown(self) -> set[str]:
        return {dag["dag_id"] for dag in self.server.api("GET", "/dags?exclude_stale=true").json()["dags"]}

    def read(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.server.folder / "airflow.db", timeout=60)) as database:
            return database.execute(query).fetchall()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, broker: str) -> Iterator[Site]:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    folder = tmp_path_factory.mktemp("advised")
    topic = f"parcels_{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE)
    producer = Producer({"bootstrap.servers": broker})
    producer.produce(topic, b"a parcel")
    producer.flush(PATIENCE)
    (folder / "project").mkdir()
    (folder / "project" / "shapes.py").write_text("def shape(batch):\n    return batch\n")
    env = {
        "ONCEONLY_HOME": str(folder / "home"),
        "ONCEONLY_KAFKA_BOOTSTRAP": broker,
        "ONCEONLY_PROJECT": str(folder / "project"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
    }
    header = PIPELINE.format(topic=topic)
    server = Server(
        folder / "airflow", env, {"parcels.py": header + PLAN.format(dag_id="parcels", pipeline="parcels", spark=None)}
    )
    try:
        server.start()
        yield Site(server, header)
    finally:
        server.stop()


def advised(words: str, output: str, code: str = "") -> str:
    """The command in a message that begins with these words, up to where its sentence goes on or ends."""
    if code:
        assert f"[{code}]" in output, output
    found = re.search(rf"{words}.*?(?=\. |\.$|, and |, or |; or )", output, re.MULTILINE)
    assert found, output
    return found[0]


def test_hidden_dag_of_a_renamed_pipeline_is_paused(site: Site) -> None:
    """Its file is gone, so Airflow shows it nowhere; the command pauses it all the same."""
    assert "epoch 1 pins" in site.try_run("parcels")
    site.place("packages", "parcels")
    site.remove("parcels")
    assert "parcels" not in site.dags_shown() and "packages" in site.dags_shown()
    refused = site.try_run("packages")
    site.run(advised("airflow dags pause parcels", refused, "pipeline-of-two-dags"))
    assert site.read("SELECT is_paused FROM dag WHERE dag_id = 'parcels'") == [(1,)]
    assert "epoch 1 pins" in site.try_run("packages")


def test_damaged_id_of_the_installation_is_deleted(site: Site) -> None:
    site.place("letters")
    site.run("airflow variables set onceonly_installation 'no id!'")
    refused = site.try_run("letters")
    site.run(advised("airflow variables delete", refused, "installation-invalid"))
    assert "epoch 1 pins" in site.try_run("letters")


def test_missing_connection_is_added(site: Site) -> None:
    site.place("cards", spark="spark_here")
    refused = site.try_run("cards")
    site.run(advised("airflow connections add", refused, "connection-missing"))
    assert "epoch 1 pins" in site.try_run("cards")


def test_task_of_a_run_without_an_epoch_is_cleared(site: Site) -> None:
    site.place("lost", text=LOST)
    site.run(advised("airflow tasks clear", site.try_run("lost", DAY)))
    assert set(site.read("SELECT task_id, state FROM task_instance WHERE dag_id = 'lost'")) == {
        ("plan", None), ("stage", None),
    }  # fmt: skip
    assert site.read("SELECT state FROM dag_run WHERE dag_id = 'lost'") == [("queued",)]
