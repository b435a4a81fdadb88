"""What the page of a checkpoint shows while its stage runs: by spark-submit, on a real broker, in Chromium."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from integration.projects.project import make_project, produce
from integration.services import chromium
from integration.services.airflow_server import Server
from patience import PATIENCE

from onceonly.checkpoint.model import State
from onceonly.kafka.airflow_connections import read_variable
from onceonly.runtime import client_job, live_services, owners
from onceonly.runtime.spark_connection import SparkConnection

pytestmark = [
    pytest.mark.integration,
    pytest.mark.heavy,
    pytest.mark.skipif(chromium.BINARY is None, reason="Chromium is not installed: apt-get install chromium"),
]
RECORDS = 40_000  # more than one process takes without Spark, a quarter of them in each of four partitions
NAME, RUN = "numbers_chained", "at-work"
DAG_FILE = f"""
from airflow.sdk import DAG, BaseOperator

with DAG("{NAME}", schedule=None):
    BaseOperator(task_id="plan") >> BaseOperator(task_id="stage")
"""
SLOW = """

def waits_for_the_last_partition(batch):
    def wait(batches):
        import pathlib, time
        for rows in batches:
            while (rows.part == "3").any() and not pathlib.Path({go!r}).exists():
                time.sleep(0.1)
            yield rows
    return numbers(batch).mapInPandas(wait, "n BIGINT, part STRING")
"""
WORK = "(document.querySelector('.notice.work')?.textContent ?? '')"


def test_the_page_follows_a_stage(tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path, broker, "", "stage_at_work")
    for name, value in project.env().items():
        monkeypatch.setenv(name, value)
    go, module = tmp_path / "go", tmp_path / f"transforms_{project.topic}.py"
    module.write_text(module.read_text() + SLOW.format(go=str(go)))
    produce(project, range(RECORDS))
    coordinator = live_services.open_coordinator(project.parts)
    pipeline, owner = project.pipeline(transform="waits_for_the_last_partition"), owners.airflow_owner(NAME, RUN)
    planned = coordinator.plan(pipeline, owner, owners.is_never_alive).checkpoint
    assert planned is not None
    server = Server(tmp_path / "airflow", project.env(), {"dag.py": DAG_FILE})
    job = client_job.make_stage_job(SparkConnection("local[2]"), print, lambda checkpoint, row: None, read_variable)
    stage = threading.Thread(target=job.run, args=(NAME, planned.epoch, owner))
    try:
        server.start()
        server.trigger(NAME, RUN)
        begin_stage(server)
        stage.start()
        with chromium.opened() as tab:
            follow(server, tab, stage, go)
    finally:
        go.touch()
        stage.join(PATIENCE)
        job.end()
        server.stop()
    assert coordinator.state_table.view(NAME).require(1).state is State.STAGED
    assert not list((tmp_path / "home" / "state" / "_jobs").glob("*")), "nothing of it is left"


def follow(server: Server, tab: chromium.Chromium, stage: threading.Thread, go: Path) -> None:
    folder = Path(os.environ.get("PICTURES") or go.parent)
    tab.login(server.url, server.token("vera"))
    tab.resize(1280, 900)
    tab.open(f"{server.url}/onceonly/pipelines/{NAME}/1")
    tab.wait(f"{WORK}.includes('stage is running since')")
    tab.wait(f"{WORK}.includes('30,000 of up to 40,000 records read, 30,000 rows written')")
    tab.screenshot(folder / "at-work-checkpoint.png", 1280, 900)
    assert "waiting for the rows of sink 'numbers' to be staged" in tab.value(WORK)
    tab.open(f"{server.url}/onceonly/pipelines/{NAME}")
    tab.wait(f"{WORK}.includes('Epoch 1: stage is running since') && {WORK}.includes('30,000 of up to 40,000')")
    tab.screenshot(folder / "at-work-pipeline.png", 1280, 900)
    go.touch()
    stage.join(PATIENCE)
    tab.wait(f"{WORK} !== '' && !{WORK}.includes('records read')")
    assert tab.errors == []


def begin_stage(server: Server) -> None:
    """What a scheduler and a worker would record."""
    with closing(sqlite3.connect(server.folder / "airflow.db", timeout=60)) as database, database:
        database.execute("UPDATE dag_run SET state = 'running' WHERE dag_id = ?", [NAME])
        begun = "UPDATE task_instance SET state = 'running', start_date = ? WHERE dag_id = ? AND task_id = 'stage'"
        database.execute(begun, [f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S.%f}", NAME])
